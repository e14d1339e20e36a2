"""One connection to a replica: reads requests and gives one answer at a time, as uvicorn does."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Protocol, cast

import httptools

from loadtests.emulator.exchange import Exchange, Received, head, reset

MAX_HEAD_BYTES = 64 * 1024
MAX_PIPELINED = 64


class Host(Protocol):
    """The replica that connections belong to."""

    connections: set[Connection]
    connections_total: int
    """Connections so far, including an accepted one."""

    def exchange(self, transport: asyncio.Transport, owner: Connection, received: Received, keep: bool) -> Exchange:
        """The exchange for this request, which may be a faulty one."""
        ...

    def handle(self, exchange: Exchange) -> None:
        """Answer the request, now or later."""
        ...

    def accepted(self, transport: asyncio.Transport) -> bool:
        """Whether a new connection is accepted."""
        ...


class Connection(asyncio.Protocol):
    """Splits the head off by hand, so that its exact bytes are known; httptools checks head and body.

    Further requests wait until the current answer is over, but reading goes on, so a client that leaves is always
    noticed.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self.idle_since = time.monotonic()
        self.busy: Exchange | None = None
        self.closing = False  # close after the current answer
        self._waiting: deque[tuple[Received, bool]] = deque()
        self._parser = httptools.HttpRequestParser(self)
        self._buffer = b""
        self._in_body = False
        self._left = 0  # bytes left of a body of known length; -1: chunked
        self._url = b""
        self._head = b""
        self._body: list[bytes] = []
        self._length: int | None = 0
        self._begun = False

    # Bytes in.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self.host.accepted(self.transport):
            self.host.connections.add(self)
        self.number = self.host.connections_total

    def connection_lost(self, exc: Exception | None) -> None:
        self.host.connections.discard(self)
        self._waiting.clear()
        if self.busy is not None:
            self.busy.gone()
            self.busy = None

    def data_received(self, data: bytes) -> None:
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
        while data and not self.transport.is_closing():
            try:
                data = self._feed(data)
            except (httptools.HttpParserError, httptools.HttpParserUpgrade):
                self._refuse(400, b"Invalid HTTP request received.")
                return

    def _feed(self, data: bytes) -> bytes:
        """Take the bytes of the current message. Returns the rest, which belongs to the next."""
        if not self._in_body:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._buffer = data
                if len(data) > MAX_HEAD_BYTES:
                    self._refuse(431, b"Request header fields too large.")
                return b""
            self._head = data[: end + 4]
            self._length, self._body, self._url, self._begun = 0, [], b"", False
            self._in_body = True
            self._parser.feed_data(self._head)
            return data[end + 4 :]
        if self._length is None:
            self._parser.feed_data(data)
            return b""
        mine, rest = data[: self._left], data[self._left :]
        self._left -= len(mine)
        self._parser.feed_data(mine)
        return rest

    # Callbacks of httptools.

    def on_message_begin(self) -> None:
        if self._begun:
            raise httptools.HttpParserError("pipelining after a chunked body is not supported here")
        self._begun = True

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        match name.lower():
            case b"content-length":
                self._left = self._length = int(value)
            case b"transfer-encoding":
                self._length = None
            case b"expect" if value.lower() == b"100-continue":
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        self._in_body = False
        path = self._url.partition(b"?")[0].decode("latin-1")
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        method = self._parser.get_method().decode()
        received = Received(self._head, body, method, path, self.number, time.monotonic())
        keep = self._parser.should_keep_alive() and self._parser.get_http_version() == "1.1"
        if self.busy is None:
            self._begin(received, keep)
        elif len(self._waiting) < MAX_PIPELINED:
            self._waiting.append((received, keep))
        else:
            self.transport.abort()

    # Answers out.

    def _begin(self, received: Received, keep: bool) -> None:
        self.busy = self.host.exchange(self.transport, self, received, keep and not self.closing)
        self.host.handle(self.busy)

    def exchange_over(self, keep_alive: bool) -> None:
        """The answer is complete: serve the next request, or close."""
        self.busy = None
        self.idle_since = time.monotonic()
        if not keep_alive or self.closing:
            self.transport.close()
        elif self._waiting:
            self._begin(*self._waiting.popleft())

    def leave(self) -> None:
        """Close now if idle, else after the current answer."""
        self.closing = True
        if self.busy is None:
            self.transport.close()

    def kill(self) -> None:
        """Reset the connection and abort the current answer."""
        if self.busy is not None:
            self.busy.gone()
        reset(self.transport)

    def _refuse(self, status: int, text: bytes) -> None:
        lines = b"content-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n" % len(text)
        self.transport.write(head(status, lines) + text)
        self.transport.close()
