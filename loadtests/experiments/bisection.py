"""Finds the highest rate that is still good, by bisection."""

from __future__ import annotations

import math
from collections.abc import Callable


def highest_rate(is_good: Callable[[float], bool], low: float, precision: float) -> float:
    """The highest good rate, within a factor of `precision` (> 1). `low` (> 0): where the search begins."""
    high = 2.0 * low
    while not is_good(low):
        low, high = low / 2.0, low
    while is_good(high):
        low, high = high, 2.0 * high
    while high / low > precision:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if is_good(middle) else (low, middle)
    return low
