"""Writes bytes to one client. While the client does not read, the bytes are kept here.

writing ──the kernel takes no more──> blocked ──more than WRITE_HIGH_WATER_BYTES wait──> full
   ^                                     │                                                │
   └────────the client has read──────────┴────────────────────────────────────────────────┘
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Final

from gateway.core.results import Callback, Reason

WRITE_HIGH_WATER_BYTES: Final = 16 * 1024
"""While more bytes than this wait for a client, the connection to its replica is not read. The last read may raise them
to 64 KiB.
"""
# uvloop needs nearly 1 kB for each piece that it could not write. So beyond this many bytes, pieces wait here instead.
TRANSPORT_HIGH_WATER_BYTES: Final = 4 * 1024


class AnswerUnderWay(ABC):
    """An answer for which a client connection waits, and that does not come from an exchange."""

    __slots__ = ()

    @abstractmethod
    def leave(self, why: Reason) -> None:
        """The client has left, or its connection ends because of a bug."""

    def pause(self) -> None:  # noqa: B027 - an answer that is written as a whole need not pause
        """The client does not read."""

    def resume(self) -> None:  # noqa: B027
        """The client has read what was written."""


class ClientWriter(ABC):
    """The writing side of a client connection. A subclass defines what happens while the client is slow."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self._blocked = False
        """Whether the kernel accepts no more bytes for the client."""
        self._waiting: list[bytes] = []
        """Pieces that wait to be written, in order."""
        self._waiting_bytes = 0
        self.full = False
        """Whether more than `WRITE_HIGH_WATER_BYTES` wait."""
        self._unsent_before = 0
        """Number of unsent bytes at the latest `watch_stall`."""
        self.chunked = True
        """Whether answers without a length are sent in chunks. HTTP/1.0 has no chunks."""

    def write(self, data: bytes) -> None:
        """Send bytes. Ignored if the connection is closing."""
        if self._blocked:
            self._wait(data)
        elif not self.transport.is_closing():
            self.transport.write(data)

    def hand_on(self) -> None:
        """Give all waiting pieces to the transport, as one piece."""
        if self._waiting:
            waiting = b"".join(self._waiting)
            self._waiting.clear()
            self._waiting_bytes = 0
            self.transport.write(waiting)

    @abstractmethod
    def closing_line(self) -> bytes:
        """The header line that the connection closes after this answer, because the process ends soon; else empty."""

    @property
    def unsent_bytes(self) -> int:
        """Number of bytes that the kernel has not taken yet."""
        return self._waiting_bytes + self.transport.get_write_buffer_size()

    @property
    def has_taken_some(self) -> bool:
        """Whether the client has read 16 KiB since `watch_stall`. If it has, it is slow but not stalled."""
        return self._unsent_before - self.unsent_bytes >= WRITE_HIGH_WATER_BYTES

    # ---- asyncio.Protocol

    def pause_writing(self) -> None:
        self._blocked = True
        if not self.full and self.unsent_bytes > WRITE_HIGH_WATER_BYTES:
            try:
                self._fill()
            except Exception as error:  # noqa: BLE001 - a bug costs this connection
                self.broke(Callback.CLIENT, error)

    def resume_writing(self) -> None:
        self._blocked = False
        try:
            self._drained()
        except Exception as error:  # noqa: BLE001 - a bug costs this connection
            self.broke(Callback.CLIENT, error)

    # ---- for the subclass

    def watch_stall(self) -> None:
        """Start the deadline of `write_stall_s` seconds, in which the client must read something."""
        self._unsent_before = self.unsent_bytes

    @abstractmethod
    def held_up(self) -> None:
        """Called when the buffer is full: reading from the replica must stop."""

    @abstractmethod
    def caught_up(self) -> None:
        """Called when the buffer has room again."""

    @abstractmethod
    def broke(self, callback: Callback, error: Exception) -> None:
        """A callback of the gateway raised an exception while it handled this connection."""

    # ---- inside

    def _wait(self, data: bytes) -> None:
        """Keep a piece until the client has read the pieces before it."""
        if not self.transport.is_closing():
            self._waiting.append(data)
            self._waiting_bytes += len(data)
            if not self.full and self.unsent_bytes > WRITE_HIGH_WATER_BYTES:
                self._fill()

    def _fill(self) -> None:
        self.full = True
        self.watch_stall()
        self.held_up()

    def _drained(self) -> None:
        """The transport accepts more bytes."""
        if self.transport.is_closing():
            self.full = False
            # Little is left to send. The rest needs a deadline, too: otherwise the connection could stay open for ever.
            self.watch_stall()
            return
        self.hand_on()
        if not self.full:
            return
        if self._blocked and self.unsent_bytes > WRITE_HIGH_WATER_BYTES:
            self.watch_stall()  # the client has read some bytes
            return
        self.full = False
        self.caught_up()
