"""Assembles a stream into the whole answer that the engine would have given without streaming.

Fields that are null in a whole answer of vLLM 0.32, but missing in its streams, are written as null.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from io import StringIO
from typing import Any, Final

import orjson

from gateway.wire.answers.sse import EventSplitter, data_of
from gateway.wire.body.json_repair import without_halves
from gateway.wire.numbers import finite

MAX_BYTES: Final = 64 * 1024 * 1024
"""Limit on an assembled stream. It is larger than any answer, and small enough for memory."""

MAX_DIGITS: Final = 19
"""An integer with this many digits may not fit into 64 bits; orjson cannot read or write it."""

_SAID_ONCE: Final = ("finish_reason", "stop_reason")
_NO_ANSWER: Final = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""Exceptions that may be raised while a stream of unexpected form is assembled."""


class AssemblyError(Exception):
    """The events do not form an answer."""


class Assembly(ABC):
    """An answer that grows by events. Each subclass is for one API. Methods raise `AssemblyError` if the answer cannot
    be assembled.
    """

    __slots__ = ("_size", "_splitter")

    def __init__(self) -> None:
        self._splitter = EventSplitter(MAX_BYTES)
        self._size = 0

    def add(self, pieces: list[bytes]) -> None:
        """Add more of the stream, in whole events."""
        for piece in pieces:
            self._size += len(piece)
            if self._size > MAX_BYTES:
                raise AssemblyError("the stream is too long to be assembled")
            for event in self._splitter.feed(piece):
                payload = data_of(event)
                if payload and not payload.startswith(b"[DONE]"):
                    self._add(payload)

    def _add(self, payload: bytes) -> None:
        try:
            self._take(_loads(payload))
        except _NO_ANSWER as exc:
            raise AssemblyError(f"an event cannot be assembled with others: {exc!r}") from exc

    def whole(self) -> bytes:
        """The answer, as JSON."""
        try:
            return _dumped(self._whole())
        except _NO_ANSWER as exc:
            raise AssemblyError(f"the stream does not form an answer: {exc!r}") from exc

    @abstractmethod
    def _take(self, event: dict[str, Any]) -> None: ...

    @abstractmethod
    def _whole(self) -> dict[str, Any]: ...


def _dumped(answer: dict[str, Any]) -> bytes:
    """The answer as JSON. Halves of a character that came in two events are joined; a lone half is replaced."""
    try:
        return orjson.dumps(answer, default=_written)
    except TypeError:  # orjson also raises this for more than 254 levels
        return without_halves(json.dumps(answer, default=_written).encode())


def _written(text: object) -> str:
    """Joins a text that is stored in pieces. orjson calls this for values that it cannot write."""
    if not isinstance(text, StringIO):
        raise TypeError(f"there is no way to write a {type(text).__name__}")
    return text.getvalue()


def grow(into: dict[str, Any], name: str, value: Any) -> None:
    """Add `value` to a field. Text and lists are appended, objects are merged by field, other values are replaced. null
    adds nothing.
    """
    old = into.get(name)
    if value is None:
        into.setdefault(name, None)
    elif isinstance(old, StringIO):
        old.write(value)
    elif old and isinstance(old, str) and name not in _SAID_ONCE:
        into[name] = whole = StringIO()
        whole.write(old)
        whole.write(value)
    elif isinstance(old, list):
        old.extend(value)
    elif isinstance(old, dict):
        for inner, more in value.items():
            grow(old, inner, more)
    else:
        into[name] = value


def _loads(payload: bytes) -> dict[str, Any]:
    """The JSON of an event. Bytes that are not UTF-8 are replaced. Numbers that no client could read become null."""
    try:
        event = orjson.loads(payload)
    except orjson.JSONDecodeError:
        text = payload.decode("utf-8", "replace")
        try:
            event = json.loads(text, parse_int=_bounded, parse_float=_finite, parse_constant=_no_number)
        except RecursionError as deep:
            raise ValueError("an event is nested too deeply") from deep
    if type(event) is not dict:
        raise TypeError("an event is not an object")
    return event


def _bounded(digits: str) -> int | None:
    return int(digits) if len(digits) < MAX_DIGITS else None


def _finite(digits: str) -> float | None:
    return finite(float(digits))


def _no_number(_name: str) -> None:
    """Replace NaN and infinity, which JSON does not have, by null."""
