"""Any server: answers that are complete by their own words, and whose HTTP message never ends, or breaks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tests.foreign import script as s
from tests.foreign.script import Ends, Script, Then

_SOURCE: Final = "RFC 9112, 8: an incomplete message; the answer inside says that it is complete"
_AT_ONCE_S: Final = 0.5
_GRACE_S: Final = 7.0
"""The grace, and the time to the next sweep of these tests."""

_WHOLE_MESSAGE: Final = s.dumped(
    {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": s.MODEL,
        "content": [{"type": "text", "text": s.TEXT}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 5, "output_tokens": 2},
    }
)


def _response(status: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": s.TEXT, "annotations": []}
    item = {"type": "message", "id": "msg_1", "role": "assistant", "status": status, "content": [part]}
    used = {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7}
    head = {"id": "resp_1", "object": "response", "created_at": 1, "model": s.MODEL, "status": status}
    return {**head, "output": [item], "usage": used}


def _message(text: str) -> bytes:
    return s.typed("content_block_delta", index=0, delta={"type": "text_delta", "text": text})


def _text(text: str, finish: object = None) -> bytes:
    return s.data({"id": "c-1", "object": "text_completion", "choices": [_choice(text, finish)]})


def _choice(text: str, finish: object) -> dict[str, object]:
    return {"index": 0, "text": text, "finish_reason": finish}


_STREAMS: Final[dict[str, tuple[bytes, ...]]] = {
    s.CHAT: (s.HI, s.THERE, s.STOP, s.usage(), s.DONE),
    s.COMPLETIONS: (_text("Hi"), _text(" there", "stop"), s.DONE),
    s.MESSAGES: (
        s.typed("message_start", message={"id": "msg_1", "content": [], "usage": {"input_tokens": 5}}),
        s.typed("content_block_start", index=0, content_block={"type": "text", "text": ""}),
        *(_message("Hi"), _message(" there"), s.typed("content_block_stop", index=0)),
        s.typed("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 2}),
        s.typed("message_stop"),
    ),
    s.RESPONSES: (
        s.typed("response.created", response=_response("in_progress") | {"output": [], "usage": None}),
        *(s.typed("response.output_text.delta", output_index=0, delta=text) for text in ("Hi", " there")),
        s.typed("response.completed", response=_response("completed")),
    ),
}
"""Streams with the end mark of their API."""
_WHOLES: Final[dict[str, bytes]] = {
    s.CHAT: s.completion(),
    s.COMPLETIONS: s.dumped({"id": "c-1", "object": "text_completion", "choices": [_choice(s.TEXT, "stop")]}),
    s.MESSAGES: _WHOLE_MESSAGE,
    s.RESPONSES: s.dumped(_response("completed")),
}
_LENGTH: Final = 9
"""So many bytes of an announced length never come."""
_NAMES: Final = {s.CHAT: "chat", s.COMPLETIONS: "completions", s.MESSAGES: "messages", s.RESPONSES: "responses"}
_THEN: Final = {
    "then pings for ever": Then.PINGS,
    "then silence": Then.SILENCE,
    "then a close": Then.CLOSE,
    "then a reset": Then.RESET,
}


def _framed(body: tuple[bytes, ...], content_type: str) -> Iterator[tuple[str, bytes]]:
    """The body in each framing, without its end."""
    data = b"".join(body)
    lines = (f"content-length: {len(data) + _LENGTH}",)
    yield "chunked", s.chunked(*body, content_type=content_type, last=b"")
    yield "with a length", s.head(content_type, *lines) + data
    yield "to the end", s.unframed(*body, content_type=content_type)


def _every() -> Iterator[Script]:
    for path, events in _STREAMS.items():
        for framing, data in _framed(events, s.SSE):
            for name, then in _THEN.items():
                said = f"{_NAMES[path]}, {framing}: the mark, {name}"
                yield Script(said, _SOURCE, data, s.TEXT, path, then=then, within_s=_AT_ONCE_S)
    for path, body in _WHOLES.items():
        for framing, data in _framed((body,), s.JSON):
            for name, then in _THEN.items():
                said = f"{_NAMES[path]}, {framing}: whole, {name}"
                if then is not Then.PINGS:  # a comment after JSON is no part of it
                    yield Script(said, _SOURCE, data, s.TEXT, path, False, then, within_s=_GRACE_S)
    for framing, data in _framed(_STREAMS[s.CHAT][:-1], s.SSE):
        for name, then in _THEN.items():
            said = f"chat, {framing}: a finish reason and usage, {name}"
            yield Script(said, _SOURCE, data, s.TEXT, then=then, usage=(5, 2), within_s=_GRACE_S)


SCRIPTS: Final = (
    *_every(),
    Script(
        "a finish reason of one of two choices, then a close",
        _SOURCE,
        s.chunked(s.data(s.spoken("Hi")), s.data(s.spoken(" there", index=1)), s.STOP, last=b""),
        s.TEXT,
        then=Then.CLOSE,
        ends=Ends.BROKEN,
        choices=2,
        fault=True,
    ),
    Script(
        "a finish reason before the text is over",
        "no server known; a finish reason that comes too early",
        s.chunked(s.HI, s.STOP, s.THERE, s.DONE),
        s.TEXT,
    ),
    Script(
        "finish_reason abort and [DONE], then pings for ever",
        "vllm-project/vllm: running requests at its shutdown",
        s.chunked(s.HI, s.THERE, s.say(finish="abort"), s.DONE, last=b""),
        s.TEXT,
        then=Then.PINGS,
        ends=Ends.BROKEN,
        fault=None,
        within_s=_AT_ONCE_S,
    ),
)
