"""One request and its answer on a connection. The answer may have a fault on purpose."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from typing import Protocol

from loadtests.emulator.faults import Fault, FaultKind

JSON = b"application/json"
LONG_LINE_BYTES = 10 * 1024 * 1024
_PHRASES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


@dataclass(frozen=True, slots=True)
class Received:
    """A request as a replica received it: the head, line for line, and the body."""

    head: bytes
    body: bytes
    method: str
    path: str
    connection: int
    """Number of the connection since the replica started."""
    at: float
    """The time.monotonic() at which the body was complete."""

    @property
    def headers(self) -> list[tuple[str, str]]:
        """Names in lower case, in the order of the request."""
        lines = self.head.decode("latin-1").split("\r\n")[1:-2]
        return [(name.strip().lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]

    def header(self, name: str) -> str | None:
        """The first value of a header, or None."""
        return next((value for key, value in self.headers if key == name.lower()), None)


class Date:
    """The value of the Date header, made once per second."""

    def __init__(self) -> None:
        self._second = 0
        self._lines = b""

    def lines(self) -> bytes:
        """The headers that uvicorn puts on top of every answer."""
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._lines = f"date: {formatdate(second, usegmt=True)}\r\nserver: uvicorn\r\n".encode()
        return self._lines


_DATE = Date()


def head(status: int, headers: bytes) -> bytes:
    """A response head; `headers` are whole lines."""
    return b"%b%b%b\r\n" % (_PHRASES[status], _DATE.lines(), headers)


def reset(transport: asyncio.Transport) -> None:
    """Close with RST instead of FIN."""
    raw = transport.get_extra_info("socket")
    if raw is not None and not transport.is_closing():
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


class Owner(Protocol):
    """The connection of an exchange."""

    def exchange_over(self, keep_alive: bool) -> None:
        """The answer is complete."""
        ...


class Exchange:
    """Answers one request. `on_over` is called once: True at the proper end, False if client or fault cut it off."""

    def __init__(self, transport: asyncio.Transport, owner: Owner, received: Received, keep_alive: bool) -> None:
        self.transport = transport
        self.received = received
        self.on_over: Callable[[bool], None] | None = None
        self.over = False
        self._owner = owner
        self._keep_alive = keep_alive

    def reply(self, status: int, body: bytes, headers: bytes = b"", content_type: bytes | None = JSON) -> None:
        """A whole answer."""
        kind = b"" if content_type is None else b"content-type: %b\r\n" % content_type
        lines = b"content-length: %d\r\n%b%b%b" % (len(body), kind, headers, self._connection())
        self._write_body(head(status, lines), body)
        self._end()

    def open(self, headers: bytes = b"") -> None:
        """The head of a stream."""
        lines = b"content-type: text/event-stream; charset=utf-8\r\n%btransfer-encoding: chunked\r\n"
        self._write(head(200, lines % (headers + self._connection())))

    def event(self, framed: bytes) -> None:
        """One event of a stream, framed as a chunk."""
        if not self.over and not self.transport.is_closing():
            self.transport.write(framed)

    def close(self) -> None:
        """The proper end of a stream."""
        self._write(b"0\r\n\r\n")
        self._end()

    def gone(self) -> None:
        """End the exchange: the client has left, or the fault cut the answer off."""
        self._over(False)

    def _connection(self) -> bytes:
        return b"" if self._keep_alive else b"connection: close\r\n"

    def _write(self, data: bytes) -> None:
        if not self.over and not self.transport.is_closing():
            self.transport.write(data)

    def _write_body(self, head: bytes, body: bytes) -> None:
        self._write(head + body)

    def _end(self) -> None:
        if not self.over:
            self._over(True)
            self._owner.exchange_over(self._keep_alive)

    def _over(self, done: bool) -> None:
        self.over = True
        if self.on_over is not None:
            on_over, self.on_over = self.on_over, None
            on_over(done)


class FaultyExchange(Exchange):
    """An answer that is cut, stalled or corrupted at a given event or byte."""

    def __init__(
        self,
        transport: asyncio.Transport,
        owner: Owner,
        received: Received,
        keep_alive: bool,
        fault: Fault,
        failure: Callable[[str], list[bytes]],
    ) -> None:
        super().__init__(transport, owner, received, keep_alive)
        self.fault = fault
        self._failure = failure
        self._events = 0
        self._bytes = 0
        self._stalled = False

    def event(self, framed: bytes) -> None:
        struck = self._events == self.fault.after_events and self.fault.after_bytes is None
        self._events += 1
        self._write(self._spoil() if struck else framed)

    def _spoil(self) -> bytes:
        """The fault takes effect at this event. Returns the bytes to send in its place."""
        match self.fault.kind:
            case FaultKind.GARBAGE:
                broken = b'data: {"id": "broken", "choices": [{"ind\n\n'
                return b"%x\r\n%b\r\n" % (len(broken), broken)
            case FaultKind.LONG_LINE:
                line = b"data: " + b"x" * LONG_LINE_BYTES
                return b"%x\r\n%b\r\n" % (len(line), line)
            case FaultKind.SHUTDOWN_LIKE:
                for event in self._failure(
                    "EngineCore encountered an issue. See stack trace (above) for the root cause."
                ):
                    self._write(event)
                self._write(b"0\r\n\r\n")
                self.gone()
                self._owner.exchange_over(self._keep_alive)
                return b""
            case _:
                self._strike()
                return b""

    def _write(self, data: bytes) -> None:
        if self.over or self._stalled or not data or self.transport.is_closing():
            return
        cut = self.fault.after_bytes
        if cut is None or self._bytes + len(data) <= cut:
            self._bytes += len(data)
            self.transport.write(data)
            return
        self.transport.write(data[: cut - self._bytes])
        self._bytes = cut
        self._strike()

    def _write_body(self, head: bytes, body: bytes) -> None:
        if self.fault.after_bytes is None and self.fault.kind in CUTS:
            self._write(head + body[: len(body) // 2])
            self._strike()
            return
        if self.fault.kind is FaultKind.GARBAGE:
            body = body[: len(body) // 2].ljust(len(body))
        self._write(head + body)

    def _strike(self) -> None:
        if self.fault.kind is FaultKind.STALL:
            self._stalled = True
            return
        self.gone()
        if self.fault.kind is FaultKind.RESET:
            self._reset_when_flushed()
        else:
            self.transport.close()

    def _reset_when_flushed(self) -> None:
        """abort() would discard the bytes that are not sent yet."""
        if self.transport.get_write_buffer_size() and not self.transport.is_closing():
            asyncio.get_running_loop().call_later(0.001, self._reset_when_flushed)
        else:
            reset(self.transport)

    def _end(self) -> None:
        if not self._stalled:
            super()._end()


CUTS = (FaultKind.RESET, FaultKind.TRUNCATED, FaultKind.STALL)
FAULTY = (*CUTS, FaultKind.GARBAGE, FaultKind.LONG_LINE, FaultKind.SHUTDOWN_LIKE)
