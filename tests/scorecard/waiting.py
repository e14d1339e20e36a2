"""Waits for a condition with a deadline, never by a bare sleep."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

DEADLINE_S = 60.0
SOAK = os.environ.get("TAILGATE_SOAK") == "1"
"""Whether to run the numbers of the scorecard in full; the ordinary run takes a sample of them."""


async def until(
    condition: Callable[[], object], timeout_s: float = DEADLINE_S, *, seen: Callable[[], object] = str
) -> float:
    """Wait until `condition()` is true. Returns the seconds that it took. Raises AssertionError after `timeout_s`.

    For conditions without an event: it is checked every few milliseconds. `seen()` is shown after a failure.
    """
    loop = asyncio.get_running_loop()
    start = loop.time()
    while not condition():
        if loop.time() - start > timeout_s:
            raise AssertionError(f"not true after {timeout_s} s: {seen()}")
        await asyncio.sleep(0.002)
    return loop.time() - start
