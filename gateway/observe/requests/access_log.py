"""The access log: one JSON line for each request that is over, written by a thread.

The request path only adds each record to a list. If the disk is slow or full, lines are dropped and counted. The log of
the process says so once.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import orjson

from gateway.observe.requests.document import document_of
from gateway.observe.requests.ring import Found
from gateway.observe.thread_writer import ThreadWriter
from gateway.settings import SettingError

log = logging.getLogger("tailgate")

BATCH = 64
"""Number of records that are encoded at a time, so that no request waits long for them."""
FLUSH_S = 0.25
BUFFER_BYTES = 16 * 2**20
"""Limit on the bytes of lines that wait for the disk."""
CLOSE_S = 5.0


class LineFile:
    """A file that grows by lines. Beyond `max_bytes` it is renamed to FILE.1, FILE.1 to FILE.2, and so on.

    A file that another program has renamed or removed, such as logrotate, is opened anew.
    """

    def __init__(self, path: Path, max_bytes: int, files: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._files = files
        self._file = self._opened()

    def write(self, lines: bytes) -> None:
        """Append whole lines. Raises OSError."""
        if self._is_moved():
            self._file.close()
            self._file = self._opened()
        size = self._file.tell()
        if size and size + len(lines) > self._max_bytes:
            self._rotate()
        self._file.write(lines)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _opened(self) -> BinaryIO:
        # Records have names of tenants, so only the owner may read them.
        file = os.fdopen(os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab", buffering=0)
        file.seek(0, os.SEEK_END)
        return file

    def _is_moved(self) -> bool:
        try:
            there = os.stat(self._path)
        except FileNotFoundError:
            return True
        mine = os.fstat(self._file.fileno())
        return (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino)

    def _rotate(self) -> None:
        self._file.close()
        if self._files == 1:
            self._path.unlink()
        for number in range(self._files - 2, -1, -1):
            older = self._path.with_name(f"{self._path.name}.{number + 1}")
            newer = self._path if number == 0 else self._path.with_name(f"{self._path.name}.{number}")
            if newer.exists():
                newer.replace(older)
        self._file = self._opened()


class AccessLog(ThreadWriter[tuple[int, bytes]]):
    """Writes records (`write`) until it is closed."""

    def __init__(self, path: Path, wall_s: Callable[[], float], max_bytes: int, files: int) -> None:
        """`path`: "-" is standard output. `files`: number of files kept. Raises SettingError."""
        self.path = path
        self.dropped = 0
        """Number of lines that were never written."""
        self._wall_s = wall_s
        self._rows: list[Found] = []
        self._offered = self._taken = 0
        """Bytes handed over to the thread, counted by the event loop, and bytes written, counted by the thread."""
        self._is_failing = False
        self._file: LineFile | None = None
        if str(path) != "-":
            try:
                self._file = LineFile(path, max_bytes, files)
            except OSError as error:
                said = f"the access log {path} cannot be written: {error.strerror}: give another by --access-log"
                raise SettingError(said) from None
        super().__init__("access log", FLUSH_S, CLOSE_S)
        self._thread.start()

    def write(self, one: Found) -> None:
        """Log a request that is over."""
        self._rows.append(one)
        if len(self._rows) >= BATCH:
            self.flush()

    def flush(self) -> None:
        """Hand the records so far to the thread, or drop them if it is far behind."""
        if not self._rows:
            return
        rows, self._rows = self._rows, []
        if self._offered - self._taken > BUFFER_BYTES:
            self.dropped += len(rows)
            return
        wall_s = self._wall_s()
        lines = b"\n".join([*(orjson.dumps(document_of(row, wall_s)) for row in rows), b""])
        self._offered += len(lines)
        self._work.put((len(rows), lines))

    # ---- in the thread

    def _write(self, work: tuple[int, bytes]) -> None:
        count, lines = work
        try:
            if self._file is not None:
                self._file.write(lines)
            else:
                sys.stdout.buffer.write(lines)
                sys.stdout.buffer.flush()
            self._is_failing = False
        except OSError as error:
            self.dropped += count
            if not self._is_failing:
                log.error("the access log %s cannot be written, lines are dropped: %s", self.path, error.strerror)
            self._is_failing = True
        self._taken += len(lines)

    def _end(self) -> None:
        if self._file is not None:
            self._file.close()
