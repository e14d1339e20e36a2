"""A real redis-server for tests, on a free port of this machine, without files."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis

from loadtests.processes import free_port

PROGRAM = shutil.which("redis-server") or shutil.which("valkey-server")
needs_store = pytest.mark.skipif(PROGRAM is None, reason="needs redis-server: apt-get install redis-server")


class RealStore:
    """One redis-server. It can be killed, frozen, and started again at the same port."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    async def start(self) -> None:
        """Start it, and wait until it answers."""
        assert PROGRAM is not None
        options = ("--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
        self._process = await asyncio.create_subprocess_exec(
            PROGRAM, *options, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
        )
        async with asyncio.timeout(20):
            while True:
                try:
                    await self.tell("PING")
                    return
                except OSError:
                    await asyncio.sleep(0.02)

    async def tell(self, *command: str) -> object:
        """One command on a connection of its own."""
        async with Redis(host="127.0.0.1", port=self.port) as client:
            return await client.execute_command(*command)

    async def kill(self) -> None:
        """End it at once."""
        assert self._process is not None
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        """SIGSTOP freezes it, SIGCONT lets it go on."""
        assert self._process is not None
        os.kill(self._process.pid, number)


@asynccontextmanager
async def real_store() -> AsyncIterator[RealStore]:
    """A running store. It is killed at the end."""
    store = RealStore(free_port())
    await store.start()
    try:
        yield store
    finally:
        await store.kill()
