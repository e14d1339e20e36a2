"""Exact prompt lengths, for models whose policy names a tokenizer.json."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import orjson

from gateway.core.request import Endpoint
from gateway.wire import template
from gateway.wire.body.content import MEDIA_PARTS
from gateway.wire.request import Parsed
from gateway.wire.template import Template

MAX_EXACT_BYTES: Final = 256 * 1024
"""Above this counting would hold up everyone else (about 1 ms for each 4 kB); the learned estimate has to do."""
MESSAGE_TOKENS: Final = 5
"""Without a template: `<|im_start|>role newline ... <|im_end|> newline`, ChatML's overhead for each message."""
ANSWER_TOKENS: Final = 3
"""And its opening of the answer."""


class TokenizerError(Exception):
    """A tokenizer that the policy names cannot be used; the message says why."""


class Tokenizer:
    """Counts the tokens of prompts as the engine will see them."""

    def __init__(self, tokenizer: Any, chat_template: Template | None) -> None:
        self._tokenizer = tokenizer
        self._template = chat_template

    @classmethod
    def load(cls, path: str) -> Tokenizer:
        """Read a tokenizer.json, and the chat template beside it if there is one; raises `TokenizerError`."""
        try:
            tokenizers = importlib.import_module("tokenizers")
        except ImportError:
            raise TokenizerError(
                f"{path}: exact prompt lengths need the tokenizers library: pip install 'tailgate[tokenizers]'"
            ) from None
        file = Path(path)
        try:
            text = file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TokenizerError(f"{path}: cannot be read: {error}") from None
        try:
            tokenizer = tokenizers.Tokenizer.from_str(text)
        except Exception as malformed:  # noqa: BLE001 - the library raises plain Exception
            raise TokenizerError(f"{path}: is not a tokenizer.json: {malformed}") from None
        tokenizer.no_truncation()
        tokenizer.no_padding()
        try:
            return cls(tokenizer, template.load(file.parent))
        except ValueError as no_template:
            raise TokenizerError(f"{path}: {no_template}") from None

    def count(self, parsed: Parsed) -> int | None:
        """Prompt tokens of a request; None where they cannot be told: media, and prompts too long to count."""
        if parsed.prompt_exact is not None:
            return parsed.prompt_exact
        if parsed.prompt_bytes > MAX_EXACT_BYTES:
            return None
        fields = parsed.fields
        match parsed.endpoint:
            case Endpoint.COMPLETIONS:
                return self._plain(fields["prompt"], fields) + self._length(fields.get("suffix", ""))
            case Endpoint.EMBEDDINGS | Endpoint.POOLING | Endpoint.CLASSIFY if "input" in fields:
                return self._plain(fields["input"], fields)
            case Endpoint.RERANK | Endpoint.RERANK_BARE | Endpoint.RERANK_V2 | Endpoint.SCORE | Endpoint.SCORE_BARE:
                return None  # how an engine joins a pair of texts is the model's own affair
            case _:
                return self._chat(parsed)

    def _plain(self, given: Any, fields: dict[str, Any]) -> int:
        special = fields.get("add_special_tokens", True) is not False
        return sum(self._length(text, special) for text in ([given] if type(given) is str else given))

    def _chat(self, parsed: Parsed) -> int | None:
        messages = _messages(parsed)
        if messages is None:
            return None
        tools = _tools(parsed)
        if self._template is not None:
            text = self._template.render(messages, tools)
            if text is not None:
                return self._length(text)
        total = ANSWER_TOKENS + MESSAGE_TOKENS * len(messages)
        total += sum(self._length(_flat(v)) for message in messages for k, v in message.items() if k != "role")
        return total + (self._length(_flat(tools)) if tools else 0)

    def _length(self, text: str, special: bool = False) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=special).ids) if text else 0


class Tokenizers:
    """Tokenizers by path, each read again only when it or what stands beside it has changed: reading takes a second."""

    def __init__(self) -> None:
        self._loaded: dict[str, tuple[_Stamp, Tokenizer]] = {}

    def take(self, paths: Iterable[str]) -> dict[str, Tokenizer]:
        """Those of `paths`; all others are forgotten. Raises `TokenizerError`, and then nothing has changed."""
        loaded = {}
        for path in dict.fromkeys(paths):
            stamp = _stamp(Path(path))
            before = self._loaded.get(path)
            loaded[path] = before if before and before[0] == stamp else (stamp, Tokenizer.load(path))
        self._loaded = loaded
        return {path: tokenizer for path, (_, tokenizer) in loaded.items()}


_Stamp = tuple[tuple[int, int, int] | None, ...]


def _stamp(path: Path) -> _Stamp:
    """Changes whenever one of the files does that a tokenizer is read from."""
    stamps: list[tuple[int, int, int] | None] = []
    for file in (path, *(path.with_name(name) for name in template.FILES)):
        try:
            found = file.stat()
        except OSError:
            stamps.append(None)
        else:
            stamps.append((found.st_mtime_ns, found.st_size, found.st_ino))
    return tuple(stamps)


def _messages(parsed: Parsed) -> list[dict[str, Any]] | None:
    """A conversation of any of the three kinds as a chat template takes it; None if it holds more than text."""
    fields = parsed.fields
    if parsed.endpoint is Endpoint.RESPONSES:
        first, given = fields.get("instructions"), fields["input"]
        if type(given) is str:
            given = [{"role": "user", "content": given}]
    else:
        first, given = fields.get("system"), fields["messages"]
    out: list[dict[str, Any]] = [] if first is None else [{"role": "system", "content": first}]
    out += given
    for i, message in enumerate(out):
        content = message.get("content")
        if type(content) is list:
            if any(part.get("type") in MEDIA_PARTS for part in content):
                return None
            out[i] = {**message, "content": "\n".join(map(_part, content))}
        elif "role" not in message:  # a call or its result, among the items of the Responses API
            out[i] = {"role": "tool", "content": _flat(message)}
    return out


def _tools(parsed: Parsed) -> list[dict[str, Any]] | None:
    """Tools of any of the three APIs as those of chat completions, which is what templates know."""
    tools: list[dict[str, Any]] | None = parsed.fields.get("tools")
    if not tools or parsed.endpoint is Endpoint.CHAT:
        return tools
    plain = [{"parameters" if k == "input_schema" else k: v for k, v in t.items() if k != "type"} for t in tools]
    return [{"type": "function", "function": tool} for tool in plain]


def _part(part: dict[str, Any]) -> str:
    text = part.get("text")
    return text if type(text) is str else _flat(part)


def _flat(value: Any) -> str:
    if value is None:
        return ""
    return value if type(value) is str else orjson.dumps(value).decode()
