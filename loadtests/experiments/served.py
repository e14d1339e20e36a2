"""A server of a child process: it says its port, and ends when somebody closes its input, or writes to it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable


async def serve(connection: Callable[[], asyncio.Protocol]) -> None:
    """Serve on a port of loopback, which is printed, until then."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(connection, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    ended = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ended.set)
    await ended.wait()
