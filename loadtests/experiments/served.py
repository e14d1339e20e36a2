"""A server in a child process: it prints its port, and ends when its standard input is closed or written to."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable


async def serve(connection: Callable[[], asyncio.Protocol]) -> None:
    """Serve on a port of loopback, print the port, and return after that."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(connection, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    ended = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ended.set)
    await ended.wait()
