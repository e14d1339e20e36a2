"""How late the event loop is: the longest that anything ready to run had to wait lately."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

INTERVAL_S = 0.1
HOLD_S = 15.0


class LoopLag:
    """Sleeps in short steps and keeps the largest oversleep of the last `HOLD_S` to 2 x `HOLD_S` seconds.

    A maximum since the last scrape would be torn between two scrapers; one over a fixed time is the same for all.
    """

    def __init__(self, clock: Callable[[], float], each: Callable[[float], None]) -> None:
        """`each(now)` is called at every step, for whoever wants to know that time passes."""
        self._clock = clock
        self._each = each
        self._turn = clock() + HOLD_S
        self._now_s = 0.0
        self._before_s = 0.0

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            due = self._clock() + INTERVAL_S
            await asyncio.sleep(INTERVAL_S)
            self.woke(due)

    def woke(self, due: float) -> None:
        """Note one wake-up that should have come at `due`."""
        now = self._clock()
        if now >= self._turn:
            self._turn = now + HOLD_S
            self._before_s, self._now_s = self._now_s, 0.0
        self._now_s = max(self._now_s, now - due)
        self._each(now)

    def read(self) -> float:
        """The largest lag lately, in seconds."""
        return max(self._now_s, self._before_s)
