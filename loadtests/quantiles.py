"""Quantiles of what was measured, by rank."""

from __future__ import annotations

import math
from collections.abc import Sequence


def rank(ordered: Sequence[float], q: float) -> float:
    """A quantile (0-1), by nearest rank: a value that occurred."""
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def interval(ordered: Sequence[float], q: float) -> tuple[float, float]:
    """95% of a quantile, from the ranks that a binomial count of `n` draws lies between."""
    n = len(ordered)
    half = 1.96 * math.sqrt(n * q * (1.0 - q))
    low, high = (min(n - 1, max(0, round(n * q + side * half))) for side in (-1, 1))
    return ordered[low], ordered[high]
