"""Counts of the last minute, as differences of counts that only grow."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Final

from gateway.core.estimators.histograms import LogHistogram, log_edges, quantile

SPAN_S: Final = 60.0
SLICE_S: Final = 5.0
RELATIVE_ERROR: Final = 0.02
MIN_S, MAX_S = 1e-4, 3600.0
NEVER: Final = -math.inf


class Sliding:
    """The increase of `counts` over the last `span_s` seconds, in steps of `slice_s`.

    The counts are copied at each step, so adding to them costs nothing extra. If `due` has passed, `roll` must be
    called before anything is added. Then the window is at least `span_s` and less than `span_s + slice_s` long.
    """

    __slots__ = ("_copies", "_slice_s", "_span_s", "counts", "due")

    def __init__(self, counts: list[float], span_s: float = SPAN_S, slice_s: float = SLICE_S) -> None:
        self.counts = counts
        self.due = NEVER
        """Time at which the next copy is due."""
        self._span_s = span_s
        self._slice_s = slice_s
        self._copies: deque[tuple[float, list[float]]] = deque([(NEVER, [0] * len(counts))])

    def roll(self, now: float) -> None:
        """Make a copy if one is due, and drop copies that are no longer needed."""
        if now < self.due:
            return
        if self.due > NEVER:
            # Nothing was added since `due`, so the current counts equal those at `due`.
            self._copies.append((self.due, self.counts.copy()))
        self.due = now + self._slice_s
        while len(self._copies) > 1 and self._copies[1][0] <= now - self._span_s:
            self._copies.popleft()

    def read(self, now: float) -> list[float]:
        """The increase of the counts in the window up to `now`, which must not be before the last `roll`."""
        start = now - self._span_s
        if start >= self.due > NEVER:
            return [0] * len(self.counts)
        base = next((copy for at, copy in reversed(self._copies) if at <= start), self._copies[0][1])
        return [count - before for count, before in zip(self.counts, base, strict=True)]


EDGES: Final = log_edges(MIN_S, MAX_S, RELATIVE_ERROR)


class Quantiles:
    """Quantiles of durations over a sliding window, to within `RELATIVE_ERROR` from 0.1 ms to an hour."""

    __slots__ = ("_sliding", "histogram")

    def __init__(self, edges: Sequence[float] = EDGES, span_s: float = SPAN_S, slice_s: float = SLICE_S) -> None:
        self.histogram = LogHistogram(edges)
        self._sliding = Sliding(self.histogram.counts, span_s, slice_s)

    def add(self, value_s: float, now: float) -> None:
        """Count one duration at `now` (monotonic seconds, never decreasing)."""
        if now >= self._sliding.due:
            self._sliding.roll(now)
        self.histogram.add(value_s)

    def roll(self, now: float) -> None:
        """Advance the window to `now`. Needed only if values are added to `histogram` directly."""
        self._sliding.roll(now)

    def read(self, now: float) -> list[float]:
        """Bucket counts in the window up to `now`."""
        return self._sliding.read(now)

    def quantile(self, q: float, now: float) -> float | None:
        """The quantile `q` (0-1) in the window up to `now`; None if it has no values."""
        return quantile(self.histogram.edges, self.read(now), q)
