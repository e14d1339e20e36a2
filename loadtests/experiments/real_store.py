"""A real redis-server on a free port, and a slow way to it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from tempfile import TemporaryDirectory
from typing import Any

from redis.asyncio import Redis

from loadtests.processes import free_port

PROGRAM = shutil.which("redis-server") or shutil.which("valkey-server")
START_S = 20.0


class RealStore:
    """One redis-server. It can be killed, frozen, and started again at the same port."""

    def __init__(self, port: int, folder: str, arguments: Sequence[str] = ()) -> None:
        """`folder`: for its files. `arguments`: more of its command line, such as the file of a Sentinel."""
        self.port = port
        self._folder = folder
        self._arguments = arguments
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        """For `--store`."""
        return url_of(self.port)

    async def start(self) -> None:
        """Start it, and wait until it answers."""
        assert PROGRAM is not None
        options = ("--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
        self._process = await asyncio.create_subprocess_exec(
            PROGRAM,
            *self._arguments,
            *options,
            cwd=self._folder,  # a copy of another store is written there
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        async with asyncio.timeout(START_S):
            while True:
                try:
                    await self.tell("PING")
                    return
                except OSError:
                    await asyncio.sleep(0.02)

    async def tell(self, *command: str) -> object:
        """One command on a connection of its own."""
        client: Any = Redis(host="127.0.0.1", port=self.port)
        async with client:
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


def url_of(port: int) -> str:
    """The URL of a store at a port of this machine."""
    return f"redis://127.0.0.1:{port}/0"


@asynccontextmanager
async def real_store(*arguments: str) -> AsyncIterator[RealStore]:
    """A running store with more arguments of the command line. It is killed at the end."""
    with TemporaryDirectory() as folder:
        store = RealStore(free_port(), folder, arguments)
        await store.start()
        try:
            yield store
        finally:
            await store.kill()


class SlowWay:
    """A port that leads to a store, and holds its answers back for `late_s`."""

    def __init__(self, store: RealStore) -> None:
        self.late_s = 0.0
        self.port = 0
        self._store = store
        self._carrying: set[asyncio.Task[object]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> SlowWay:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*self._carrying)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._store.port)
        except OSError:  # the store is away: so is the connection to it
            writer.close()
            return
        await asyncio.gather(self._carry(reader, far_writer, False), self._carry(far_reader, writer, True))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_answer: bool) -> None:
        self._writers.add(writer)
        with suppress(OSError):
            while data := await reader.read(65536):
                if is_answer and self.late_s:
                    await asyncio.sleep(self.late_s)
                if writer.is_closing():  # the gateway has given up meanwhile
                    break
                writer.write(data)
        writer.close()
        self._writers.discard(writer)
