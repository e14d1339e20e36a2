"""Quantiles of samples, by rank."""

from __future__ import annotations

import math
from collections.abc import Sequence

PERCENTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}


def rank(ordered: Sequence[float], q: float) -> float:
    """A quantile (0-1], by nearest rank: the least value that at least a share `q` of them does not exceed.

    Raises ValueError if there are none.
    """
    if len(ordered) == 0:
        raise ValueError("no values")
    return ordered[place(len(ordered), q)]


def place(n: int, q: float) -> int:
    """The index of the quantile `q` among `n` sorted values."""
    return max(0, math.ceil(q * n) - 1)


def interval(ordered: Sequence[float], q: float) -> tuple[float, float]:
    """The 95% interval of a quantile. Its ends are the values at the ranks between which a binomial count of `n` draws
    lies.

    The upper end is inf if there are too few values: for a p99, fewer than some 480.
    """
    n = len(ordered)
    half = 1.96 * math.sqrt(n * q * (1.0 - q))
    low, high = (max(0, round(n * q + side * half)) for side in (-1, 1))
    return ordered[min(n - 1, low)], ordered[high] if high < n else math.inf


def overlap(one: Sequence[float], other: Sequence[float], q: float) -> bool | None:
    """Whether the 95% intervals of the quantile in two ordered samples overlap; None if a sample is too small."""
    (low, high), (bottom, top) = interval(one, q), interval(other, q)
    if math.isinf(high) or math.isinf(top):
        return None
    return low <= top and bottom <= high


def off(live: float, told: float) -> float:
    """Relative error of `told`, as a share of `live`; inf if `live` is 0 and `told` is not, or if either is
    infinite."""
    if not (math.isfinite(live) and math.isfinite(told)):
        return math.inf
    if live == 0.0:
        return 0.0 if told == 0.0 else math.inf
    return abs(told / live - 1.0)
