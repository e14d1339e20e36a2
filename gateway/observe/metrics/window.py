"""Counts of the last minute, as differences of counts that only grow."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Final

from gateway.core.estimators.histograms import LogHistogram, log_edges

SPAN_S: Final = 60.0
SLICE_S: Final = 5.0
RELATIVE_ERROR: Final = 0.02
MIN_S, MAX_S = 1e-4, 3600.0
NEVER: Final = -math.inf


class Sliding:
    """The increase of `counts` over the last `SPAN_S` seconds, in steps of `SLICE_S`.

    The counts are copied at each step, so adding to them costs nothing extra. If `due` has passed, `roll` must be
    called before anything is added. Then the window is at least `SPAN_S` and less than `SPAN_S + SLICE_S` long.
    """

    __slots__ = ("_copies", "counts", "due")

    def __init__(self, counts: list[float]) -> None:
        self.counts = counts
        self.due = NEVER
        """Time at which the next copy is due."""
        self._copies: deque[tuple[float, list[float]]] = deque([(NEVER, [0] * len(counts))])

    def roll(self, now: float) -> None:
        """Make a copy if one is due, and drop copies that are no longer needed."""
        if now < self.due:
            return
        if self.due > NEVER:
            # Nothing was added since `due`, so the current counts equal those at `due`.
            self._copies.append((self.due, self.counts.copy()))
        self.due = now + SLICE_S
        while len(self._copies) > 1 and self._copies[1][0] <= now - SPAN_S:
            self._copies.popleft()

    def read(self, now: float) -> list[float]:
        """The increase of the counts in the window up to `now`, which must not be before the last `roll`."""
        start = now - SPAN_S
        if start >= self.due > NEVER:
            return [0] * len(self.counts)
        base = next((copy for at, copy in reversed(self._copies) if at <= start), self._copies[0][1])
        return [count - before for count, before in zip(self.counts, base, strict=True)]


EDGES: Final = log_edges(MIN_S, MAX_S, RELATIVE_ERROR)


class Quantiles:
    """Durations over a sliding window: their quantiles are right to within `RELATIVE_ERROR`, from 0.1 ms to an hour."""

    __slots__ = ("_sliding", "histogram")

    def __init__(self, edges: Sequence[float] = EDGES) -> None:
        self.histogram = LogHistogram(edges)
        """Takes the durations, after `roll`."""
        self._sliding = Sliding(self.histogram.counts)

    def roll(self, now: float) -> None:
        """Advance the window to `now`."""
        self._sliding.roll(now)

    def read(self, now: float) -> list[float]:
        """Bucket counts in the window up to `now`."""
        return self._sliding.read(now)
