"""Small statistics: histograms whose quantiles have a bounded relative error, and a rate limit for samples."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate


class Pace:
    """A rate limit for samples. It passes at most `per_s` samples per second, and all of them if they come more slowly.

    Only time decides, never the value, so the selection is unbiased. Samples that were not used are carried over, for
    at most one second.
    """

    __slots__ = ("_every_s", "_next_at")

    def __init__(self, per_s: float) -> None:
        self._every_s = 1.0 / per_s
        self._next_at = -math.inf

    def due(self, now: float) -> bool:
        """Whether to take a sample now. If True, the sample is counted."""
        if now < self._next_at:
            return False
        self._next_at = max(self._next_at, now - 1.0) + self._every_s
        return True


def log_edges(low: float, high: float, relative_error: float, exact: Iterable[float] = ()) -> tuple[float, ...]:
    """Upper edges of histogram buckets from `low` to at least `high`.

    The geometric middle of a bucket differs from its values by at most `relative_error` (0-1). The values of `exact`
    become edges, too, which only makes buckets narrower. The ratio of neighbouring edges is (1+e)^2, as in DDSketch
    (Masson, Rim and Lee, VLDB 2019), but with the geometric middle instead of the harmonic.
    """
    ratio = (1.0 + relative_error) ** 2
    steps = math.ceil(math.log(high / low) / math.log(ratio))
    return tuple(sorted({low * ratio**step for step in range(steps + 1)} | set(exact)))


class LogHistogram:
    """Counts of values by bucket: `counts[i]` counts edges[i-1] < value <= edges[i]. The last bucket counts all values
    above.

    `add` is on the hot path: it does a bisection and two additions. `counts` only grows. So the difference of two
    copies is the histogram of the values added between them.
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
        """The nearest-rank quantile `q` (0-1) of all values; None if there are none."""
        return quantile(self.edges, self.counts, q)


def edge_of(edges: tuple[float, ...], value: float) -> int:
    """Index of the first edge >= `value`; the number of edges if all are below.

    This is `bisect_left`, written out for floats: compiled, it takes a third of the time.
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
    """Index of the bucket with the nearest-rank quantile `q` (0-1); None if all counts are 0."""
    total = sum(counts)
    if not total > 0:
        return None
    # The rank is lowered slightly, because sums of weights have rounding errors. It stays above 0 for q = 0.
    return bisect_left(list(accumulate(counts)), max(q - 1e-9, 1e-9) * total)


def quantile(edges: Sequence[float], counts: Sequence[float], q: float) -> float | None:
    """The nearest-rank quantile `q` (0-1) of a histogram, as the geometric middle of its bucket.

    For the first bucket the result is the lowest edge, for the last bucket the highest edge.
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
    """The largest number of misses in `n` trials that is not significantly many (one-sided, 5%) if P(miss) = `p`
    (0-1).
    """
    spread = math.sqrt(n * p * (1.0 - p))
    k = max(0, int(n * p - 10.0 * spread))  # the sum of the earlier terms is below 1e-20
    log_term = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) + (n - k) * math.log1p(-p)
    log_term += k * math.log(p) if k else 0.0
    below = 0.0
    while (below := below + math.exp(log_term)) < 0.95 and k < n:
        log_term += math.log((n - k) / (k + 1) * p / (1.0 - p))
        k += 1
    return k
