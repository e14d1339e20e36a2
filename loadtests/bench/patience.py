"""Waiting for events that may be late on a slow machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


async def until(holds: Callable[[], bool], patience_s: float, every_s: float = 0.01) -> None:
    """Return when `holds()` is true, or when patience ends. It polls, because setting an event for each answer would
    cost more.
    """
    deadline = time.monotonic() + patience_s
    while not holds() and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(every_s)
