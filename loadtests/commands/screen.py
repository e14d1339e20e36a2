"""Where commands print: a terminal as it is, a file or a pipe as wide as tables want."""

from __future__ import annotations

from rich.console import Console

from gateway.cli.output import console

WIDTH = 160


def screen() -> Console:
    """Standard output."""
    out = console()
    if not out.is_terminal:
        out.width = WIDTH
    return out
