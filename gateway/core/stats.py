"""Small statistics of what was seen: histograms whose quantiles have a bounded relative error; a pace for samples."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate


class Pace:
    """Lets at most `per_s` samples a second through, of what comes slower than that every one.

    By time alone, never by value, so what is let through is no biased choice. What was not used is kept for a second.
    """

    __slots__ = ("_every_s", "_next_at")

    def __init__(self, per_s: float) -> None:
        self._every_s = 1.0 / per_s
        self._next_at = -math.inf

    def due(self, now: float) -> bool:
        """Whether to take a sample now; if so, it is counted."""
        if now < self._next_at:
            return False
        self._next_at = max(self._next_at, now - 1.0) + self._every_s
        return True


def log_edges(low: float, high: float, relative_error: float, exact: Iterable[float] = ()) -> tuple[float, ...]:
    """Upper edges of buckets from `low` to at least `high` whose geometric middle is within `relative_error` (0-1).

    `exact` values become edges too; that only makes buckets narrower. The bucket ratio is (1+e)^2, DDSketch's
    (Masson, Rim and Lee, VLDB 2019) with the geometric instead of the harmonic middle.
    """
    ratio = (1.0 + relative_error) ** 2
    steps = math.ceil(math.log(high / low) / math.log(ratio))
    return tuple(sorted({low * ratio**step for step in range(steps + 1)} | set(exact)))


class LogHistogram:
    """Counts of values by bucket: `counts[i]` holds edges[i-1] < value <= edges[i], the last one all above.

    `add` is the hot path (a bisection and two additions); `counts` only grows, so that the difference of two
    copies of it is the histogram of what came between.
    """

    __slots__ = ("counts", "edges", "sum")

    def __init__(self, edges: Sequence[float]) -> None:
        self.edges = tuple(edges)
        self.counts: list[float] = [0] * (len(edges) + 1)
        self.sum = 0.0

    def add(self, value: float, weight: float = 1) -> None:
        """Count `value` (>= 0) `weight` times."""
        self.counts[_index(self.edges, value)] += weight
        self.sum += value * weight

    def quantile(self, q: float) -> float | None:
        """The nearest-rank quantile `q` (0-1) of everything added; None if that is nothing."""
        return quantile(self.edges, self.counts, q)


def _index(edges: tuple[float, ...], value: float) -> int:
    """`bisect_left`, written out: compiled, it takes a third of the time that one takes which compares objects."""
    low, high = 0, len(edges)
    while low < high:
        middle = (low + high) // 2
        if edges[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


def bucket_of(counts: Sequence[float], q: float) -> int | None:
    """Which bucket holds the nearest-rank quantile `q` (0-1) of all that is counted; None if that is nothing."""
    total = sum(counts)
    if not total > 0:
        return None
    # A little under the rank, for sums of weights that round; at least a little, for q = 0.
    return bisect_left(list(accumulate(counts)), max(q - 1e-9, 1e-9) * total)


def quantile(edges: Sequence[float], counts: Sequence[float], q: float) -> float | None:
    """The nearest-rank quantile of bucket `counts`, as the geometric middle of its bucket.

    Values at or below the lowest edge read as that edge, values above the highest as the highest.
    """
    index = bucket_of(counts, q)
    if index is None:
        return None
    if index == 0:
        return edges[0]
    if index == len(edges):
        return edges[-1]
    return math.sqrt(edges[index - 1] * edges[index])
