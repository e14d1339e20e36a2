"""Confidence intervals for differences between two groups of requests. They stay valid even if they are read many
times.

A plain 95% interval is valid for one reading, but an operator checks a canary every minute. So these intervals are
wider: they are confidence sequences (Robbins 1970), in the asymptotic form of Waudby-Smith et al. (2021).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from gateway.core.stats import quantile

MIN_REQUESTS: Final = 30
"""With fewer requests than this in either group, there is no interval."""
_ALPHA: Final = 0.05 / 4
"""Probability that one figure is ever misleading, however often it is read. For the four compared figures together, it
is 5%.
"""
_RHO2: Final = 11.0 / 400
"""Parameter of the confidence sequence. With it, the intervals are tightest at about 400 requests in the smaller
group.
"""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and its confidence interval."""

    value: float
    low: float
    high: float

    def minus(self, other: Estimate) -> Estimate:
        """The difference of two independent figures. Its margins are the root of the sum of both squared margins
        (Newcombe 1998, method 10).
        """
        value = self.value - other.value
        low = value - math.hypot(self.value - self.low, other.high - other.value)
        high = value + math.hypot(self.high - self.value, other.value - other.low)
        return Estimate(value, low, high)


def deviations(one: float, other: float) -> float:
    """Half the width of an interval, in standard deviations, for groups of `one` and `other` requests."""
    spread = _RHO2 * one * other / (one + other)
    return math.sqrt(2.0 * (1.0 + 1.0 / spread) * math.log(math.sqrt(1.0 + spread) / _ALPHA))


def share(hits: float, total: float, z: float) -> Estimate:
    """A share (0-1), with the interval of Wilson (1927). `z`: half the width in standard deviations."""
    rate, grown = hits / total, z * z / total
    middle = (rate + grown / 2) / (1 + grown)
    margin = z / (1 + grown) * math.sqrt(rate * (1 - rate) / total + grown / (4 * total))
    return Estimate(rate, max(0.0, min(rate, middle - margin)), min(1.0, max(rate, middle + margin)))


def quantile_of(edges: Sequence[float], counts: Sequence[float], q: float, z: float) -> Estimate | None:
    """The quantile `q` (0-1) of a histogram. Its interval is bounded by the buckets with the lowest and highest
    plausible rank.

    None if there are too few requests for this quantile, so that such a rank does not exist.
    """
    total = sum(counts)
    value = quantile(edges, counts, q)
    margin = z * math.sqrt(q * (1 - q) / total) if total else 1.0
    if value is None or not 0.0 < q - margin < q + margin < 1.0:
        return None
    ranks = list(accumulate(counts))
    below, above = (bisect_left(ranks, (q + sign * margin) * total) for sign in (-1, 1))
    low, high = edges[max(0, below - 1)], edges[min(above, len(edges) - 1)]
    return Estimate(value, min(low, value), max(high, value))
