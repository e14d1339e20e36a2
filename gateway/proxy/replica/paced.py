"""Base of a connection to a replica: bounds the work of one turn of the loop, and stops reading meanwhile."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from typing import Final, cast

STEP_BYTES: Final = 2048
"""A read up to this size is handled at once: it has at most 256 events (of 8 bytes, `data:1` and two line ends)."""
LINE_ENDS: Final = 512
"""A turn of the loop ends after the step with this many line ends. An event has at least two, and one of a few bytes
costs some 10 us, so a turn has at most 512 events and takes some 5 ms.
"""


class PacedConnection(asyncio.Protocol):
    """Handles a read of many lines in parts, so that other requests need not wait for all of its events.

    The socket is read if nothing waits and the client is not slow.
    """

    __slots__ = ("_closed_by", "_is_closed", "_paused", "_reads", "_turn", "_waiting", "transport")

    def __init__(self) -> None:
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self._paused = False
        self._reads = True
        """Whether the socket is read."""
        self._waiting = b""
        """The part of the latest read that later turns of the loop will handle."""
        self._turn: asyncio.Handle | None = None
        """The next of these turns."""
        self._is_closed = False
        self._closed_by: Exception | None = None
        """The error that closed the connection, if any."""

    @abstractmethod
    def _received(self, data: bytes) -> None:
        """Handle bytes that `data_received` has passed to `_take`."""

    @abstractmethod
    def _take_close(self, exc: Exception | None) -> None:
        """The connection is closed, and all bytes before its end are handled."""

    @property
    def is_paused(self) -> bool:
        """Whether it is not being read, because the client is slow."""
        return self._paused

    def resume(self) -> None:
        """Read again."""
        self._paused = False
        self._read_or_wait()

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closed, self._closed_by = True, exc
        if not self._waiting:
            self._take_close(exc)

    # ---- turns

    def _take(self, data: bytes) -> None:
        """Handle as much of a read as one turn of the loop may."""
        if len(data) <= STEP_BYTES and not self._waiting:
            self._received(data)
            return
        data = self._waiting + data
        end = _end_of_turn(data)
        self._waiting = data[end:]
        self._received(data[:end])
        if self._waiting:
            self._read_or_wait()

    def _go_on(self) -> None:
        """Handle more of the read, and then the end of the connection if it came meanwhile."""
        self._turn = None
        if self._paused or not self._waiting:
            return
        self.data_received(b"")
        if self._waiting:
            return
        if self._is_closed:
            self._take_close(self._closed_by)
        else:
            self._read_or_wait()

    def _read_or_wait(self) -> None:
        """Read the socket, unless a part of the latest read waits for its turn, or the client is slow."""
        if self._waiting and not self._paused and self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._go_on)
        reads = not self._paused and not self._waiting
        if reads is self._reads or self.transport.is_closing():
            return
        self._reads = reads
        if reads:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def _abort(self) -> None:
        """Close the connection at once, and drop what waits."""
        self._waiting = b""
        self.transport.abort()


def _end_of_turn(data: bytes) -> int:
    """Index in `data` at which one turn of the loop ends."""
    ends = 0
    for end in range(STEP_BYTES, len(data), STEP_BYTES):
        ends += data.count(b"\n", end - STEP_BYTES, end) + data.count(b"\r", end - STEP_BYTES, end)
        if ends >= LINE_ENDS:
            return end
    return len(data)
