"""Streams of chat completions, plain completions and transcriptions: chunks with choices, then usage, then `[DONE]`."""

from __future__ import annotations

from typing import Any, Final

import orjson
from msgspec import Raw

from gateway.wire.answers.assemble import Assembly, grow
from gateway.wire.answers.cut import CutEnding, event_of
from gateway.wire.answers.events import EventKind, StreamReader, index_in, is_one, text_in
from gateway.wire.answers.failure import is_error_object
from gateway.wire.answers.shapes import (
    EMPTY,
    RAW_ABORT,
    UNREADABLE,
    Chunk,
    Delta,
    LooseChunk,
    decode_chunk,
    decode_loose_chunk,
)
from gateway.wire.answers.whole import read_usage
from gateway.wire.http.lines import LF
from gateway.wire.numbers import count

_TEXT: Final = b'"delta":{"content":"'
QUOTE: Final = 0x22
_NULL: Final = ("service_tier", "system_fingerprint", "kv_transfer_params", "ec_transfer_params", "metrics")
_NULL_OF_CHATS: Final = ("prompt_logprobs", "prompt_token_ids", "prompt_text")
_NULL_OF_USAGE: Final = ("prompt_tokens_details", "completion_tokens_details")
_NULL_OF_MESSAGES: Final = ("refusal", "annotations", "audio", "function_call", "reasoning")
_CHOICE: Final = ("logprobs", "finish_reason", "stop_reason", "token_ids", "routed_experts")
_CHOICE_OF_TEXT: Final = (*_CHOICE, "prompt_logprobs", "prompt_token_ids")
_KEPT: Final = ("id", "object", "created", "model", "system_fingerprint", "service_tier")
"""Fields that all chunks of one completion have in common."""


_endings: Final[list[bytes]] = [b""]
"""The bytes that came last after the text of an event. They are the same in nearly all streams."""


def _shared(ending: bytes) -> bytes:
    """An object equal to `ending`, which streams with the same ending share. So it stays in the CPU caches."""
    if ending != _endings[0]:
        _endings[0] = ending
    return _endings[0]


class CompletionReader(StreamReader):
    """Reads streams of completions: anonymous `data:` events, a `finish_reason`, then usage, then `[DONE]`."""

    __slots__ = ("_after", "_before", "_first", "_over")

    def __init__(self) -> None:
        super().__init__()
        self._first = b""
        """Data of the first chunk, from which closing chunks are made."""
        self._over: list[int] = []
        """Indexes of the choices that have ended."""
        self._before = self._after = b""
        """The bytes before and after the text of an event. Engines write the same bytes in all events of a stream."""

    @property
    def choices_over(self) -> int:
        return len(set(self._over))

    def plain(self, data: bytes, start: int) -> bool:
        # In compiled code, two slices are faster than a method of `bytes`.
        before, after = self._before, self._after
        text, end = start + len(before), len(data) - len(after)
        if before and text < end and data[start:text] == before and data[end:] == after:
            said = data[text:end]
            if QUOTE not in said and LF not in said:
                return True
        # `find` is used because `in` first raises a TypeError internally for bytes in bytes (CPython 3.11 to 3.13).
        # With several choices in one event, some may have finished.
        return (
            is_one(data, start)
            and data.find(b'"finish_reason":null') >= 0
            and data.find(b'"usage"') < 0
            and data.find(b'"error"') < 0
            and data.find(b'"finish_reason":"') < 0
            # Empty deltas are no output. Some servers send them as pings.
            and data.find(b'"content":""') < 0
            and data.find(b'"text":""') < 0
            and data.find(b'"delta":{}') < 0
            and data.find(b'"delta":{"content":null}') < 0
            and data.find(b'"delta":{"role":"assistant"}') < 0
            and data.find(b'"tool_calls":[]') < 0
        )

    def _learn(self, event: bytes) -> None:
        """Learn the bytes around the text of an event, which must have only output."""
        text = event.find(_TEXT) + len(_TEXT)
        end = event.find(b'"', text)
        if text < len(_TEXT) or event.find(b"\\", text, end) >= 0:
            return
        self._before, self._after = event[:text], _shared(event[end:] + b"\r\n")

    def _read(self, event: bytes, payload: bytes) -> EventKind:
        try:
            chunk: Chunk = decode_chunk(payload)
        except UNREADABLE:
            return self._read_loosely(payload)
        if bytes(chunk.error) not in EMPTY:
            return self._failed(chunk.error)
        self.model = self.model or bytes(chunk.model)
        has_usage = bytes(chunk.usage) not in EMPTY
        if has_usage:
            self._take_usage(read_usage(chunk.usage))
        if not chunk.choices:
            if is_error_object(payload):
                return self._failed(Raw(payload))
            return EventKind.USAGE_ONLY if has_usage else EventKind.OTHER
        kind = EventKind.OTHER
        self._first = self._first or payload
        for choice in chunk.choices:
            if bytes(choice.text) not in EMPTY or (choice.delta is not None and _has_output(choice.delta)):
                kind |= EventKind.CONTENT
            reason = bytes(choice.finish_reason)
            if reason not in EMPTY:
                kind |= EventKind.FINISH
                self._over.append(index_in(choice.index, 0))
                if reason == RAW_ABORT:
                    self.aborted = True
                else:
                    self.finished = True
        if kind & EventKind.CONTENT:
            self.tokens_seen += 1
            if kind == EventKind.CONTENT and not has_usage and len(chunk.choices) == 1 and not self._before:
                self._learn(event)
        return kind

    def _spoken(self, value: dict[str, Any]) -> str:
        choices = value.get("choices")
        return "".join(map(_spoken_in, choices)) if type(choices) is list else ""

    def _read_loosely(self, payload: bytes) -> EventKind:
        """Read only the error or the usage of an event whose choices have an unexpected form."""
        chunk: LooseChunk = decode_loose_chunk(payload)
        if bytes(chunk.error) not in EMPTY:
            return self._failed(chunk.error)
        if bytes(chunk.usage) not in EMPTY:
            self._take_usage(read_usage(chunk.usage))
        return self._unreadable()

    def _cut_short(self, cut: CutEnding, choices: int, wants_usage: bool) -> list[bytes]:
        return end_of_completion(self._first, self._over, choices, cut, wants_usage) if self._first else []


def end_of_completion(first: bytes, over: list[int], choices: int, cut: CutEnding, wants_usage: bool) -> list[bytes]:
    """The last events of a stream that is cut.

    `first`: the data of any chunk. `over`: indexes of the choices that have ended. `choices`: the requested number.
    """
    chunk = orjson.loads(first)
    head = {name: chunk[name] for name in _KEPT if name in chunk}
    nothing: dict[str, object] = {"text": ""} if chunk.get("object") == "text_completion" else {"delta": {}}
    left = [
        {"index": index, **nothing, "logprobs": None, "finish_reason": "length"}
        for index in range(choices)
        if index not in over
    ]
    events = [event_of({**head, "choices": left, **cut.mark(False)})] if left else []
    if wants_usage:
        events.append(event_of({**head, "choices": [], "usage": cut.tokens(), **cut.mark(True)}))
    return [*events, b"data: [DONE]\n\n"]


def _spoken_in(choice: Any) -> str:
    if type(choice) is not dict:
        return ""
    text, delta = choice.get("text"), choice.get("delta")
    if type(text) is str or type(delta) is not dict:
        return text if type(text) is str else ""
    said = text_in(delta, ("content", "reasoning", "reasoning_content", "refusal"))
    calls = delta.get("tool_calls")
    for call in calls if type(calls) is list else ():
        function = call.get("function") if type(call) is dict else None
        said += text_in(function, ("arguments",))
    return said


def _has_output(delta: Delta) -> bool:
    return any(
        bytes(field) not in EMPTY
        for field in (
            delta.content,
            delta.reasoning_content,
            delta.reasoning,
            delta.tool_calls,
            delta.refusal,
            delta.function_call,
        )
    )


class CompletionAssembly(Assembly):
    """Assembles chat and plain completions."""

    __slots__ = ("_chat", "_choices", "_head")

    def __init__(self, chat: bool) -> None:
        super().__init__()
        self._chat = chat
        self._head: dict[str, Any] = dict.fromkeys(_NULL + _NULL_OF_CHATS if chat else _NULL)
        self._choices: dict[int, dict[str, Any]] = {}

    def _take(self, event: dict[str, Any]) -> None:
        for choice in event.pop("choices", None) or ():
            index = count(choice.pop("index", None)) or 0
            if index not in self._choices:
                self._choices[index] = self._new(index)
            mine = self._choices[index]
            if self._chat:
                _grow_message(mine["message"], choice.pop("delta", None) or {})
            for name, value in choice.items():
                grow(mine, name, value)
        for name, value in event.items():
            if value is not None:
                self._head[name] = value

    def _new(self, index: int) -> dict[str, Any]:
        if not self._chat:
            return {"index": index, "text": "", **dict.fromkeys(_CHOICE_OF_TEXT)}
        message = {"role": "assistant", "content": None, **dict.fromkeys(_NULL_OF_MESSAGES)}
        return {"index": index, "message": message, **dict.fromkeys(_CHOICE)}

    def _whole(self) -> dict[str, Any]:
        head = self._head
        choices = [self._choices[index] for index in sorted(self._choices)]
        for choice in choices:
            calls = self._chat and _finish_message(choice["message"])
            # Some servers end a stream with only [DONE], but clients need a finish reason in a whole answer.
            choice["finish_reason"] = choice["finish_reason"] or ("tool_calls" if calls else "stop")
        usage = head.pop("usage", None)
        told = {"usage": dict.fromkeys(_NULL_OF_USAGE) | usage} if isinstance(usage, dict) else {}
        return {**head, "object": "chat.completion" if self._chat else "text_completion", "choices": choices, **told}


def _grow_message(message: dict[str, Any], delta: dict[str, Any]) -> None:
    message["role"] = delta.pop("role", None) or message["role"]
    for call in delta.pop("tool_calls", None) or ():
        calls = message.setdefault("tool_calls", {})
        index = count(call.get("index"))
        # Parts of tool calls without an index: a part with an id begins another call, and a part without an id
        # continues the latest.
        index = (len(calls) if call.get("id") else max(0, len(calls) - 1)) if index is None else index
        mine = calls.setdefault(index, {"id": None, "type": "function", "function": {}})
        function = call.get("function") or {}
        mine["id"] = mine["id"] or call.get("id")
        mine["type"] = call.get("type") or mine["type"]
        mine["function"]["name"] = mine["function"].get("name") or function.get("name")
        grow(mine["function"], "arguments", function.get("arguments") or "")
    for name, value in delta.items():
        grow(message, name, value)


def _finish_message(message: dict[str, Any]) -> bool:
    """Convert an assembled message to its final form. Returns whether it calls tools."""
    calls = message.get("tool_calls")
    if isinstance(calls, dict):
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    if message["content"] == "" and (calls or message["reasoning"] or message.get("reasoning_content")):
        message["content"] = None  # the only content that came was "", together with the role
    return bool(calls)
