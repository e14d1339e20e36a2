"""Processes that start and end together: none outlives the block, even after an error in it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from asyncio.subprocess import PIPE, STDOUT, Process
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType

# Seconds between SIGTERM and SIGKILL.
GRACE_S = 15.0
LINES_KEPT = 20
LINE_LIMIT_BYTES = 2**20

Tell = Callable[[str, str], None]
"""Called with the name of a child and a line of its output."""


def end_by_sigterm() -> None:
    """SIGTERM ends this process like Ctrl-C, so that it also ends the processes it started."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


class Child:
    """One process. `ready` is set once enough of its lines match the expected pattern. `found` has these matches."""

    def __init__(self, name: str, process: Process, says: str, times: int) -> None:
        self.name = name
        self.process = process
        self.ready: asyncio.Future[re.Match[str]] = asyncio.get_running_loop().create_future()
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)
        self.found: list[re.Match[str]] = []
        self._says = re.compile(says)
        self._times = times

    async def read(self, tell: Tell) -> None:
        """Pass on its output until it ends."""
        assert self.process.stdout is not None
        async for raw in self.process.stdout:
            line = raw.decode(errors="replace").rstrip()
            self.lines.append(line)
            tell(self.name, line)
            if not self.ready.done() and (found := self._says.search(line)):
                self.found.append(found)
                if len(self.found) == self._times:
                    self.ready.set_result(found)
        await self.process.wait()

    @property
    def how_it_ended(self) -> str:
        """A text about how the process ended, with its last lines of output."""
        status = self.process.returncode or 0
        how = f"was ended by signal {-status}" if status < 0 else f"exited with status {status}"
        return "\n".join([f"{self.name} {how}", *(f"  {line}" for line in self.lines)])

    def signal(self, number: signal.Signals) -> None:
        """Send the process a signal, if it has not ended yet."""
        # Not `process.send_signal`: that may reap the child before asyncio does, and its exit status is lost.
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, number)


class Children:
    """An async context manager. When the block is left, it ends every child, in the reverse order of their starts.

    Each child gets a process group of its own, so that Ctrl-C reaches this process alone, which then ends them in
    order.
    """

    def __init__(self, tell: Tell, *, grace_s: float = GRACE_S) -> None:
        self.died: asyncio.Future[Child] = asyncio.get_running_loop().create_future()
        """The first child that ended without being asked to."""
        self._tell = tell
        self._grace_s = grace_s
        self._all: list[Child] = []
        self._readers: list[asyncio.Task[None]] = []
        self._ending = False

    async def start(self, name: str, command: Sequence[str], says: str, times: int = 1) -> Child:
        """Start a child. It is ready once it has printed `times` lines that match the regular expression `says`."""
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            limit=LINE_LIMIT_BYTES,
            process_group=0,
        )
        child = Child(name, process, says, times)
        self._all.append(child)
        self._readers.append(asyncio.create_task(self._follow(child)))
        return child

    def kill(self) -> None:
        """End all of them now, without grace."""
        for child in self._all:
            child.signal(signal.SIGKILL)

    async def _follow(self, child: Child) -> None:
        await child.read(self._tell)
        if not self._ending and not self.died.done():
            self.died.set_result(child)

    async def __aenter__(self) -> Children:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending = True
        try:
            for child, reader in zip(reversed(self._all), reversed(self._readers), strict=True):
                child.signal(signal.SIGTERM)
                await asyncio.wait([reader], timeout=self._grace_s)
                child.signal(signal.SIGKILL)
        finally:
            self.kill()
        await asyncio.gather(*self._readers)
