"""Runs long work in parts, one part in each turn of the event loop. So no turn takes long, even with many pieces of
work.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

Part: TypeAlias = Callable[[], None]
"""A function that does one part of a work, and calls `Turns.add` with itself if more is left. It never raises."""


class Turns:
    """Pieces of long work, which get their turns in rotation."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: deque[Part] = deque()

    def add(self, part: Part) -> None:
        """Queue a part of work behind the parts that already wait."""
        self._parts.append(part)
        if len(self._parts) == 1:
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        part = self._parts.popleft()
        if self._parts:
            asyncio.get_running_loop().call_soon(self._run)
        part()
