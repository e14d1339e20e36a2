"""Measures how late the event loop is: how long ready work waits, and the longest recent wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.core.estimators.histograms import LogHistogram

INTERVAL_S = 0.1
HOLD_S = 15.0
EDGES = (0.0005, 0.001, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Bucket edges in seconds. From about 5 ms on, pauses in a token stream are noticeable."""


class LoopLag:
    """Sleeps in short steps, measures how late it wakes up, and keeps the maximum of the last 15 to 30 seconds.

    A maximum since the last scrape would differ between two scrapers. A maximum over a fixed time is the same for all
    scrapers.
    """

    def __init__(
        self, clock: Callable[[], float], each: Callable[[float], None], interval_s: float = INTERVAL_S
    ) -> None:
        """`each(now)`: called at every step, as a clock for other parts."""
        self.waits = LogHistogram(EDGES)
        """Histogram of the seconds that the loop was late: one sample per interval since the start.

        A long stall gives one sample for every interval within it, each shorter by one interval. With only one sample
        per wake-up, most of the stall would be hidden (coordinated omission).
        """
        self._clock = clock
        self._each = each
        self._interval_s = interval_s
        self._hold_until = clock() + HOLD_S
        self._now_s = 0.0
        self._before_s = 0.0

    async def run(self) -> None:
        """Measure until cancelled."""
        now = self._clock()
        while True:
            # The next step is due one interval after the wake-up. So the time in `each` counts as lag: other work waits
            # for it, too.
            due = now + self._interval_s
            await asyncio.sleep(max(0.0, due - self._clock()))
            now = self.woke(due)

    def woke(self, due: float) -> float:
        """Record a wake-up that was due at `due`. Returns the present time."""
        now = self._clock()
        if now >= self._hold_until:
            self._hold_until = now + HOLD_S
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
