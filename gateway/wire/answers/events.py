"""What a streamed answer says about itself: tokens, finish, usage, errors."""

from __future__ import annotations

from enum import IntFlag
from typing import Final

from msgspec import Raw

from gateway.core.request import Endpoint, Reason
from gateway.wire.answers.cut import CutEnding, end_of_completion, end_of_message, end_of_response
from gateway.wire.answers.draft import Draft
from gateway.wire.answers.failure import EngineError, engine_error
from gateway.wire.answers.oddity import Oddity
from gateway.wire.answers.shapes import (
    ABSENT,
    EMPTY,
    RAW_ABORT,
    UNREADABLE,
    Chunk,
    Delta,
    Inner,
    LooseChunk,
    Stop,
    Typed,
    decode_chunk,
    decode_inner,
    decode_loose_chunk,
    decode_stop,
    decode_typed,
)
from gateway.wire.answers.sse import data_of
from gateway.wire.answers.whole import Counted, read_usage, usage_at_end
from gateway.wire.body.form import FORMS
from gateway.wire.http.lines import LF

_TEXT: Final = b'"delta":{"content":"'
QUOTE: Final = 0x22
_DONE: Final = b"[DONE]"


class EventKind(IntFlag):
    """What one event means; several may hold."""

    OTHER = 0
    CONTENT = 1
    """It carries output: text, reasoning, a tool call."""
    FINISH = 2
    """The generation says why it ended."""
    USAGE_ONLY = 4
    """It has nothing but token counts."""
    DONE = 8
    """The protocol's own end of stream."""
    ERROR = 16


class StreamReader:
    """Follows the events of one streamed answer. Subclasses know one API each. Reading never raises."""

    __slots__ = (
        "aborted",
        "done",
        "error",
        "finished",
        "model",
        "oddity",
        "output_tokens",
        "prompt_tokens",
        "tokens_seen",
    )

    def __init__(self) -> None:
        self.finished = False
        self.aborted = False
        self.done = False
        self.error: EngineError | None = None
        self.oddity: Oddity | None = None
        """The kind of the latest oddity, for a caller that takes note of it and sets it back."""
        self.model = b""
        """The engine's name for the model, as JSON."""
        self.prompt_tokens: int | None = None
        self.output_tokens: int | None = None
        self.tokens_seen = 0
        """Events with content: an estimate of output tokens for engines that send no usage."""

    @property
    def complete(self) -> bool:
        """Whether the answer says that it is over: by a finish reason, its API's last event, or `[DONE]`."""
        return (self.finished or self.done) and not self.aborted and self.error is None

    @property
    def choices_over(self) -> int:
        """How many of the choices have said why they ended; an API that has no choices has one."""
        return 1 if self.finished else 0

    def read(self, event: bytes) -> EventKind:
        """Take note of one whole event. One that cannot be read counts as output, since it is passed on."""
        payload = data_of(event)
        if payload[:6] == _DONE:
            self.done = True
            return EventKind.DONE
        if not payload:
            return EventKind.OTHER
        try:
            return self._read(event, payload)
        except UNREADABLE:
            pass
        try:
            # Bytes that are not UTF-8 are no reason to miss an error or an end beside them.
            return self._read(event, payload.decode("utf-8", "replace").encode())
        except UNREADABLE:
            return self._unreadable()

    def is_whole(self, event: bytes) -> bool:
        """Whether an event of which no end came has all of its data."""
        payload = data_of(event)
        if payload.startswith(_DONE):
            return True
        try:
            decode_loose_chunk(payload)
        except UNREADABLE:
            return False
        return True

    def read_long(self, head: bytes, tail: bytes) -> None:
        """Take note of an event that was too long to be parsed, by its first and last bytes."""
        self.oddity = Oddity.LONG_EVENT
        self.tokens_seen += 1

    def _unreadable(self) -> EventKind:
        self.oddity = Oddity.UNREADABLE_EVENT
        self.tokens_seen += 1
        return EventKind.CONTENT

    def _read(self, event: bytes, payload: bytes) -> EventKind:
        """Read an event that has data and is not `[DONE]`. Raises one of `UNREADABLE` if its API has no such event."""
        raise NotImplementedError

    def plain(self, data: bytes, start: int) -> bool:
        """Whether the rest of `data` is one event, of output and nothing else, and the end of a chunk; told by bytes.

        False may also mean that it takes a proper look. JSON escapes quotes inside strings, so no model output can
        contain the byte sequences that are looked for.
        """
        raise NotImplementedError

    def remember(self) -> None:
        """Keep whatever `cut_short` will need."""

    def cut_short(self, why: Reason, prompt_tokens: int, choices: int, wants_usage: bool) -> list[bytes]:
        """The events that end the stream here, as one that is incomplete; none if what came has not the form for it.

        `prompt_tokens` stands in where the engine told none; `choices` is how many were asked for.
        """
        prompt = prompt_tokens if self.prompt_tokens is None else self.prompt_tokens
        cut = CutEnding(why, prompt, max(self.tokens_seen, self.output_tokens or 0))
        try:
            return self._cut_short(cut, choices, wants_usage)
        except (ValueError, LookupError, TypeError, AttributeError):
            return []

    def _cut_short(self, cut: CutEnding, choices: int, wants_usage: bool) -> list[bytes]:
        raise NotImplementedError

    def _take_usage(self, told: Counted) -> None:
        # Anthropic's last event repeats the prompt's count as 0 or not at all.
        self.prompt_tokens = told.prompt or self.prompt_tokens
        if told.output is not None:
            self.output_tokens = told.output
        if told.odd:
            self.oddity = Oddity.USAGE

    def _failed(self, error: Raw) -> EventKind:
        self.error = engine_error(error)
        return EventKind.ERROR


class CompletionReader(StreamReader):
    """Chat and plain completions: anonymous `data:` events, `finish_reason`, then usage, then `[DONE]`."""

    __slots__ = ("_after", "_before", "_first", "_over")

    def __init__(self) -> None:
        super().__init__()
        self._first = b""
        """Data of the first chunk."""
        self._over: list[int] = []
        """The choices that have ended."""
        self._before = self._after = b""
        """What stood around the text of an event: engines write all events of a stream alike."""

    @property
    def choices_over(self) -> int:
        return len(set(self._over))

    def plain(self, data: bytes, start: int) -> bool:
        # Slices, because a method of `bytes` takes compiled code longer than both of them.
        before, after = self._before, self._after
        text, end = start + len(before), len(data) - len(after)
        if before and text < end and data[start:text] == before and data[end:] == after:
            said = data[text:end]
            if QUOTE not in said and LF not in said:
                return True
        # `find` and not `in`, which first raises and clears a TypeError for bytes in bytes (CPython 3.11 to 3.13).
        # Of several choices in one event some may have finished.
        return (
            _is_one(data, start)
            and data.find(b'"finish_reason":null') >= 0
            and data.find(b'"usage"') < 0
            and data.find(b'"error"') < 0
            and data.find(b'"finish_reason":"') < 0
            # Empty deltas are no output, and some servers send them as pings.
            and data.find(b'"content":""') < 0
            and data.find(b'"text":""') < 0
            and data.find(b'"delta":{}') < 0
            and data.find(b'"delta":{"content":null}') < 0
            and data.find(b'"delta":{"role":"assistant"}') < 0
            and data.find(b'"tool_calls":[]') < 0
        )

    def _learn(self, event: bytes) -> None:
        """Remember what stands around the text of `event`, which is output and nothing else."""
        text = event.find(_TEXT) + len(_TEXT)
        end = event.find(b'"', text)
        if text < len(_TEXT) or event.find(b"\\", text, end) >= 0:
            return
        self._before, self._after = event[:text], event[end:] + b"\r\n"

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
            return EventKind.USAGE_ONLY if has_usage else EventKind.OTHER
        kind = EventKind.OTHER
        self._first = self._first or payload
        for choice in chunk.choices:
            if bytes(choice.text) not in EMPTY or (choice.delta is not None and _has_output(choice.delta)):
                kind |= EventKind.CONTENT
            reason = bytes(choice.finish_reason)
            if reason not in EMPTY:
                kind |= EventKind.FINISH
                self._over.append(_index(choice.index, 0))
                if reason == RAW_ABORT:
                    self.aborted = True
                else:
                    self.finished = True
        if kind & EventKind.CONTENT:
            self.tokens_seen += 1
            if kind == EventKind.CONTENT and not has_usage and len(chunk.choices) == 1 and not self._before:
                self._learn(event)
        return kind

    def _read_loosely(self, payload: bytes) -> EventKind:
        """Read an event whose choices have another form: an error or a usage in it counts all the same."""
        chunk: LooseChunk = decode_loose_chunk(payload)
        if bytes(chunk.error) not in EMPTY:
            return self._failed(chunk.error)
        if bytes(chunk.usage) not in EMPTY:
            self._take_usage(read_usage(chunk.usage))
        return self._unreadable()

    def _cut_short(self, cut: CutEnding, choices: int, wants_usage: bool) -> list[bytes]:
        return end_of_completion(self._first, self._over, choices, cut, wants_usage) if self._first else []


class TypedReader(StreamReader):
    """What the Messages and Responses APIs share: every event carries its type."""

    __slots__ = ()
    delta = b""
    """How the event that carries text begins,"""
    empty = b""
    """and what is in it where the text is empty."""

    def plain(self, data: bytes, start: int) -> bool:
        return data.startswith(self.delta, start) and _is_one(data, start) and data.find(self.empty, start) < 0

    def read(self, event: bytes) -> EventKind:
        if event.startswith(self.delta) and event.find(self.empty) < 0:
            self.tokens_seen += 1
            return EventKind.CONTENT
        return super().read(event)

    def _read(self, event: bytes, payload: bytes) -> EventKind:
        typed: Typed = decode_typed(payload)
        if bytes(typed.error) not in EMPTY:
            # vLLM's own errors come without a type, also where every event has one.
            return self._failed(typed.error)
        return self._take(typed)

    def _content(self, delta: Raw) -> EventKind:
        """The kind of an event that carries a delta: an empty one is no output."""
        raw = bytes(delta)
        if raw == b'""' or raw.endswith(self.empty):
            return EventKind.OTHER
        self.tokens_seen += 1
        return EventKind.CONTENT

    def _take(self, typed: Typed) -> EventKind:
        raise NotImplementedError


class MessagesReader(TypedReader):
    """Anthropic Messages: `message_start` ... `message_delta` with the stop reason, `message_stop`."""

    __slots__ = ("_begun", "_block", "_stopped")
    delta = b"event: content_block_delta\n"
    empty = b':""}'

    def __init__(self) -> None:
        super().__init__()
        self._begun = False
        self._block = -1
        """The content block that is open; below 0: none is."""
        self._stopped = False
        """Whether it was said why it ended."""

    def _take(self, typed: Typed) -> EventKind:
        match typed.type:
            case "error":
                return self._failed(typed.error)
            case "content_block_delta":
                return self._content(typed.delta)
            case "content_block_start":
                self._block = _index(typed.index, -1)
            case "content_block_stop":
                self._block = -1
            case "message_start":
                self._begun = True
                if bytes(typed.message) not in EMPTY:
                    inner: Inner = decode_inner(typed.message)
                    self.model = bytes(inner.model)
                    self._take_usage(read_usage(inner.usage))
            case "message_delta":
                self._take_usage(read_usage(typed.usage))
                self._ends(typed.delta)
                self._stopped = True
                return EventKind.FINISH
            case "message_stop":
                self.finished = self.done = True
                return EventKind.DONE
        return EventKind.OTHER

    def _ends(self, delta: Raw) -> None:
        """A reason to stop is an end; null is what vLLM gives when it is told to stop."""
        if bytes(delta) in EMPTY:
            return
        stop: Stop = decode_stop(delta)
        self.aborted = stop.stop_reason is None
        self.finished = self.finished or isinstance(stop.stop_reason, str)

    def _cut_short(self, cut: CutEnding, choices: int, wants_usage: bool) -> list[bytes]:
        return end_of_message(self._block, self._stopped, cut) if self._begun else []


_LAST_EVENTS: Final = (b"event: response.completed", b"event: response.incomplete")


class ResponsesReader(TypedReader):
    """OpenAI Responses: `response.created` ... `response.completed`, `.incomplete` or `.failed`."""

    __slots__ = ("_draft",)
    delta = b"event: response.output_text.delta\n"
    empty = b'"delta":""'

    def __init__(self) -> None:
        super().__init__()
        self._draft: Draft | None = None

    def remember(self) -> None:
        self._draft = Draft()

    def plain(self, data: bytes, start: int) -> bool:
        if not super().plain(data, start):
            return False
        if self._draft is not None:
            self._draft.add(data[start:])
        return True

    def read(self, event: bytes) -> EventKind:
        if self._draft is not None:
            self._draft.add(event)
        return super().read(event)

    def _cut_short(self, cut: CutEnding, choices: int, wants_usage: bool) -> list[bytes]:
        return [] if self._draft is None else end_of_response(self._draft, cut)

    def _take(self, typed: Typed) -> EventKind:
        if typed.response is not None:
            self.model = self.model or bytes(typed.response.model)
        match typed.type:
            case "response.completed" | "response.incomplete":
                self.finished = self.done = True
                if typed.response is not None:
                    self._take_usage(read_usage(typed.response.usage))
                return EventKind.FINISH
            case "response.failed":
                return self._failed(ABSENT if typed.response is None else typed.response.error)
            case "error":
                # This API's own has no object: code and message stand in the event.
                code, message = bytes(typed.code) or b"null", bytes(typed.message) or b"null"
                return self._failed(Raw(b'{"code":%b,"message":%b}' % (code, message)))
        return self._content(typed.delta) if typed.type.endswith(".delta") else EventKind.OTHER

    def read_long(self, head: bytes, tail: bytes) -> None:
        super().read_long(head, tail)
        # The last event repeats the whole answer, so that of all events it may well be the long one.
        if head.startswith(_LAST_EVENTS):
            self.finished = self.done = True
            self._take_usage(usage_at_end(tail))


READERS: Final[dict[Endpoint, type[StreamReader]]] = {
    Endpoint.CHAT: CompletionReader,
    Endpoint.COMPLETIONS: CompletionReader,
    Endpoint.RESPONSES: ResponsesReader,
    Endpoint.MESSAGES: MessagesReader,
    **dict.fromkeys(sorted(FORMS), CompletionReader),
}


def _index(raw: Raw, otherwise: int) -> int:
    """The place of a choice or a content block, as it stands in JSON."""
    text = bytes(raw)
    return int(text) if len(text) < 10 and text.isdigit() else otherwise


def _is_one(data: bytes, start: int) -> bool:
    """Whether the chunk that ends with `data` ends with an event, and no other ends from `start` on."""
    return data.find(b"\n\n", start) == len(data) - 4


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
