"""A process of the gateway, as its supervisor sees it."""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Callable

from gateway.hash_seed import VARIABLE
from gateway.workers.child import ProcessSetup
from gateway.workers.control import Control, Say

LATE_S = 1.0
"""A relay tells its load within .25 s of a new connection."""


class CannotBeginError(Exception):
    """A process cannot begin. `status`: the exit status of the gateway."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class ChildProcess:
    """A process of the gateway, as its supervisor sees it."""

    def __init__(
        self, module: str, setup: ProcessSetup, on_message: Callable[[ChildProcess, Say, bytes], None]
    ) -> None:
        """Raises CannotBeginError."""
        self.setup = setup
        self.number = setup.number
        self.ready = asyncio.Event()
        self.ended = asyncio.Event()
        self.is_leaving = False
        """Whether it was told to end."""
        self.connections = self.under_way = 0
        self._new = 0
        """Connections handed over since it told its load."""
        self._given_at = 0.0
        """Time at which the first of them was handed over."""
        self.failed: CannotBeginError | None = None
        self._on_message = on_message
        try:
            ours, theirs = socket.socketpair()
            with theirs:
                # A session of its own, so that Ctrl-C in a terminal reaches the supervisor alone.
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-m", module, str(theirs.fileno())],
                    pass_fds=(theirs.fileno(), *setup.admin_sockets),
                    env=os.environ | {VARIABLE: setup.hash_seed},
                    start_new_session=True,
                )
        except OSError as error:
            limits = "check the limits of processes, open files and memory"
            raise CannotBeginError(1, f"the system gives it no process: {error.strerror}: {limits}") from None
        self.control = Control(ours, self._heard, self.ended.set)

    def begin(self) -> None:
        """Have it begin its work. Until then it only imports, which takes longer."""
        self.control.say(Say.SETUP, pickle.dumps(self.setup))

    def _heard(self, kind: Say, payload: bytes, _files: list[int]) -> None:
        if kind is Say.LOAD:
            self.connections, self.under_way = map(int, payload.split())
            self._new = 0
        elif kind is Say.READY:
            self.ready.set()
        elif kind is Say.FAILED:
            status, _, text = payload.decode().partition(" ")
            self.failed = CannotBeginError(int(status), text)
        self._on_message(self, kind, payload)

    @property
    def serves(self) -> bool:
        """Whether it is ready, can be reached, and neither leaves nor has ended."""
        return self.ready.is_set() and self.control.is_open and not self.is_leaving and self.process.poll() is None

    @property
    def work(self) -> int:
        """Connections and requests that it has."""
        return self.connections + self.under_way + self._new

    @property
    def hangs(self) -> bool:
        """Whether it does not keep up with what it is told: it would leave a new client waiting."""
        return self.control.is_behind or (self._new > 0 and time.monotonic() - self._given_at > LATE_S)

    def give(self, client: socket.socket) -> None:
        """Hand over a connection."""
        self._new += 1
        if self._new == 1:
            self._given_at = time.monotonic()
        self.control.say(Say.CLIENT, b"", [client.detach()])

    async def wait_ready(self) -> None:
        """Wait until it serves. Raises CannotBeginError if it ends before."""
        ends = [asyncio.ensure_future(event.wait()) for event in (self.ready, self.ended)]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        if not self.ready.is_set():
            status = await asyncio.to_thread(self.process.wait)
            raise self.failed or CannotBeginError(
                1, f"a process of the gateway ended with status {status} before it served"
            )
