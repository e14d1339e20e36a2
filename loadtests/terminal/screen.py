"""Where commands print, a terminal as it is, a file or a pipe as wide as tables want; and how they write paths."""

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
    """A path as it is typed from here."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
