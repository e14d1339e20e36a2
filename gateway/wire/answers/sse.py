"""Splits server-sent events (SSE) as bytes, and reads their data."""

from __future__ import annotations

import re
from typing import Final

MAX_EVENT_BYTES: Final = 1024 * 1024
"""A longer event of a stream is forwarded without being parsed."""
# Matches two line ends of any kind, and all comments and line ends that follow: a flood of them is one event. A CR at
# the end of the data may be the first half of a CRLF, so it is no match.
_LINE_END: Final = rb"(?:\r\n|\n|\r(?!\n)(?=[\s\S]))"
_EVENT_END: Final = re.compile(
    rb"(?:\r\n|\n|\r(?!\n))" + _LINE_END + rb"(?:\n+|" + _LINE_END + rb"|:[^\r\n]*" + _LINE_END + rb")*"
)
_MAX_END: Final = 4
_SHOWN_OF_LONG: Final = 1024
"""This many bytes at the beginning of a long event are parsed, and as many at its end."""
_BOM: Final = b"\xef\xbb\xbf"
_FIELDS: Final = (b"data:", b"event:", b"id:", b"retry:", b":")
MAX_SNIFFED: Final = 16
"""After this many bytes, it is clear whether a body is a stream of events."""


class EventSplitter:
    """Splits a byte stream into whole events, each with the blank line that ends it.

    An event longer than `max_bytes` is not kept. Its bytes are in `passed`, piece by piece.
    """

    __slots__ = ("_end_of_tail", "_max_bytes", "_size", "_tail", "clean", "is_long", "long_head", "long_tail", "passed")

    def __init__(self, max_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._tail: list[bytes] = []
        self._size = 0
        self._end_of_tail = b""
        self.clean = True
        """Whether the bytes so far end with the end of an event."""
        self.is_long = False
        """Whether a long event has begun and has not ended."""
        self.passed = b""
        """The part of a long event in the latest `feed`. It comes before the events that `feed` returned."""
        self.long_head = self.long_tail = b""
        """The first and the latest bytes of the latest long event."""

    def feed(self, piece: bytes) -> list[bytes]:
        """The events that `piece` completes."""
        if self.clean and piece.endswith(b"\n\n") and piece.find(b"\r") < 0 and piece.find(b"\n\n") == len(piece) - 2:
            return [piece]
        if self._size > self._max_bytes:
            piece = self._pass(piece)
        # The last bytes of the tail are searched together with `piece`, because the end of an event may be split over
        # two pieces.
        seam = self._end_of_tail + piece
        if self.is_long or _EVENT_END.search(seam) is None:
            if not self.is_long and piece:
                self._keep(piece, seam)
            return []
        data = piece if not self._tail else b"".join((*self._tail, piece))
        events = []
        start = 0
        for match in _EVENT_END.finditer(data):
            events.append(data[start : match.end()])
            start = match.end()
        self._drop()
        if start < len(data):
            rest = data[start:]
            self._keep(rest, rest)
        return events

    def take_passed(self) -> bytes:
        """Return `passed`, and empty it."""
        passed, self.passed = self.passed, b""
        return passed

    def rest(self) -> bytes:
        """Return the unfinished event, and forget it. It is empty for a long event, which was already forwarded."""
        rest = b"".join(self._tail)
        self._drop()
        return rest

    def _keep(self, piece: bytes, seam: bytes) -> None:
        self._tail.append(piece)
        self._size += len(piece)
        self._end_of_tail = seam[1 - _MAX_END :]
        self.clean = False

    def _drop(self) -> None:
        self._tail.clear()
        self._size = 0
        self._end_of_tail = b""
        self.clean = True

    def _pass(self, piece: bytes) -> bytes:
        """Add the bytes of a long event to `passed`. Returns the part of `piece` after the event's end."""
        seam = self._end_of_tail + piece
        found = _EVENT_END.search(seam)
        upto = len(piece) if found is None else found.end() - len(self._end_of_tail)
        before = b"".join(self._tail)
        self.passed = before + piece[:upto]
        if not self.is_long:
            self.long_head, self.long_tail = before[:_SHOWN_OF_LONG], b""
        self.long_tail = (self.long_tail + self.passed)[-_SHOWN_OF_LONG:]
        self._tail.clear()
        self.is_long = found is None
        if found is None:
            self._end_of_tail = seam[1 - _MAX_END :]
        else:
            self._drop()
        return piece[upto:]


def data_of(event: bytes) -> bytes:
    """The joined `data:` lines of an event."""
    if event.startswith(b"data: ") and event.find(b"\n") == len(event) - 2 and event.find(b"\r") < 0:
        return event[6:-2]
    if event.find(b"data:") < 0:
        return b""  # perhaps thousands of blank lines and comments
    if event.startswith(_BOM):
        event = event[len(_BOM) :]
    lines = [line[5:].removeprefix(b" ") for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines)


def looks_like_events(beginning: bytes) -> bool:
    """Whether a body with this beginning is a stream of events, whatever its content type says."""
    return beginning.removeprefix(_BOM).lstrip(b"\r\n").startswith(_FIELDS)
