"""A server in a child process, of the emulator's connections. It ends when its standard input ends."""

from __future__ import annotations

import asyncio
import sys
from abc import ABC, abstractmethod

from loadtests.emulator.connection import Connection
from loadtests.emulator.exchange import Exchange, Received


class Served(ABC):
    """The state that the connections of one server share."""

    def __init__(self) -> None:
        self.connections: set[Connection] = set()
        self.connections_total = 0

    @abstractmethod
    def handle(self, exchange: Exchange) -> None:
        """Answer the request, now or later."""

    def exchange(self, transport: asyncio.Transport, owner: Connection, received: Received, keep: bool) -> Exchange:
        """The exchange for this request."""
        return Exchange(transport, owner, received, keep)

    def accepted(self, transport: asyncio.Transport) -> bool:
        """Every connection is accepted."""
        self.connections_total += 1
        return True


async def serve(served: Served) -> None:
    """Serve on a port of loopback, print the port, and return after that."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(served), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    ended = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ended.set)
    await ended.wait()
