"""Long work in parts, one part in each turn of the event loop, so that no turn is long even with many owners."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

Part: TypeAlias = Callable[[], None]
"""Does a little work, and adds itself again if more is left; never raises."""


class Turns:
    """Owners of long work, served in rotation."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: deque[Part] = deque()

    def add(self, part: Part) -> None:
        """Queue a part of work, after the owners that already wait."""
        self._parts.append(part)
        if len(self._parts) == 1:
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        part = self._parts.popleft()
        if self._parts:
            asyncio.get_running_loop().call_soon(self._run)
        part()
