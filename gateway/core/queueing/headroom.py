"""Computes how many slots less urgent tiers leave free, so that requests of more urgent tiers seldom wait.

Requests of urgent tiers take slots at the rate `arrivals`. Requests that end free slots at the rate `ends`. If less
urgent tiers leave k slots free, all k are taken with probability r^k, where r = arrivals / ends (a birth-death chain).
A request that finds no free slot waits for one or more ends (M/M/1):

    P(wait > t) = r^k exp(-(ends - arrivals) t)

k is the smallest number that keeps this probability within the misses that an objective allows. It is small, as in
trunk reservation in telephone networks (Key, "Optimal control and trunk reservation in loss networks", 1990). If urgent
tiers ask for nearly all slots, k is at most the square root of the places that their arrivals would fill: the usual
variation of that number. More free slots would stay empty. Refused arrivals count: otherwise a tier that is
refused for lack of room would seem to need none, and less urgent ones would get it.

Room is more than slots: a step that less urgent requests have made long leaves none to a tier with a tight TTFT. So
while a tier loses a larger share of its requests than its objective allows, less urgent tiers without a TTFT objective
get nothing but their floors. A request counts as lost if an idle replica would have served it in time. Tiers with a
TTFT objective do not yield: requests that they hold back would be late. When all tiers yielded, the weighted goodput of
three tiers was .62 instead of .78, and the most urgent tier gained nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Final

from gateway.core.estimators.memory import Remembering
from gateway.core.estimators.rates import Decayed, Rate
from gateway.core.policy import Tier
from gateway.core.slo import Objective

MIN_LOAD: Final = 1e-3
MAX_LOAD: Final = 0.9
"""Upper bound on r = arrivals / ends."""
WAIT_SHARE: Final = 0.2
"""A request may wait for a slot during this share (0-1) of its TTFT objective."""

DEMAND_TAU_S: Final = 5.0
YIELDS: Final = 2.0
"""A tier yields only if its e2e bound is longer than this many times the mean time of a request in the engine: one to
wait, one to be served.
"""
NOBODY: Final = 2**62
"""Less urgent than any tier."""
STOPPED_S: Final = 15.0
"""No room is kept for a tier that has sent no request for this long."""


class AskedTier(Remembering):
    """Arrivals of one tier at a pool."""

    __slots__ = ("latest_at", "lost", "rate", "tier")

    def __init__(self, tier: Tier) -> None:
        self.tier = tier
        self.latest_at = -math.inf
        """Time of the last arrival."""
        self.rate = Rate(DEMAND_TAU_S)
        self.lost = Decayed(DEMAND_TAU_S)
        """Arrivals that were lost for lack of room."""

    def remembered(self) -> tuple[str, ...]:
        return "latest_at", "rate", "lost"

    def is_short(self, stay_s: float, now: float) -> bool:
        """Whether a larger share of the arrivals was lost than the highest TTFT percentile allows, and the last of them
        within `stay_s`. Less urgent requests that were sent before it are over after that time.
        """
        if now - self.lost.latest_at >= stay_s:
            return False
        allowed = 1.0 - max((objective.quantile for objective in self.tier.slo.ttft), default=1.0)
        return self.lost.at(now) > allowed * self.rate.at(now)


class AskedTiers:
    """The tiers that use one pool, and the slots that each leaves free."""

    __slots__ = ("_kept", "_short_from", "_stay_s", "tiers")

    def __init__(self) -> None:
        self.tiers: dict[str, AskedTier] = {}
        self._kept: dict[str, int] = {}
        self._stay_s = 0.0
        self._short_from = NOBODY
        """The most urgent priority that is short of room. Less urgent tiers get nothing meanwhile."""

    def used(self, tier: Tier, now: float) -> None:
        """Count an arrival of `tier`."""
        asked = self.tiers.get(tier.name)
        if asked is None:
            asked = self.tiers[tier.name] = AskedTier(tier)
        asked.tier, asked.latest_at = tier, now
        asked.rate.add(now)

    def recall(self, tier: Tier, memory: object, shift_s: float) -> None:
        """Take over the arrivals of `tier` at a predecessor."""
        asked = self.tiers[tier.name] = AskedTier(tier)
        asked.recall(memory, shift_s)

    def take_back(self, tier: Tier, at: float, now: float) -> None:
        """Take back an arrival of `tier` at `at`, because an engine refused the request."""
        asked = self.tiers.get(tier.name)
        if asked is not None:
            asked.rate.take_back(at, now)

    def short(self, tier: Tier, now: float) -> None:
        """Count a request of `tier` that was lost for lack of room. A request that came from another pool is no arrival
        here, and does not count.
        """
        asked = self.tiers.get(tier.name)
        if asked is not None:
            asked.lost.add(now)
            if asked.is_short(math.inf, now):
                self._short_from = min(self._short_from, tier.priority)

    def yields(self, tier: Tier, is_owed: bool) -> bool:
        """Whether `tier` gets nothing now, because a more urgent one is short of room. `is_owed`: whether the tier is
        below its floor; then it does not yield. Nor does a tier with a TTFT objective, or one whose requests would be
        late afterwards.
        """
        if tier.priority <= self._short_from or is_owed or tier.slo.ttft:
            return False
        return tier.slo.e2e_bound_s > YIELDS * self._stay_s

    def kept_from(self, tier: Tier, is_owed: bool) -> int:
        """Number of slots that `tier` leaves free for more urgent tiers. `is_owed`: whether the tier is below its
        floor; then it leaves none free.
        """
        return 0 if is_owed else self._kept.get(tier.name, 0)

    @property
    def most_kept(self) -> int:
        """Number of slots that the least urgent tier leaves free."""
        return max(self._kept.values(), default=0)

    def keep(self, in_flight: Mapping[str, int], stay_s: float, ends_per_s: float, now: float) -> None:
        """Recompute the slots that each tier leaves free. `in_flight`: requests under way, by tier. `stay_s`: mean time
        of a request in the engine.
        """
        self._stay_s = stay_s
        asked = sorted((one for one in self.tiers.values() if now - one.latest_at < STOPPED_S), key=_priority)
        self._short_from = min([one.tier.priority for one in asked if one.is_short(stay_s, now)], default=NOBODY)
        self._kept = {}
        arrivals_per_s = 0.0
        kept = held = 0
        for _, group in groupby(asked, key=_priority):
            equals = list(group)
            for one in equals:
                self._kept[one.tier.name] = kept
                arrivals_per_s += one.rate.per_s(now)
                held += in_flight.get(one.tier.name, 0)
            objectives = [objective for one in equals for objective in one.tier.slo.ttft]
            kept = max(kept, places_kept(objectives, arrivals_per_s, ends_per_s, max(held, arrivals_per_s * stay_s)))


def places_kept(objectives: Iterable[Objective], arrivals_per_s: float, ends_per_s: float, wanted: float) -> int:
    """Number of slots to leave free for tiers with these TTFT objectives.

    `arrivals_per_s` counts these tiers and more urgent ones, refused requests too; `ends_per_s` counts all tiers.
    `wanted`: places that these tiers hold, or that their arrivals would fill (Little's law).
    """
    if arrivals_per_s <= 0.0 or ends_per_s <= 0.0:
        return 0
    load = max(MIN_LOAD, min(MAX_LOAD, arrivals_per_s / ends_per_s))
    spare_per_s = (1.0 - load) * ends_per_s
    most = 0.0
    for objective in objectives:
        allowed = math.log(1.0 - objective.quantile) + spare_per_s * WAIT_SHARE * objective.threshold_s
        most = max(most, allowed / math.log(load))
    return math.ceil(min(most, math.sqrt(wanted + 1.0)))


def _priority(asked: AskedTier) -> int:
    return asked.tier.priority
