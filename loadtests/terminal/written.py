"""The output of commands: if it cannot be written, the error names the option, and the exit status is 2."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from gateway.cli.output import console

FOLDER = Path("loadtest-results")
"""Results go to a folder in it, unless an option names another."""


@contextmanager
def writing(path: Path, option: str) -> Iterator[None]:
    """A context for code that makes or writes `path`."""
    try:
        yield
    except OSError as error:
        console(stderr=True).print(f"{option}: cannot write {path}: {_why(path, error)}", style="red")
        raise typer.Exit(2) from None


def make_folder(path: Path, option: str) -> None:
    """Check, before the work, that `path` can be written."""
    with writing(path, option):
        path.mkdir(parents=True, exist_ok=True)
        _may_write(path)


def check_writable(path: Path, option: str, *, folder: bool = False) -> None:
    """Check, before the work, that an existing `path` is of the right kind. Also check that a file has a parent folder,
    and that this user may write there.
    """
    with writing(path, option):
        if folder and any(part.exists() and not part.is_dir() for part in (path, *path.parents)):
            raise NotADirectoryError
        if not folder and path.is_dir():
            raise IsADirectoryError
        if not folder and not path.parent.is_dir():
            raise FileNotFoundError
        _may_write(next(one for one in (path, *path.parents) if one.exists()))


def _may_write(there: Path) -> None:
    if not os.access(there, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _why(path: Path, error: OSError) -> str:
    match error:
        case FileNotFoundError():
            return f"the folder {path.parent} does not exist: make it first"
        case IsADirectoryError():
            return "that is a folder: name a file"
        case NotADirectoryError() | FileExistsError():
            return "that is a file: name a folder"
        case _:
            return error.strerror or str(error)
