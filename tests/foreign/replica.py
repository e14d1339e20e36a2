"""A replica at the other end of a fake transport: plays a script in pieces of any size."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final, cast

from tests.foreign.script import Then, chunk

PIECES_AT_ONCE = 16
"""Number of pieces that are sent in one turn of the loop."""


@dataclass(frozen=True, slots=True)
class Play:
    """The bytes of a replica for one request, sent at once, or `after_s` seconds later."""

    pieces: Iterable[bytes]
    then: Then = Then.KEEP
    after_s: float = 0.0
    between_s: float = 0.0
    """Seconds from each piece to the next; 0: as fast as the pieces are read."""


PING: Final = b": ping\n\n"
PING_EVERY_S: Final = 1.0
_NO_SOCKET: Final = SimpleNamespace(setsockopt=lambda *_: None)

Part = Callable[[bytes], Play]
"""The play for a request, of which the body is given."""


class Line(asyncio.Transport):
    """The gateway's end of one connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: asyncio.Protocol, part: Callable[[], Part]) -> None:
        super().__init__()
        self.protocol = protocol
        self._loop = loop
        self._part = part
        self._asked = b""
        self._pieces: list[bytes] = []
        self._at = 0
        self._between_s = 0.0
        self._then = Then.KEEP
        self._turn: asyncio.Handle | None = None
        self.reading = True
        self.closed = False
        self.played = 0

    # ---- asyncio.Transport

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.closed:
            return
        self._asked += bytes(data)
        head, end, rest = self._asked.partition(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        if end and len(rest) >= length:
            self._asked = b""
            self._begin(self._part()(rest))

    def is_closing(self) -> bool:
        return self.closed

    def is_reading(self) -> bool:
        return self.reading and not self.closed

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True
        self._later()

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_extra_info(self, name: str, default: object = None) -> object:
        return _NO_SOCKET if name == "socket" else default

    def close(self) -> None:
        self._lose(None)

    def abort(self) -> None:
        self._lose(None)

    # ---- the replica

    @property
    def unread(self) -> bool:
        """Whether the replica has sent bytes that the gateway has not read."""
        return self._at < len(self._pieces)

    def _begin(self, play: Play) -> None:
        self.played += 1
        self._pieces, self._at, self._then = list(play.pieces), 0, play.then
        self._between_s = play.between_s
        if play.after_s:
            self._turn = self._loop.call_later(play.after_s, self._go_on)
        else:
            self._later()

    def _later(self) -> None:
        if self._turn is None:
            self._turn = self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._turn = None
        for _ in range(PIECES_AT_ONCE):
            if self.closed or not self.reading:
                return
            if self._at == len(self._pieces):
                break
            piece = self._pieces[self._at]
            self._at += 1
            self.protocol.data_received(piece)
            if self._between_s and self.unread:
                self._turn = self._turn or self._loop.call_later(self._between_s, self._go_on)
                return
        if self.closed or not self.reading:
            return
        if self._at < len(self._pieces):
            self._later()
        elif self._then is Then.CLOSE:
            self._then = Then.KEEP
            self.protocol.eof_received()
            self._lose(None)
        elif self._then is Then.PINGS:
            self._turn = self._loop.call_later(PING_EVERY_S, self._ping)
        elif self._then is Then.RESET:
            self._then = Then.KEEP
            self._lose(ConnectionResetError("reset by the replica"))

    def _ping(self) -> None:
        framed = b"transfer-encoding: chunked" in b"".join(self._pieces)[:1000]
        self._pieces.append(chunk(PING) if framed else PING)
        self._go_on()

    def _lose(self, exc: Exception | None) -> None:
        if not self.closed:
            self.closed = True
            self._loop.call_soon(self.protocol.connection_lost, exc)


class Replicas:
    """Every replica by its port: each request gets the part that is set for its replica at that time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ports: Iterable[int]) -> None:
        self._loop = loop
        self.parts: dict[int, Any] = dict.fromkeys(ports)
        self.lines: list[Line] = []

    def connect(self, protocol: asyncio.Protocol, port: int) -> asyncio.Transport:
        """For `VirtualLoop.connect`."""
        line = Line(self._loop, protocol, lambda: self.parts[port])
        self.lines.append(line)
        return line

    def unsafe(self) -> list[str]:
        """The violations of idle connections: they must be open, reading and empty, or closed."""
        wrong = []
        for line in self.lines:
            if not line.closed and cast(Any, line.protocol).receiver is None:
                if not line.reading:
                    wrong.append("a connection without an owner is paused")
                if line.unread:
                    wrong.append("a connection without an owner has bytes that nobody has read")
        return wrong
