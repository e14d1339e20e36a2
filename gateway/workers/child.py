"""The beginning of a decider or relay: it hears from the supervisor what to do, and tells it when it fails."""

from __future__ import annotations

import asyncio
import logging
import pickle
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import uvloop

from gateway.garbage import tune_collector
from gateway.observe.logs import configure_logging
from gateway.settings import Settings
from gateway.workers.control import Control, Say

OnMessage = Callable[[Say, bytes, list[int]], None]


@dataclass(slots=True)
class ProcessSetup:
    """All that a process must know to begin."""

    settings: Settings
    number: int
    """The number of a relay, or how many deciders there were with this one. Never used twice."""
    started_unix_s: int
    hash_seed: str
    """Key of all processes for hashes, so that relays hash the beginning of a prompt alike (gateway/wire/prefix.py)."""
    policy_path: Path | None
    policy: bytes
    """The last policy in force, for a decider whose file cannot be used now; empty for the first, and for a relay."""
    admin_sockets: tuple[int, ...] = ()
    """Descriptors at which the decider listens for the admin port; none: it opens its own."""


class Ears:
    """Hears the supervisor. Messages wait until there is somebody to hear them."""

    def __init__(self) -> None:
        self.setup: asyncio.Future[ProcessSetup] = asyncio.get_running_loop().create_future()
        self._waiting: list[tuple[Say, bytes, list[int]]] = []
        self._heard: OnMessage | None = None
        self._orphaned: Callable[[], None] = lambda: None

    def on_message(self, kind: Say, payload: bytes, files: list[int]) -> None:
        """The supervisor says something."""
        if kind is Say.SETUP:
            self.setup.set_result(pickle.loads(payload))
        elif self._heard is None:
            self._waiting.append((kind, payload, files))
        else:
            self._heard(kind, payload, files)

    def on_closed(self) -> None:
        """The supervisor is gone."""
        if self._heard is None:
            sys.exit(1)
        self._orphaned()

    def begin(self, heard: OnMessage, orphaned: Callable[[], None]) -> None:
        """Pass on what the supervisor says, from now on. `orphaned`: called if it is gone."""
        self._heard, self._orphaned = heard, orphaned
        for message in self._waiting:
            heard(*message)
        self._waiting.clear()


Main = Callable[[ProcessSetup, Control, Ears], Awaitable[int]]


def run(main: Main) -> None:
    """Run a process of the gateway. The number of the socket to its supervisor is the only argument."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # the supervisor hears them
    tune_collector()
    sys.exit(uvloop.run(_run(main, socket.socket(fileno=int(sys.argv[1])))))


async def _run(main: Main, sock: socket.socket) -> int:
    ears = Ears()
    control = Control(sock, ears.on_message, ears.on_closed)
    setup = await ears.setup
    settings = setup.settings
    configure_logging(settings.log_level, as_json=settings.log_format == "json")
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    return await main(setup, control, ears)
