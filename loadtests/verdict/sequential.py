"""A share that is watched while a test runs: bounds that hold at every look, so that it may stop at any.

Requests of one moment are good or bad together. So the unit is a stretch of time, and the spread between stretches says
how sure the share is. The bounds are an asymptotic confidence sequence (Waudby-Smith, Arbour, Sinha, Kennedy, Ramdas,
"Time-uniform central limit theory and asymptotic confidence sequences", 2021), tuned to be tightest after `TUNED`
stretches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

MIN_STRETCHES = 10
"""With fewer stretches there are no bounds: they say too little about the spread."""
MIN_TO_PASS = 20
"""With fewer stretches no share is surely high enough: rare bursts of misses may not have come yet."""
BURSTS = 3.0
"""Least variance of the misses, as a multiple of that of independent ones. In 400 made-up tests per case whose misses
fill a half or a fifth of the stretches, 3 gives at most 1 wrong verdict; 1 gives 34, 2 gives 11.
"""
TUNED = 40
MAX_MEMORY = 0.9
"""Highest correlation of neighbouring stretches."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """A share (0-1), and the interval that holds the true one at all looks with the wanted confidence."""

    share: float
    low: float
    high: float


def bounds(stretches: Sequence[tuple[int, int]], at_most: float, alpha: float) -> Bounds | None:
    """Bounds of the share of misses, from (requests, misses) of each stretch; None if there are too few.

    `at_most` (0-1) is the share that the promise allows. The spread is never taken as less than `BURSTS` times that of
    requests that miss independently with that share: a test without a miss does not know its own spread.
    """
    known = [(n, misses) for n, misses in stretches if n]
    count, requests = len(known), sum(n for n, _ in known)
    if count < MIN_STRETCHES:
        return None
    share = sum(misses for _, misses in known) / requests
    off = [misses - share * n for n, misses in known]
    squares = sum(each * each for each in off)
    spread = squares / (count - 1) * _grown_by_memory(off, squares)
    # The spread itself is an estimate: Student's t has this much more variance than a normal variable.
    spread *= (count - 1) / (count - 3)
    least = BURSTS * at_most * (1.0 - at_most) * requests / count
    deviation = math.sqrt(max(spread, least)) * count / requests
    rho2 = (-2.0 * math.log(alpha) + math.log(1.0 - 2.0 * math.log(alpha))) / TUNED
    grown = count * rho2 + 1.0
    radius = deviation * math.sqrt(2.0 * grown / (count**2 * rho2) * math.log(math.sqrt(grown) / alpha))
    return Bounds(share, max(0.0, share - radius), min(1.0, share + radius) if count >= MIN_TO_PASS else 1.0)


def _grown_by_memory(off: Sequence[float], squares: float) -> float:
    """How many times as much the mean of the stretches varies as if they were independent.

    Near the knee a queue outlives stretches, so misses come in runs. (1 + r) / (1 - r) is this factor for an
    autoregressive process of first order with correlation r of neighbours. r is estimated; in short series it comes out
    too low by (1 + 3 r) / n (Kendall, "Note on bias in the estimation of autocorrelation", 1954).
    """
    if not squares:
        return 1.0
    seen = sum(one * other for one, other in pairwise(off)) / squares
    r = min(MAX_MEMORY, max(0.0, seen + (1.0 + 3.0 * seen) / len(off)))
    return (1.0 + r) / (1.0 - r)
