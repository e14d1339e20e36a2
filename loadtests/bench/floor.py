"""The lowest possible cost of a Python proxy: bytes parsed by httptools on both sides, and passed on unread.

It makes no decision, check or metric. So the cost of another Python target, beyond the cost of this one, is that
target's own work. It trusts both sides, and is useful only for comparison.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from typing import cast

import httptools
import uvloop


class Side(asyncio.Protocol):
    """Base of both sides: a parser that finds the end of each message."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.parser: httptools.HttpRequestParser | httptools.HttpResponseParser
        self.peer: Side | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transports are not subclasses of asyncio's

    def connection_lost(self, error: Exception | None) -> None:
        """Close the other side too: one side alone is useless."""
        if self.peer is not None:
            self.peer.peer = None
            self.peer.transport.abort()


class Upstream(Side):
    """A connection to a replica."""

    def __init__(self, idle: deque[Upstream]) -> None:
        super().__init__()
        self.parser = httptools.HttpResponseParser(self)
        self._idle = idle
        self._over = False

    def data_received(self, data: bytes) -> None:
        """Pass the bytes on, and become idle at the end of the answer."""
        self.parser.feed_data(data)
        if self.peer is not None:
            self.peer.transport.write(data)
        if self._over:
            self._over = False
            self.peer = None
            self._idle.append(self)

    def on_message_complete(self) -> None:
        """Parser callback."""
        self._over = True


class Downstream(Side):
    """A connection of a client."""

    def __init__(self, ports: list[int], idle: deque[Upstream]) -> None:
        super().__init__()
        self.parser = httptools.HttpRequestParser(self)
        self._ports = ports
        self._idle = idle
        self._request: list[bytes] = []
        self._over = False

    def data_received(self, data: bytes) -> None:
        """Collect the request; at its end send it on."""
        self.parser.feed_data(data)
        self._request.append(data)
        if self._over:
            self._over = False
            request, self._request = b"".join(self._request), []
            while self._idle:
                upstream = self._idle.popleft()
                if not upstream.transport.is_closing():
                    self._send(upstream, request)
                    return
            self._opening = asyncio.get_running_loop().create_task(self._open(request))

    def on_message_complete(self) -> None:
        """Parser callback."""
        self._over = True

    async def _open(self, request: bytes) -> None:
        loop = asyncio.get_running_loop()
        self._ports.append(self._ports.pop(0))
        _, upstream = await loop.create_connection(lambda: Upstream(self._idle), "127.0.0.1", self._ports[0])
        self._send(upstream, request)

    def _send(self, upstream: Upstream, request: bytes) -> None:
        upstream.peer, self.peer = self, upstream
        upstream.transport.write(request)


async def _main(port: int, replicas: list[int]) -> None:
    idle: deque[Upstream] = deque()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Downstream(replicas, idle), "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    first, *others = map(int, sys.argv[1:])
    uvloop.run(_main(first, others))
