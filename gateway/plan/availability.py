"""The share of time in which enough replicas are up, if they fail independently."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Availability:
    """Shares of the time (0-1)."""

    replica: float
    """Share of the time in which a given replica is up."""
    all_up: float
    """Share of the time in which all replicas are up."""
    enough_up: float
    """Share of the time in which at least the needed number of replicas is up."""
    any_up: float
    """Share of the time in which at least one replica is up."""


def availability(replica: float, replicas: int, needed: int) -> Availability:
    """Availability of `replicas` replicas if `needed` of them are enough for the load. Each is up with probability
    `replica` (above 0, at most 1).
    """
    return Availability(
        replica=replica,
        all_up=replica**replicas,
        enough_up=at_least(replica, replicas, needed),
        any_up=-math.expm1(replicas * math.log1p(-replica)) if replica < 1.0 else 1.0,
    )


def at_least(chance: float, of: int, needed: int) -> float:
    """P(at least `needed` of `of` replicas are up): a binomial sum, computed with logarithms."""
    if chance >= 1.0:
        return 1.0 if needed <= of else 0.0
    up, down = math.log(chance), math.log1p(-chance)

    def lost(n: int) -> float:
        ways = math.lgamma(of + 1) - math.lgamma(n + 1) - math.lgamma(of - n + 1)
        return math.exp(ways + n * down + (of - n) * up)

    return min(1.0, math.fsum(map(lost, range(of - needed + 1))))
