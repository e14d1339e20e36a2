"""What a streamed answer says about itself: tokens, finish, usage, errors."""

from __future__ import annotations

import re
from enum import IntFlag
from typing import Final

from msgspec import Raw

from gateway.core.model import Endpoint, Why
from gateway.wire.cut import Cut, end_of_completion, end_of_message, end_of_response
from gateway.wire.draft import Draft
from gateway.wire.failure import EngineError, engine_error
from gateway.wire.lines import LF
from gateway.wire.shapes import (
    ABORT,
    ABSENT,
    EMPTY,
    DecodeError,
    Delta,
    Typed,
    Usage,
    decode_chunk,
    decode_stop,
    decode_typed,
)
from gateway.wire.whole import counted

MAX_EVENT_BYTES: Final = 1024 * 1024
_TEXT: Final = b'"delta":{"content":"'
QUOTE: Final = 0x22
_EVENT_END: Final = re.compile(rb"\r\n\r\n|\n\n|\r\r")


class StreamError(Exception):
    """The stream is not one of server-sent events with JSON inside."""


class Kind(IntFlag):
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


class EventSplitter:
    """Cuts a byte stream into whole events, each with the blank line that ends it."""

    __slots__ = ("_tail", "clean")

    def __init__(self) -> None:
        self._tail = b""
        self.clean = True
        """Whether everything fed so far was whole events."""

    def feed(self, piece: bytes) -> list[bytes]:
        """The events that `piece` completes. Raises `StreamError` when one grows beyond all measure."""
        if (
            not self._tail
            and piece.endswith(b"\n\n")
            and piece.find(b"\r") < 0
            and piece.find(b"\n\n") == len(piece) - 2
        ):
            return [piece]
        data = self._tail + piece
        events = []
        start = 0
        for match in _EVENT_END.finditer(data):
            events.append(data[start : match.end()])
            start = match.end()
        self._tail = data[start:]
        self.clean = not self._tail
        if len(self._tail) > MAX_EVENT_BYTES:
            raise StreamError("an event is longer than 1 MiB")
        return events


class StreamReader:
    """Follows the events of one streamed answer. Subclasses know one API each."""

    __slots__ = ("aborted", "done", "error", "finished", "output_tokens", "prompt_tokens", "tokens_seen")

    def __init__(self) -> None:
        self.finished = False
        self.aborted = False
        self.done = False
        self.error: EngineError | None = None
        self.prompt_tokens: int | None = None
        self.output_tokens: int | None = None
        self.tokens_seen = 0
        """Events with content: an estimate of output tokens for engines that send no usage."""

    @property
    def complete(self) -> bool:
        """Whether the answer ended as its API says it must; a broken-off one did not."""
        return self.finished and not self.aborted and self.error is None

    def read(self, event: bytes) -> Kind:
        """Take note of one whole event; raises `StreamError` for what is not JSON."""
        payload = data_of(event)
        if payload == b"[DONE]":
            self.done = True
            return Kind.DONE
        return self._read(event, payload) if payload else Kind.OTHER

    def _read(self, event: bytes, payload: bytes) -> Kind:
        """Of an event with data, which is not the protocol's own end."""
        raise NotImplementedError

    def plain(self, data: bytes, start: int) -> bool:
        """Whether the rest of `data` is one event, of output and nothing else, and the end of a chunk; told by bytes.

        False may also mean that it takes a proper look. JSON escapes quotes inside strings, so no model output can
        contain the byte sequences that are looked for.
        """
        raise NotImplementedError

    def remember(self) -> None:
        """Keep whatever `cut_short` will need."""

    def cut_short(self, why: Why, prompt_tokens: int, choices: int, wants_usage: bool) -> list[bytes]:
        """The events that end the stream here, as one that is incomplete; none if what came has not the form for it.

        `prompt_tokens` stands in where the engine told none; `choices` is how many were asked for.
        """
        prompt = prompt_tokens if self.prompt_tokens is None else self.prompt_tokens
        cut = Cut(why, prompt, max(self.tokens_seen, self.output_tokens or 0))
        try:
            return self._cut_short(cut, choices, wants_usage)
        except (ValueError, LookupError, TypeError, AttributeError):
            return []

    def _cut_short(self, cut: Cut, choices: int, wants_usage: bool) -> list[bytes]:
        raise NotImplementedError

    def _usage(self, usage: Usage | None) -> None:
        if usage is None:
            return
        # Anthropic's last event repeats the prompt's count as 0 or not at all.
        prompt, output = counted(usage)
        self.prompt_tokens = prompt or self.prompt_tokens
        if output is not None:
            self.output_tokens = output

    def _failed(self, error: Raw) -> Kind:
        self.error = engine_error(error)
        return Kind.ERROR


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
        )

    def _learn(self, event: bytes) -> None:
        """Remember what stands around the text of `event`, which is output and nothing else."""
        text = event.find(_TEXT) + len(_TEXT)
        end = event.find(b'"', text)
        if text < len(_TEXT) or event.find(b"\\", text, end) >= 0:
            return
        self._before, self._after = event[:text], event[end:] + b"\r\n"

    def _read(self, event: bytes, payload: bytes) -> Kind:
        try:
            chunk = decode_chunk(payload)
        except (DecodeError, RecursionError) as exc:
            raise StreamError(f"an event is not a completion chunk: {exc}") from exc
        if bytes(chunk.error) not in EMPTY:
            return self._failed(chunk.error)
        self._usage(chunk.usage)
        if not chunk.choices:
            return Kind.USAGE_ONLY if chunk.usage is not None else Kind.OTHER
        kind = Kind.OTHER
        self._first = self._first or payload
        for choice in chunk.choices:
            if choice.text or (choice.delta is not None and _has_output(choice.delta)):
                kind |= Kind.CONTENT
            if choice.finish_reason:
                kind |= Kind.FINISH
                self._over.append(choice.index)
                if choice.finish_reason == ABORT:
                    self.aborted = True
                else:
                    self.finished = True
        if kind & Kind.CONTENT:
            self.tokens_seen += 1
            if kind == Kind.CONTENT and chunk.usage is None and len(chunk.choices) == 1 and not self._before:
                self._learn(event)
        return kind

    def _cut_short(self, cut: Cut, choices: int, wants_usage: bool) -> list[bytes]:
        return end_of_completion(self._first, self._over, choices, cut, wants_usage) if self._first else []


class TypedReader(StreamReader):
    """What the Messages and Responses APIs share: every event carries its type."""

    __slots__ = ()
    delta = b""
    """How the event that carries text begins."""

    def plain(self, data: bytes, start: int) -> bool:
        return data.startswith(self.delta, start) and _is_one(data, start)

    def read(self, event: bytes) -> Kind:
        if event.startswith(self.delta):
            self.tokens_seen += 1
            return Kind.CONTENT
        return super().read(event)

    def _read(self, event: bytes, payload: bytes) -> Kind:
        try:
            typed = decode_typed(payload)
        except (DecodeError, RecursionError) as exc:
            raise StreamError(f"an event has no type: {exc}") from exc
        if bytes(typed.error) not in EMPTY:
            # vLLM's own errors come without a type, also where every event has one.
            return self._failed(typed.error)
        return self._take(typed)

    def _take(self, typed: Typed) -> Kind:
        raise NotImplementedError


class MessagesReader(TypedReader):
    """Anthropic Messages: `message_start` ... `message_delta` with the stop reason, `message_stop`."""

    __slots__ = ("_begun", "_block", "_stopped")
    delta = b"event: content_block_delta\n"

    def __init__(self) -> None:
        super().__init__()
        self._begun = False
        self._block = -1
        """The content block that is open; below 0: none is."""
        self._stopped = False
        """Whether it was said why it ended."""

    def _take(self, typed: Typed) -> Kind:
        match typed.type:
            case "error":
                return self._failed(typed.error)
            case "content_block_delta":
                self.tokens_seen += 1
                return Kind.CONTENT
            case "content_block_start":
                self._block = typed.index
            case "content_block_stop":
                self._block = -1
            case "message_start":
                self._begun = True
                if typed.message is not None:
                    self._usage(typed.message.usage)
            case "message_delta":
                self._usage(typed.usage)
                self.aborted = _gave_up(typed.delta)
                self._stopped = True
                return Kind.FINISH
            case "message_stop":
                self.finished = self.done = True
                return Kind.DONE
        return Kind.OTHER

    def _cut_short(self, cut: Cut, choices: int, wants_usage: bool) -> list[bytes]:
        return end_of_message(self._block, self._stopped, cut) if self._begun else []


class ResponsesReader(TypedReader):
    """OpenAI Responses: `response.created` ... `response.completed`, `.incomplete` or `.failed`."""

    __slots__ = ("_draft",)
    delta = b"event: response.output_text.delta\n"

    def __init__(self) -> None:
        super().__init__()
        self._draft: Draft | None = None

    def remember(self) -> None:
        self._draft = Draft()

    def plain(self, data: bytes, start: int) -> bool:
        if not data.startswith(self.delta, start) or not _is_one(data, start):
            return False
        if self._draft is not None:
            self._draft.add(data[start:])
        return True

    def read(self, event: bytes) -> Kind:
        if self._draft is not None:
            self._draft.add(event)
        return super().read(event)

    def _cut_short(self, cut: Cut, choices: int, wants_usage: bool) -> list[bytes]:
        return [] if self._draft is None else end_of_response(self._draft, cut)

    def _take(self, typed: Typed) -> Kind:
        match typed.type:
            case "response.completed" | "response.incomplete":
                self.finished = self.done = True
                if typed.response is not None:
                    self._usage(typed.response.usage)
                return Kind.FINISH
            case "response.failed":
                return self._failed(ABSENT if typed.response is None else typed.response.error)
            case "error":
                return self._failed(typed.error)
        if typed.type.endswith(".delta"):
            self.tokens_seen += 1
            return Kind.CONTENT
        return Kind.OTHER


READERS: Final[dict[Endpoint, type[StreamReader]]] = {
    Endpoint.CHAT: CompletionReader,
    Endpoint.COMPLETIONS: CompletionReader,
    Endpoint.RESPONSES: ResponsesReader,
    Endpoint.MESSAGES: MessagesReader,
}


def _gave_up(delta: Raw) -> bool:
    try:
        return bytes(delta) not in EMPTY and decode_stop(delta).stop_reason is None
    except DecodeError as exc:
        raise StreamError(f"the end of a message cannot be read: {exc}") from exc


def _is_one(data: bytes, start: int) -> bool:
    """Whether the chunk that ends with `data` ends with an event, and no other ends from `start` on."""
    return data.find(b"\n\n", start) == len(data) - 4


def data_of(event: bytes) -> bytes:
    """The joined `data:` lines of an event."""
    if event.startswith(b"data: ") and event.find(b"\n") == len(event) - 2:
        return event[6:-2]
    lines = [line[5:].removeprefix(b" ") for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines)


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
