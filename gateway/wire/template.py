"""Renders a model's chat template in a sandbox. The result is the text that an engine tokenises for a chat."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, Final, Protocol

import orjson

FILES: Final = ("chat_template.jinja", "tokenizer_config.json")


class Template(Protocol):
    """Renders messages to the text of a prompt."""

    def render(self, messages: list[dict[str, Any]], tools: list[Any] | None) -> str | None:
        """The text of the prompt; None if the template refuses these messages."""
        ...


def load(folder: Path) -> Template | None:
    """Load the chat template of a tokenizer, from chat_template.jinja or tokenizer_config.json in `folder`.

    Returns None if `folder` has no template, or if jinja2 is not installed. Raises ValueError if the template is
    malformed.
    """
    template, settings = FILES
    config = _config(folder / settings)
    source = _source(folder / template, config)
    if source is None:
        return None
    try:
        sandbox = importlib.import_module("jinja2.sandbox")
        jinja2 = importlib.import_module("jinja2")
    except ImportError:
        return None
    tokens = {name: _token(config.get(name)) for name in ("bos_token", "eos_token")}
    try:
        return _Jinja(jinja2, sandbox, source, tokens)
    except jinja2.TemplateError as error:
        raise ValueError(f"the chat template is malformed: {error}") from None


class _Jinja:
    """Renders with the same Jinja environment as transformers: trimmed blocks, loop controls, `raise_exception`, and a
    `tojson` without HTML escapes.
    """

    def __init__(self, jinja2: Any, sandbox: Any, source: str, tokens: dict[str, str]) -> None:
        environment = sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raiser(jinja2.TemplateError)
        # Some templates write today's date. Only the length of the date matters here.
        environment.globals["strftime_now"] = lambda _format: "26 Jul 2026"
        self._failure: type[Exception] = jinja2.TemplateError
        self._template = environment.from_string(source)
        self._tokens = tokens

    def render(self, messages: list[dict[str, Any]], tools: list[Any] | None) -> str | None:
        try:
            text: str = self._template.render(
                messages=messages, tools=tools, add_generation_prompt=True, **self._tokens
            )
        except (self._failure, TypeError, ValueError, ArithmeticError, LookupError, AttributeError):
            return None  # the engine will report this error to the client
        return text


def _raiser(error: type[Exception]) -> Any:
    def raise_exception(message: str) -> None:
        raise error(message)

    return raise_exception


def _to_json(value: Any, indent: int | None = None, **_unused: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 if indent else None).decode()


def _config(path: Path) -> dict[str, Any]:
    try:
        document = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}
    return document if type(document) is dict else {}


def _source(path: Path, config: dict[str, Any]) -> str | None:
    if path.is_file():
        return path.read_text("utf-8")
    source = config.get("chat_template")
    if type(source) is list:  # a list of several templates with names
        named = {item.get("name"): item.get("template") for item in source if type(item) is dict}
        source = named.get("default")
    return source if type(source) is str else None


def _token(value: object) -> str:
    if type(value) is dict:
        value = value.get("content")
    return value if type(value) is str else ""
