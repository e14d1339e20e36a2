"""Small statistics: histograms whose quantiles have a bounded relative error, and a pace for samples."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate


class Pace:
    """Passes at most `per_s` samples a second, and all samples if they come more slowly.

    Time alone decides, never the value, so the selection is unbiased. Unused samples are kept for one second.
    """

    __slots__ = ("_every_s", "_next_at")

    def __init__(self, per_s: float) -> None:
        self._every_s = 1.0 / per_s
        self._next_at = -math.inf

    def due(self, now: float) -> bool:
        """Whether to take a sample now. A yes is counted."""
        if now < self._next_at:
            return False
        self._next_at = max(self._next_at, now - 1.0) + self._every_s
        return True


def log_edges(low: float, high: float, relative_error: float, exact: Iterable[float] = ()) -> tuple[float, ...]:
    """Upper edges of buckets from `low` to at least `high`.

    The geometric middle of a bucket is within `relative_error` (0-1) of its values. `exact` values become edges too,
    which only makes buckets narrower. The bucket ratio is (1+e)^2: that of DDSketch (Masson, Rim and Lee, VLDB 2019),
    with the geometric instead of the harmonic middle.
    """
    ratio = (1.0 + relative_error) ** 2
    steps = math.ceil(math.log(high / low) / math.log(ratio))
    return tuple(sorted({low * ratio**step for step in range(steps + 1)} | set(exact)))


class LogHistogram:
    """Counts of values by bucket: `counts[i]` holds edges[i-1] < value <= edges[i], the last one all above.

    `add` is the hot path: a bisection and two additions. `counts` only grows, so the difference of two copies is the
    histogram of the time between them.
    """

    __slots__ = ("counts", "edges", "sum")

    def __init__(self, edges: Sequence[float]) -> None:
        self.edges = tuple(edges)
        self.counts: list[float] = [0] * (len(edges) + 1)
        self.sum = 0.0

    def add(self, value: float, weight: float = 1) -> None:
        """Count `value` (>= 0) `weight` times."""
        self.counts[edge_of(self.edges, value)] += weight
        self.sum += value * weight

    def quantile(self, q: float) -> float | None:
        """The nearest-rank quantile `q` (0-1) of everything added; None without a value."""
        return quantile(self.edges, self.counts, q)


def edge_of(edges: tuple[float, ...], value: float) -> int:
    """Index of the first edge that is not below `value`; their number if all are.

    It is `bisect_left`, written out: compiled, it takes a third of the time of the one that compares objects.
    """
    low, high = 0, len(edges)
    while low < high:
        middle = (low + high) // 2
        if edges[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


def bucket_of(counts: Sequence[float], q: float) -> int | None:
    """Index of the bucket that holds the nearest-rank quantile `q` (0-1); None without a count."""
    total = sum(counts)
    if not total > 0:
        return None
    # Slightly below the rank, since sums of weights round; above 0, for q = 0.
    return bisect_left(list(accumulate(counts)), max(q - 1e-9, 1e-9) * total)


def quantile(edges: Sequence[float], counts: Sequence[float], q: float) -> float | None:
    """The nearest-rank quantile of bucket `counts`, as the geometric middle of its bucket.

    Values at or below the lowest edge read as that edge, values above the highest edge as the highest.
    """
    index = bucket_of(counts, q)
    if index is None:
        return None
    if index == 0:
        return edges[0]
    if index == len(edges):
        return edges[-1]
    return math.sqrt(edges[index - 1] * edges[index])


def most_by_chance(n: int, p: float) -> int:
    """The most misses of `n` that are not significant (one-sided 5%) where each is one with probability `p` (0-1)."""
    spread = math.sqrt(n * p * (1.0 - p))
    k = max(0, int(n * p - 10.0 * spread))  # the sum of the terms before is below 1e-20
    log_term = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) + (n - k) * math.log1p(-p)
    log_term += k * math.log(p) if k else 0.0
    below = 0.0
    while (below := below + math.exp(log_term)) < 0.95 and k < n:
        log_term += math.log((n - k) / (k + 1) * p / (1.0 - p))
        k += 1
    return k
