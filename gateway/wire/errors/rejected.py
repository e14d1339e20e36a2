"""Rewrites an engine's refusal for a client.

vLLM answers {"error": {"message", "type", "param", "code": 400}} (the code is an integer), or {"error":
"Unauthorized"}. Its older versions and SGLang answer {"object": "error", "message", ...}, and FastAPI {"detail": text
or [{"loc", "msg"}]}. TGI answers {"error": text, "error_type"}, and servers of Anthropic's API {"type": "error",
"error": {"type", "message"}}. Proxies answer HTML.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import orjson

MAX_BODY_BYTES: Final = 256 * 1024
MAX_MESSAGE_CHARS: Final = 1000
CONTEXT_LENGTH: Final = "context_length_exceeded"

_WORD: Final = re.compile(r"[A-Za-z0-9_.\[\]-]{1,128}")
_CONTEXT: Final = re.compile(
    r"context[ _]?(length|window|size)|max(imum)?[ _](model|seq\w*)[ _]len|longer than the maximum"
    r"|`max_new_tokens` must be",
    re.IGNORECASE,
)
# How vLLM, SGLang and Dynamo say that a prompt is too long. A text is read from its beginning: later parts of an error
# may be the client's own words. `told` is the prompt's number of tokens, if it is exact.
_LENGTHS: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?:'max_tokens' or 'max_completion_tokens' is too large: \d{1,9}\. )?"
        r"This model's maximum context length is (?P<context>\d{1,9}) tokens"
        r"(?: and your request has (?P<told>\d{1,9}) input tokens"
        r"|\. However, your (?:request has|messages resulted in) (?P<told2>\d{1,9}) (?:input )?tokens"
        r"|\. However, you requested \d{1,9} tokens \((?P<told3>\d{1,9}) in the (?:messages|prompt))?",
        r"You passed (?P<told>\d{1,9}) input tokens and requested \d{1,9} output tokens\. "
        r"However, the model's context length is only (?P<context>\d{1,9})\b",
        r"The decoder prompt \(length (?P<told>\d{1,9})\) is longer than the maximum model length of "
        r"(?P<context>\d{1,9})\b",
        r"The input \((?P<told>\d{1,9}) tokens\) is longer than the model's context length "
        r"\((?P<context>\d{1,9}) tokens\)",
        r"Requested token count exceeds the model's maximum context length of (?P<context>\d{1,9}) tokens"
        r"(?:\. You requested a total of \d{1,9} tokens: (?P<told>\d{1,9}) tokens from the input)?",
    )
)
# Matches texts that would reveal the replica's location or software: URLs, addresses, file paths.
_INTERNAL: Final = re.compile(
    r"\b[a-z][a-z0-9+.-]{0,20}://\S+"
    r"|\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"
    r"|\b(?:[\w-]{1,63}\.){1,8}(?:local|internal|svc|lan)\b(?::\d+)?"
    r"|\blocalhost(?::\d+)?\b"
    r"|(?<![\w.])/(?:[\w.@+-]+/)+[\w.@+-]*",
    re.IGNORECASE,
)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


@dataclass(frozen=True, slots=True)
class EngineMessage:
    """The parts of an engine's error that a client may see. Missing parts are empty or None."""

    message: str = ""
    param: str | None = None
    code: str | None = None


def read(body: bytes) -> EngineMessage:
    """Read message, field and code from an engine's error, in any of the known forms. Never raises."""
    if len(body) > MAX_BODY_BYTES:
        return EngineMessage()
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return EngineMessage()
    if type(document) is not dict:
        return EngineMessage()
    error = document.get("error")
    source: dict[str, Any] = error if type(error) is dict else document
    message = source.get("message")
    param = _word(source.get("param"))
    if type(message) is not str:
        message = error if type(error) is str else ""
    if not message:
        message, param = _detail(document.get("detail"))
    message = clean(message)
    code = CONTEXT_LENGTH if _CONTEXT.search(message) else _word(source.get("code"))
    return EngineMessage(message, param, code)


def lengths(body: bytes) -> tuple[int | None, int | None]:
    """The engine's context and the prompt's tokens, if an error says that the request is too long. None: not said."""
    message = read(body).message
    for pattern in _LENGTHS:
        found = pattern.match(message)
        if found is not None:
            said = found.groupdict()
            told = said["told"] or said.get("told2") or said.get("told3")
            context = int(said["context"])
            return (context or None), (int(told) if told and int(told) > 0 else None)
    return None, None


def clean(message: str) -> str:
    """The text on one line, without internals of the engine, and of limited length."""
    message = message[: 4 * MAX_MESSAGE_CHARS]
    if "Traceback (most recent call last)" in message:
        return ""
    message = _CONTROL.sub(" ", _INTERNAL.sub("[...]", message)).strip()
    return message if len(message) <= MAX_MESSAGE_CHARS else message[: MAX_MESSAGE_CHARS - 1] + "…"


def _word(value: object) -> str | None:
    return value if type(value) is str and _WORD.fullmatch(value) else None


def _detail(detail: object) -> tuple[str, str | None]:
    """Read FastAPI's `detail`: a text, or pydantic's list of errors with their places."""
    if type(detail) is str:
        return detail, None
    if type(detail) is not list or not detail or type(detail[0]) is not dict:
        return "", None
    first = detail[0]
    where, problem = first.get("loc"), first.get("msg")
    steps = where if type(where) is list else []
    # Only names and indexes are used, because writing nested values as text may exceed the recursion limit.
    path = [str(step) for step in steps if type(step) in (str, int) and step != "body"]
    param = _word(".".join(path))
    if type(problem) is not str:
        return "", param
    return f"{param}: {problem}" if param else problem, param
