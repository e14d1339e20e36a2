"""Reads facts from a streamed answer: tokens, finish reasons, usage, errors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import IntFlag
from typing import Any, Final

import orjson
from msgspec import Raw

from gateway.core.results import Reason
from gateway.wire.answers.cut import CutEnding
from gateway.wire.answers.failure import EngineError, engine_error
from gateway.wire.answers.oddity import Oddity
from gateway.wire.answers.shapes import (
    EMPTY,
    UNREADABLE,
    Typed,
    decode_loose_chunk,
    decode_typed,
)
from gateway.wire.answers.sse import data_of
from gateway.wire.answers.whole import Counted

_DONE: Final = b"[DONE]"


class EventKind(IntFlag):
    """Meaning of one event; several flags may be set."""

    OTHER = 0
    CONTENT = 1
    """The event has output: text, reasoning, or a tool call."""
    FINISH = 2
    """The event has a finish reason."""
    USAGE_ONLY = 4
    """The event has only token counts."""
    DONE = 8
    """The event is the API's end of the stream."""
    ERROR = 16


class StreamReader(ABC):
    """Reads the events of one streamed answer. Each subclass is for one API. Reading never raises."""

    __slots__ = (
        "aborted",
        "cached_tokens",
        "done",
        "error",
        "finished",
        "model",
        "oddity",
        "output_tokens",
        "prompt_tokens",
        "reasoning_tokens",
        "response_id",
        "tokens_seen",
    )

    def __init__(self) -> None:
        self.finished = False
        self.aborted = False
        self.done = False
        self.error: EngineError | None = None
        self.oddity: Oddity | None = None
        """Kind of the latest oddity, or None. The caller reports it and resets it to None."""
        self.model = b""
        """The engine's name for the model, as JSON; empty until known."""
        self.response_id = b""
        """The id of a response that can be continued, as JSON; empty until known."""
        self.prompt_tokens: int | None = None
        self.output_tokens: int | None = None
        self.cached_tokens: int | None = None
        """Prompt tokens that the engine found in its prefix cache; None if it does not report them."""
        self.reasoning_tokens: int | None = None
        """The part of the output that is reasoning; None if the engine does not report it."""
        self.tokens_seen = 0
        """Number of events with content: an estimate of output tokens for engines that send no usage."""

    @property
    def complete(self) -> bool:
        """Whether the answer has announced its end by a finish reason, by the last event of its API, or by `[DONE]`."""
        return (self.finished or self.done) and not self.aborted and self.error is None

    @property
    def choices_over(self) -> int:
        """Number of choices with a finish reason. The answer of an API without choices counts as one choice."""
        return 1 if self.finished else 0

    def read(self, event: bytes) -> EventKind:
        """Read one whole event. An unreadable event counts as output, because it is forwarded."""
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
            # Invalid UTF-8 must not hide an error or an end in the same event.
            return self._read(event, payload.decode("utf-8", "replace").encode())
        except UNREADABLE:
            return self._unreadable()

    def spoken(self, event: bytes) -> str:
        """The text that an event adds to the answer, the reasoning, a refusal, or the arguments of a tool call.

        Empty if the event adds no text or cannot be read. `read` reports an unreadable event.
        """
        try:
            value = orjson.loads(data_of(event))
        except orjson.JSONDecodeError:
            return ""
        return self._spoken(value) if type(value) is dict else ""

    @abstractmethod
    def _spoken(self, value: dict[str, Any]) -> str: ...

    def is_whole(self, event: bytes) -> bool:
        """Whether an event without its final blank line has all of its data."""
        payload = data_of(event)
        if payload.startswith(_DONE):
            return True
        try:
            decode_loose_chunk(payload)
        except UNREADABLE:
            return False
        return True

    def read_long(self, head: bytes, tail: bytes) -> None:
        """Read an event that is too long to be parsed, from its first and last bytes."""
        self.oddity = Oddity.LONG_EVENT
        self.tokens_seen += 1

    def _unreadable(self) -> EventKind:
        self.oddity = Oddity.UNREADABLE_EVENT
        self.tokens_seen += 1
        return EventKind.CONTENT

    @abstractmethod
    def _read(self, event: bytes, payload: bytes) -> EventKind:
        """Read an event that has data and is not `[DONE]`. Raises one of `UNREADABLE` if its API has no such event."""

    @abstractmethod
    def plain(self, data: bytes, start: int) -> bool:
        """Whether the bytes of `data` from `start` on are exactly one event with nothing but output, followed by the
        end of a chunk.

        False means that the event must be parsed. Quotes inside JSON strings are escaped, so no model output can
        contain the byte sequences that are searched for.
        """

    def remember(self) -> None:  # noqa: B027 - not every reader needs it
        """Keep the parts of events that `cut_short` needs."""

    def cut_short(self, why: Reason, prompt_tokens: int, choices: int, wants_usage: bool) -> list[bytes]:
        """Events that end the stream here as incomplete; an empty list if too little has come for a proper end.

        `prompt_tokens`: estimate for the usage, if the engine sent none. `choices`: the requested number of choices.
        """
        prompt = prompt_tokens if self.prompt_tokens is None else self.prompt_tokens
        cut = CutEnding(why, prompt, max(self.tokens_seen, self.output_tokens or 0))
        try:
            return self._cut_short(cut, choices, wants_usage)
        except (ValueError, LookupError, TypeError, AttributeError):
            return []

    @abstractmethod
    def _cut_short(self, cut: CutEnding, choices: int, wants_usage: bool) -> list[bytes]: ...

    def _take_usage(self, told: Counted) -> None:
        # Anthropic's last event has a prompt count of 0 or none, so the earlier count is kept.
        self.prompt_tokens = told.prompt or self.prompt_tokens
        if told.output is not None:
            self.output_tokens = told.output
        if told.cached is not None:
            self.cached_tokens = told.cached
        if told.reasoning is not None:
            self.reasoning_tokens = told.reasoning
        if told.odd:
            self.oddity = Oddity.USAGE

    def _failed(self, error: Raw) -> EventKind:
        self.error = engine_error(error)
        return EventKind.ERROR


class TypedReader(StreamReader):
    """Reader for the Messages and Responses APIs, whose events have a type."""

    __slots__ = ()
    delta = b""
    """The first bytes of an event with text."""
    empty = b""
    """The bytes that follow `delta` in an event with empty text."""

    def plain(self, data: bytes, start: int) -> bool:
        return data.startswith(self.delta, start) and is_one(data, start) and data.find(self.empty, start) < 0

    def read(self, event: bytes) -> EventKind:
        if event.startswith(self.delta) and event.find(self.empty) < 0:
            self.tokens_seen += 1
            return EventKind.CONTENT
        return super().read(event)

    def _read(self, event: bytes, payload: bytes) -> EventKind:
        typed: Typed = decode_typed(payload)
        if bytes(typed.error) not in EMPTY:
            # vLLM's own errors have no type, even in APIs whose events all have one.
            return self._failed(typed.error)
        return self._take(typed)

    def _content(self, delta: Raw) -> EventKind:
        """The kind of an event with this delta. An empty delta is no output."""
        raw = bytes(delta)
        if raw == b'""' or raw.endswith(self.empty):
            return EventKind.OTHER
        self.tokens_seen += 1
        return EventKind.CONTENT

    @abstractmethod
    def _take(self, typed: Typed) -> EventKind: ...

    def _spoken(self, value: dict[str, Any]) -> str:
        delta = value.get("delta")
        return delta if type(delta) is str else text_in(delta, ("text", "thinking", "partial_json"))


def text_in(delta: Any, names: tuple[str, ...]) -> str:
    """The joined texts of the fields `names` of an object; empty for other values."""
    return "".join([text for name in names if type(text := delta.get(name)) is str]) if type(delta) is dict else ""


def index_in(raw: Raw, otherwise: int) -> int:
    """The index of a choice or a content block, as written in JSON."""
    text = bytes(raw)
    return int(text) if len(text) < 10 and text.isdigit() else otherwise


def is_one(data: bytes, start: int) -> bool:
    """Whether `data` ends with an event and its chunk, and from `start` on contains no end of another event."""
    return data.find(b"\n\n", start) == len(data) - 4
