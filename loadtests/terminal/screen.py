"""The console of commands, and the form of paths. A terminal keeps its width; a file or a pipe is as wide as tables
need."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from gateway.cli.output import console

WIDTH = 160


def screen() -> Console:
    """Standard output."""
    out = console()
    if not out.is_terminal:
        out.width = WIDTH
    return out


def short(path: Path) -> str:
    """A path, relative to the working directory if that is shorter."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
