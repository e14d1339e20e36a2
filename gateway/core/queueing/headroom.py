"""Places that less urgent tiers leave free, so that a request of a more urgent tier seldom waits for one.

Requests of urgent tiers take places at `arrivals` per second, and every request that ends gives one back, at `ends` per
second. While less urgent tiers leave k places free, these are all taken with probability r^k, r = arrivals / ends (a
birth-death chain). Who finds none waits for the next end, or for several (M/M/1):

    P(wait > t) = r^k exp(-(ends - arrivals) t)

k is the smallest for which that is no more than an objective allows. It is a handful: trunk reservation, as telephone
networks have it (Key, "Optimal control and trunk reservation in loss networks", 1990). If urgent tiers take nearly all,
it is bounded by the square root of their requests in flight, which is how much these vary. More would stand empty.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from gateway.core.policy import Objective

MIN_LOAD: Final = 1e-3
MAX_LOAD: Final = 0.9
"""Urgent tiers that take more of the ends than this are treated as if they took this."""
WAIT_SHARE: Final = 0.2
"""Part of a TTFT objective that may be spent on waiting for a place."""


def places_kept(objectives: Iterable[Objective], arrivals_per_s: float, ends_per_s: float, in_flight: int) -> int:
    """Places to leave free for tiers with these TTFT objectives.

    `arrivals_per_s` and `in_flight` are those of the tiers themselves and of more urgent ones, `ends_per_s` of all.
    """
    if arrivals_per_s <= 0.0 or ends_per_s <= 0.0:
        return 0
    load = max(MIN_LOAD, min(MAX_LOAD, arrivals_per_s / ends_per_s))
    spare_per_s = (1.0 - load) * ends_per_s
    most = 0.0
    for objective in objectives:
        allowed = math.log(1.0 - objective.quantile) + spare_per_s * WAIT_SHARE * objective.threshold_s
        most = max(most, allowed / math.log(load))
    return math.ceil(min(most, math.sqrt(in_flight + 1)))
