"""Keeps the key for hashes of prompts in the state directory, so that conversations have the same replicas after a
restart.

Python's hash takes its key from PYTHONHASHSEED when the process begins, and never again. So a process that has another
key begins once more.
"""

from __future__ import annotations

import os
import secrets
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

NAME: Final = "hash-seed"
VARIABLE: Final = "PYTHONHASHSEED"
MAX_SEED: Final = 2**32 - 1


class HashSeedError(ValueError):
    """The file has no seed, or cannot be read. The message says why, after the name of the file."""


def new_seed() -> str:
    """A random seed."""
    return str(1 + secrets.randbelow(MAX_SEED))


def read_seed(directory: Path) -> str | None:
    """The seed in a directory; None if there is none. Raises `HashSeedError`."""
    try:
        text = (directory / NAME).read_bytes().removesuffix(b"\n")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise HashSeedError(f"cannot be read: {error.strerror}") from None
    if not text.isdigit() or text.startswith(b"0") or len(text) > len(str(MAX_SEED)) or int(text) > MAX_SEED:
        raise HashSeedError(f"has no number from 1 to {MAX_SEED}")
    return text.decode()


def seed_of(directory: Path) -> str | None:
    """The seed in a directory, made if there is none; None if it cannot be used. `StateDir` says then why."""
    try:
        seed = read_seed(directory)
        if seed is None:
            _make(directory)
            seed = read_seed(directory)  # perhaps that of another process, which was first
        return seed
    except (OSError, HashSeedError):
        return None


def _make(directory: Path) -> None:
    """Write a new seed. A name that exists already is left alone: another process made it at the same time."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = directory / f"{NAME}.{os.getpid()}"
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "w") as file:
            file.write(f"{new_seed()}\n")
            file.flush()
            os.fsync(fd)
        with suppress(FileExistsError):
            os.link(new, directory / NAME)
    finally:
        new.unlink()


def begin_with_seed(directory: Path) -> None:
    """Begin this process once more, with the seed of a directory, unless it has it already. Only threads and files of
    the interpreter itself may be open.
    """
    seed = seed_of(directory)
    if seed is not None and os.environ.get(VARIABLE) != seed:
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, VARIABLE: seed})
