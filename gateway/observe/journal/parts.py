"""The files of a journal: lines are written to the newest file, and older files are kept. No file ends within a
line.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import orjson

from gateway.core.journal.recorder import FORMAT
from gateway.settings import SettingError


class Parts:
    """Writes lines to `path`. When the file has about `max_bytes`, it is renamed to `path`.1, the old .1 to .2, and so
    on.

    `files`: total number of files. Each begins with `header` and its number in the run, from 1. A new process renames
    the files of an earlier process in the same way. Only one thread at a time may use a `Parts`.
    """

    def __init__(self, path: Path, header: Mapping[str, object], max_bytes: int, files: int) -> None:
        self.path = path
        self._header = header
        self._max_bytes = max_bytes
        self._files = files
        self._part = 0
        self._size = 0
        self._empty = True
        """Whether the file has only its header so far."""
        self._fd = -1
        try:
            _refuse_if_in_use(path)
            self._next_file()
        except OSError as error:
            raise SettingError(f"the journal {path} cannot be written: {error.strerror}") from error

    def write(self, lines: bytes) -> None:
        """Append whole lines. After an OSError none of them is written."""
        if self._size + len(lines) > self._max_bytes and not self._empty:
            self._next_file()
        try:
            write_all(self._fd, lines)
        except OSError:
            with suppress(OSError):  # only the first error is reported
                os.ftruncate(self._fd, self._size)
            raise
        self._size += len(lines)
        self._empty = False

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _next_file(self) -> None:
        """Start the next file. The file is first created under a temporary name, so that a failure changes nothing."""
        header = orjson.dumps(
            {"journal": FORMAT, "part": self._part + 1, **self._header}, option=orjson.OPT_APPEND_NEWLINE
        )
        new = self._named("new")
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            write_all(fd, header)
            self._make_room()
            os.replace(new, self.path)
        except OSError:
            os.close(fd)
            raise
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._size, self._empty = fd, len(header), True
        self._part += 1

    def _make_room(self) -> None:
        for number in range(self._files - 1, 0, -1):
            younger = self.path if number == 1 else self._named(number - 1)
            if younger.exists():
                os.replace(younger, self._named(number))

    def _named(self, suffix: object) -> Path:
        return self.path.with_name(f"{self.path.name}.{suffix}")


def _refuse_if_in_use(path: Path) -> None:
    """Raise an error if another process writes this journal: the two would rename each other's files."""
    if not path.exists():
        return
    if not path.is_file():
        raise SettingError(f"the journal {path} cannot be written: it is not a file")
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SettingError(f"another process writes the journal {path}: give each its own file") from None
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]
