"""Waiting for what must come true, with a deadline: never a bare sleep."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

DEADLINE_S = 10.0
SOAK = os.environ.get("TAILGATE_SOAK") == "1"
"""Whether to run the numbers of the scorecard in full; the ordinary run takes a sample of them."""


async def until(
    condition: Callable[[], object], timeout_s: float = DEADLINE_S, *, seen: Callable[[], object] = str
) -> float:
    """Wait until `condition()` is true; how long it took, in seconds. Raises AssertionError after `timeout_s`.

    For what has no event of its own: it is looked at every few milliseconds. `seen()` is shown if it never comes.
    """
    loop = asyncio.get_running_loop()
    start = loop.time()
    while not condition():
        if loop.time() - start > timeout_s:
            raise AssertionError(f"not true after {timeout_s} s: {seen()}")
        await asyncio.sleep(0.002)
    return loop.time() - start
