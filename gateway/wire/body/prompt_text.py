"""Reads prompts for tokenizers: plain texts, or a conversation for a chat template."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import orjson

from gateway.wire.body.content import MEDIA_PARTS


@dataclass(frozen=True, slots=True)
class PlainText:
    """Plain texts for the tokenizer. `appended`: text that follows them, without special tokens."""

    texts: list[str]
    special: bool
    """Whether the tokenizer adds its special tokens to each text."""
    appended: str = ""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages and tools, in the form of chat completions, which templates expect."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None


ReadText: TypeAlias = Callable[[dict[str, Any]], PlainText | Conversation | None]
"""A function that returns the text of checked fields; None if it is unknown, e.g. with media."""


def plain(given: Any, fields: dict[str, Any], appended: str = "") -> PlainText:
    """One text or several, with special tokens unless `fields` say otherwise."""
    special = fields.get("add_special_tokens", True) is not False
    return PlainText([given] if type(given) is str else given, special, appended)


def chat(fields: dict[str, Any]) -> Conversation | None:
    """The conversation of a chat whose tools, if any, are in the form of chat completions."""
    return conversation(fields.get("system"), fields["messages"], fields.get("tools"))


def conversation(first: Any, given: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> Conversation | None:
    """A conversation of an optional system message `first` and messages `given`; None if it has more than text."""
    out: list[dict[str, Any]] = [] if first is None else [{"role": "system", "content": first}]
    out += given
    for i, message in enumerate(out):
        content = message.get("content")
        if type(content) is list:
            if any(part.get("type") in MEDIA_PARTS for part in content):
                return None
            out[i] = {**message, "content": "\n".join(map(_part, content))}
        elif "role" not in message:  # an item of the Responses API that is a call or its result
            out[i] = {"role": "tool", "content": flat(message)}
    return Conversation(out, tools)


def as_functions(tools: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Tools of the Messages or Responses API in the form of chat completions."""
    if not tools:
        return tools
    bare = [{"parameters" if k == "input_schema" else k: v for k, v in t.items() if k != "type"} for t in tools]
    return [{"type": "function", "function": tool} for tool in bare]


def flat(value: Any) -> str:
    """A value as text: text as it is, other values as JSON."""
    if value is None:
        return ""
    return value if type(value) is str else orjson.dumps(value).decode()


def _part(part: dict[str, Any]) -> str:
    text = part.get("text")
    return text if type(text) is str else flat(part)
