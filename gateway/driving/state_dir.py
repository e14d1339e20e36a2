"""Keeps what the gateway has learned in a directory, so that it survives a restart.

A write is a new file that replaces the old one. The state is written every few seconds and at the end, and read at the
start. A file that cannot be read is left alone: nothing is written until somebody has moved it away.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from gateway.core.estimators.memory import objects_in
from gateway.core.results import Callback
from gateway.driving.absent_replicas import AbsentReplicas
from gateway.driving.local_driver import LocalDriver
from gateway.driving.state_bytes import (
    SavedState,
    UnreadableStateError,
    batched,
    line_of,
    lines_in_turns,
    state_from_bytes,
    with_header,
)
from gateway.hash_seed import NAME, HashSeedError, read_seed
from gateway.proxy.stored_responses import StoredResponses
from gateway.settings import SettingError

log = logging.getLogger("tailgate")

EVERY_S: Final = 2.0
MAX_NAMED: Final = 20
"""Fields of a state that a log line names."""
_APART: Final = ("absent", "key", "replicas")
KEY: Final = hash(b"tailgate")
"""Tells whether hashes of prompts (gateway/wire/prefix.py) mean the same as in an earlier process."""


class StateDir:
    """The directory. One process at a time may use it."""

    def __init__(self, directory: Path) -> None:
        """Raises `SettingError`."""
        self.path = directory / "state.jsonl"
        self._new = directory / "state.jsonl.new"
        self._directory = directory
        self._is_foreign = False
        """Whether the file could not be read when it was seen last."""
        self._writing = threading.Lock()
        """Held during a write: a write goes on in its thread after its task was cancelled."""
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise SettingError(f"another process uses the state directory {directory}: give each its own") from None
        except FileExistsError:
            raise SettingError(f"the state directory {directory} is a file: give a directory") from None
        except OSError as error:
            raise SettingError(f"the state directory {directory} cannot be used: {error.strerror}") from error

    def read(self) -> SavedState | None:
        """The state that was written last; None if there is none, or none that can be read."""
        try:
            read_seed(self._directory)
        except HashSeedError as odd:
            told = "%s %s; homes of conversations are forgotten at every restart until it is moved away"
            log.error(told, self._directory / NAME, odd)
        try:
            return state_from_bytes(self.path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, UnreadableStateError) as error:
            self._is_foreign = True
            why = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)
            log.error(
                "%s %s; the gateway starts with nothing learned, leaves the file alone, and keeps no state until it is "
                "moved away",
                self.path,
                why,
            )
            return None

    def write(self, data: bytes) -> None:
        """Replace the file. Raises OSError."""
        with self._writing:
            if self._is_foreign and self.path.exists():
                return
            self._is_foreign = False
            fd = os.open(self._new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(fd)  # else a crash of the machine could leave the new name with an empty file
            os.replace(self._new, self.path)

    def close(self) -> None:
        """Let another process use the directory."""
        os.close(self._lock)


class StateKeeper:
    """Writes the state of the controller and of the stored responses, and gives them to their successors."""

    def __init__(
        self, directory: Path, driver: LocalDriver, responses: StoredResponses, unix_s: Callable[[], float]
    ) -> None:
        """Raises `SettingError`."""
        self.absent = AbsentReplicas(driver, unix_s)
        self._unix_s = unix_s
        self._dir = StateDir(directory)
        self._driver = driver
        self._responses = responses
        self._begun = asyncio.Event()
        self._has_failed = False

    async def begin(self) -> None:
        """Read the state. It is called before the first request."""
        saved = await asyncio.to_thread(self._dir.read)
        if saved is not None:
            memory, away_s = _readable(saved.memory), max(0.0, self._unix_s() - saved.written_unix_s)
            self._driver.recall(memory, away_s)
            self._name_left_out(memory)
            self.absent.keep(memory, saved.written_unix_s)
            try:
                self._responses.recall(saved.responses, self._driver.clock() - away_s)
            except Exception as error:  # noqa: BLE001 - a bug costs the responses; the gateway starts in any case
                self._driver.supervisor.caught(Callback.WATCH, error)
            log.info("%s was written %.0f s ago: the gateway knows what it had learned then", self._dir.path, away_s)
        self._begun.set()

    def _name_left_out(self, memory: Mapping[str, object]) -> None:
        """Log the fields that were written by another version, or for another policy, and are not used."""
        controller = self._driver.controller
        mine = controller.memory(self._driver.clock())
        found = set(_left_out({name: facts for name, facts in memory.items() if name not in _APART}, mine, ""))
        for name, facts in objects_in(memory.get("replicas")).items():
            told, known = objects_in(facts), controller.memory_of(name)
            if all(told.get(field) == known.get(field) for field in ("pool", "url")):
                found |= set(_left_out(told, known, "replicas.*."))
        if found:
            log.warning("%s: nothing here uses %s", self._dir.path, ", ".join(sorted(found)[:MAX_NAMED]))

    async def run(self) -> None:
        """Write the state every few seconds, until cancelled."""
        await self._begun.wait()
        while True:
            await asyncio.sleep(EVERY_S)
            await self._write()

    async def aclose(self) -> None:
        """Write the state for the last time."""
        if self._begun.is_set():
            await self._write()
        self._dir.close()

    async def _write(self) -> None:
        try:
            data = await self._data()
            await asyncio.to_thread(lambda: self._dir.write(with_header(data, self._unix_s())))
        except OSError as error:
            if not self._has_failed:
                log.error("%s cannot be written: %s; it is tried again", self._dir.path, error.strerror)
            self._has_failed = True
        except Exception as bug:  # noqa: BLE001 - a bug costs this write
            self._driver.supervisor.caught(Callback.WATCH, bug)
        else:
            self._has_failed = False

    async def _data(self) -> bytes:
        """All state, without the header."""
        now = self._driver.clock()
        controller = self._driver.controller
        lines = [line_of("memory", {**controller.memory(now), "key": KEY})]
        batches = batched(name for _, name, _, _ in controller.states())
        replicas = ({name: controller.memory_of(name) for name in names} for names in batches)
        lines += await lines_in_turns("replicas", replicas)
        lines += await lines_in_turns("absent", map(dict, batched(self.absent.facts().items())))
        lines += await lines_in_turns("responses", batched(self._responses.memory(now)))
        return b"".join(lines)


def _readable(memory: Mapping[str, object]) -> Mapping[str, object]:
    """The memory without blocks of prompts that were hashed with another key."""
    if memory.get("key") == KEY:
        return memory
    return {
        **memory,
        "replicas": _without_blocks(memory.get("replicas")),
        "absent": _without_blocks(memory.get("absent")),
    }


def _without_blocks(replicas: object) -> dict[str, object]:
    return {name: {**objects_in(facts), "blocks": ()} for name, facts in objects_in(replicas).items()}


def _left_out(told: Mapping[str, object], mine: Mapping[str, object], at: str) -> Iterator[str]:
    """Fields that `mine` does not have."""
    for name, facts in told.items():
        if name not in mine:
            yield f"{at}{name}"
        elif name != "health":  # an ejection that is over is forgotten
            yield from _left_out(objects_in(facts), objects_in(mine[name]), f"{at}{name}.")
