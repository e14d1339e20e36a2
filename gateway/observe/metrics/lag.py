"""Lateness of the event loop: waits of ready work, and the longest recent wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.core.stats import LogHistogram

INTERVAL_S = 0.1
HOLD_S = 15.0
EDGES = (0.0005, 0.001, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds. From about 5 ms on, pauses of a token stream are noticed."""


class LoopLag:
    """Sleeps in short steps, measures how late it wakes, and keeps the maximum of the last 15 to 30 seconds.

    A maximum since the last scrape would differ between two scrapers; one over a fixed time is the same for all.
    """

    def __init__(
        self, clock: Callable[[], float], each: Callable[[float], None], interval_s: float = INTERVAL_S
    ) -> None:
        """`each(now)` is called at every step, as a clock for other parts."""
        self.waits = LogHistogram(EDGES)
        """Seconds that the loop was late, one sample per interval since the start.

        A stall counts one sample for every interval in it, each shorter than the one before. One sample per wake-up
        would hide most of the stall (coordinated omission).
        """
        self._clock = clock
        self._each = each
        self._interval_s = interval_s
        self._turn = clock() + HOLD_S
        self._now_s = 0.0
        self._before_s = 0.0

    async def run(self) -> None:
        """Measure until cancelled."""
        now = self._clock()
        while True:
            # Counted from its wake-up, so that the time in `each` is included: other work waits for that, too.
            due = now + self._interval_s
            await asyncio.sleep(max(0.0, due - self._clock()))
            now = self.woke(due)

    def woke(self, due: float) -> float:
        """Note one wake-up that was due at `due`. Returns its time."""
        now = self._clock()
        if now >= self._turn:
            self._turn = now + HOLD_S
            self._before_s, self._now_s = self._now_s, 0.0
        wait_s = max(0.0, now - due)
        self._now_s = max(self._now_s, wait_s)
        self.waits.add(wait_s)
        while (wait_s := wait_s - self._interval_s) > 0.0:
            self.waits.add(wait_s)
        self._each(now)
        return now

    def read(self) -> float:
        """The largest recent lag, in seconds."""
        return max(self._now_s, self._before_s)
