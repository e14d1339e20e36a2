"""A file without a byte in it: it has no first line from which its format could be known."""

from __future__ import annotations

from pathlib import Path

from gateway.sim.traces import TraceError


def not_empty(path: Path) -> None:
    """Raises TraceError if the file is there and empty. What is no plain file has no size that could be trusted."""
    if path.is_file() and not path.stat().st_size:
        raise TraceError(f"{path}: is empty: there is no request in it")
