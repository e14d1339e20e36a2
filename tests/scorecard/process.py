"""A real `tailgate serve` in a process of its own."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from .waiting import DEADLINE_S

START_S = 120.0
LISTENING = re.compile(rb"API on (\S+), admin on (\S+)")
INHERIT = """
import fcntl, os, sys
high = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 100) for number in sys.argv[1].split(",")]
for place, number in enumerate(high, 3):
    os.dup2(number, place)
    os.close(number)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(high))}
os.execv(sys.argv[2], sys.argv[2:])
"""


@dataclass
class Serving:
    """The process, its addresses, and its output."""

    process: asyncio.subprocess.Process
    url: str = ""
    admin_url: str = ""
    written: bytearray = field(default_factory=bytearray)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    async def exit_code(self, timeout_s: float = DEADLINE_S) -> int:
        """Wait until it ends."""
        async with asyncio.timeout(timeout_s):
            return await self.process.wait()

    async def _collect(self, listening: asyncio.Event) -> None:
        assert self.process.stdout is not None
        while data := await self.process.stdout.read(65536):
            self.written += data
            found = LISTENING.search(self.written)
            if found and not self.url:
                self.url, self.admin_url = (part.decode() for part in found.groups())
                listening.set()
        listening.set()


@asynccontextmanager
async def serving(
    folder: Path,
    policy: str,
    *,
    descriptors: int | None = None,
    ports: tuple[int, int] = (0, 0),
    sockets: Sequence[tuple[str, socket.socket]] = (),
    **environment: str,
) -> AsyncIterator[Serving]:
    """Start it with `policy`, written into `folder`; kill it if it still runs in the end.

    `descriptors`: its limit of open files. `ports`: of API and admin; 0: any free one. `sockets`: it
    inherits them as from systemd, with these names.
    """
    file = folder / "policy.yaml"
    file.write_text(policy)
    command: tuple[str, ...] = (
        sys.executable,
        "-m",
        "gateway",
        "serve",
        "--policy",
        str(file),
        "--port",
        str(ports[0]),
        "--admin-port",
        str(ports[1]),
    )
    if descriptors is not None:
        command = ("/bin/sh", "-c", f'ulimit -n {descriptors} && exec "$@"', "sh", *command)
    if sockets:
        command = (sys.executable, "-c", INHERIT, ",".join(str(sock.fileno()) for _, sock in sockets), *command)
        environment["LISTEN_FDNAMES"] = ":".join(name for name, _ in sockets)
    outside = {name: value for name, value in os.environ.items() if not name.startswith("TAILGATE_")}
    process = await asyncio.create_subprocess_exec(
        *command,
        pass_fds=[sock.fileno() for _, sock in sockets],
        env=outside | environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    served = Serving(process)
    listening = asyncio.Event()
    collecting = asyncio.create_task(served._collect(listening))
    try:
        async with asyncio.timeout(START_S):
            await listening.wait()
        assert served.url, served.written.decode()
        yield served
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await collecting
