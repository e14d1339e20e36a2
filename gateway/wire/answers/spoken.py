"""The text that one event of a stream adds, of whatever kind: answer, reasoning, refusal, arguments of a tool call."""

from __future__ import annotations

from typing import Any, Final

import orjson

from gateway.wire.answers.sse import data_of

_OF_A_DELTA: Final = ("content", "reasoning", "reasoning_content", "refusal", "text", "thinking", "partial_json")


def spoken(event: bytes) -> str:
    """Empty if it adds none, or is not understood: whoever reads the event for its meaning will say so."""
    try:
        value = orjson.loads(data_of(event))
    except orjson.JSONDecodeError:
        return ""
    if type(value) is not dict:
        return ""
    delta = value.get("delta")
    if delta is not None:
        return delta if type(delta) is str else _text(delta)
    choices = value.get("choices")
    return "".join(map(_of_choice, choices)) if type(choices) is list else ""


def _of_choice(choice: Any) -> str:
    if type(choice) is not dict:
        return ""
    text = choice.get("text")
    return text if type(text) is str else _text(choice.get("delta"))


def _text(delta: Any) -> str:
    if type(delta) is not dict:
        return ""
    texts = [text for name in _OF_A_DELTA if type(text := delta.get(name)) is str]
    calls = delta.get("tool_calls")
    for call in calls if type(calls) is list else ():
        function = call.get("function") if type(call) is dict else None
        arguments = function.get("arguments") if type(function) is dict else None
        if type(arguments) is str:
            texts.append(arguments)
    return "".join(texts)
