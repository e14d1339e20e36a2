"""Upstreams for the tests of the load generator: the bench's own, and ones that misbehave on purpose."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

from loadtests.bench.upstream import Wheel, listen


@asynccontextmanager
async def cheap_upstream(interval_s: float = 0.002) -> AsyncIterator[int]:
    """Run the bench's upstream in this loop. Yields its port."""
    wheel = Wheel(interval_s)
    turning = asyncio.create_task(wheel.run())
    [server] = await listen([0], wheel)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        turning.cancel()
        server.close()


class Scripted(asyncio.Protocol):
    """Answers the nth piece with `answer(nth)`; None closes the connection."""

    def __init__(self, answer: Callable[[int], bytes | None]) -> None:
        self._answer = answer
        self._count = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        answer = self._answer(self._count)
        self._count += 1
        if answer is None:
            self._transport.close()
        else:
            self._transport.write(answer)


@asynccontextmanager
async def scripted_upstream(answer: Callable[[int], bytes | None]) -> AsyncIterator[int]:
    """Run a server with scripted answers. Yields its port."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Scripted(answer), "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
