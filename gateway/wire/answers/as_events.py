"""Converts a whole answer to the events of a stream, for a client whose stream began before the answer arrived.

Some servers answer a streamed request with one JSON object. If a keep-alive comment was already sent, only events may
follow. This conversion exists only for the completion APIs. There, a choice of a whole answer and a choice of an event
differ only in the name of one field. In the Messages and Responses APIs, a dozen events around each text would have to
be invented.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

_EVENT: Final = b"data: %b\n\n"
DONE: Final = _EVENT % b"[DONE]"


def chat_events(body: bytes, wants_usage: bool) -> list[bytes]:
    """Events with the content of a chat completion, and the end of the stream; no events if `body` is not a chat
    completion.
    """
    answer = _answer(body)
    if answer is None:
        return []
    answer["object"] = "chat.completion.chunk"
    answer["choices"] = [_delta(choice) for choice in answer["choices"]]
    return _events(answer, wants_usage)


def text_events(body: bytes, wants_usage: bool) -> list[bytes]:
    """Events with the content of a plain completion, and the end of the stream; no events if `body` is not a plain
    completion.
    """
    answer = _answer(body)
    return [] if answer is None else _events(answer, wants_usage)


def _answer(body: bytes) -> dict[str, Any] | None:
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    choices = answer.get("choices") if type(answer) is dict else None
    if type(choices) is not list or not choices or not all(type(choice) is dict for choice in choices):
        return None
    found: dict[str, Any] = answer
    return found


def _events(answer: dict[str, Any], wants_usage: bool) -> list[bytes]:
    usage = answer.pop("usage", None)
    try:
        events = [_EVENT % orjson.dumps(answer)]
        if wants_usage and usage is not None:
            events.append(_EVENT % orjson.dumps(answer | {"choices": [], "usage": usage}))
    except TypeError:
        return []  # nested more deeply than orjson can write
    return [*events, DONE]


def _delta(choice: dict[str, Any]) -> dict[str, Any]:
    """A choice of a chat, in the form of an event. Tool calls get an index."""
    delta = {key: value for key, value in choice.items() if key != "message"}
    message = choice.get("message")
    delta["delta"] = said = dict(message) if type(message) is dict else {}
    calls = said.get("tool_calls")
    if type(calls) is list:
        said["tool_calls"] = [{"index": i} | call for i, call in enumerate(calls) if type(call) is dict]
    return delta
