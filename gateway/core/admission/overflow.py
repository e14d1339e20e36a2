"""Where a request of a tier in shadow goes if no replica would serve it in time.

A balancer that refuses nobody overloads all replicas alike: beyond their capacity, no answer is in time. So one replica
is given up. It gets the requests that nobody can serve in time, until the load falls. The other replicas recover, and
serve the rest in time. Nothing is held back or refused.

A request is hopeless if each replica would miss with probability `HOPELESS`. A replica is given up only while most
requests are hopeless. Below that, balancing keeps more in time: a strict tier may miss where the others do not, or
short answers while a neighbour's prompt is read. While one is given up, another hopeless request there costs little. So
the others take only requests that they are likely to serve in time, and keep their steps within the budget.

Requests that no idle replica would serve in time go where balancing sends them.
"""

from __future__ import annotations

from typing import Final

from gateway.core.admission.forecaster import Forecaster
from gateway.core.fleet.pool import Pool, Replica
from gateway.core.forecast.ahead import NOTHING_AHEAD, Forecast
from gateway.core.request import Random
from gateway.core.request_state import RequestState

HOPELESS: Final = 0.8
"""P(breach) at every replica, from which one is given up."""
MOST: Final = 0.8
"""The share of hopeless requests beyond which a replica is given up, less if it is slower than others,"""
OF_LATEST: Final = 50.0
"""among about so many of the latest."""
LIKELY: Final = 0.3
"""Largest P(breach) of a request at the other replicas, while one is given up."""
LASTS_S: Final = 5.0
"""A replica is given up for so long after its last hopeless request."""
RENEWED_S: Final = 1.0
"""After this time the replica to give up is chosen anew."""
LOOKED_AT: Final = 4
"""Replicas that are forecast before a request is hopeless, least loaded first."""
SLOWNESS_POWER: Final = 3.0
"""A replica half as fast is given up, unless another is eight times as late: less capacity is lost with it."""


class GivenUp:
    """The replica of a pool that is given up."""

    __slots__ = ("chosen_at", "last_at", "replica")

    def __init__(self, replica: Replica, now: float) -> None:
        self.replica = replica
        self.chosen_at = now
        self.last_at = now
        """When it last got a hopeless request."""


class Overflow:
    """Places requests of tiers in shadow that the first choice would not serve in time."""

    def __init__(self, forecaster: Forecaster) -> None:
        self._forecaster = forecaster
        self._given_up: dict[str, GivenUp] = {}
        """By pool."""
        self._hopeless: dict[str, float] = {}
        """The share of hopeless ones among the latest requests, by pool."""

    def admitted(self, live: RequestState, pool: Pool, now: float) -> None:
        """A request of a tier in shadow was sent, or queued."""
        name, given_up = pool.spec.name, live.given_up
        is_hopeless = given_up is not None or (live.forecast is not None and live.forecast.breach > HOPELESS)
        share = self._hopeless.get(name, 0.0)
        self._hopeless[name] = share + (float(is_hopeless) - share) / OF_LATEST
        if given_up is None:
            return
        before = self._given_up.get(name)
        if before is None or before.replica is not given_up or now >= before.chosen_at + RENEWED_S:
            self._given_up[name] = GivenUp(given_up, now)
        else:
            before.last_at = now

    def placed(self, live: RequestState, pool: Pool, chosen: Replica, random: Random, now: float) -> Replica | None:
        """The replica for a request that the router would send to `chosen`; None: there.

        Changes `live` only: `given_up` is set if the request is hopeless.
        """
        forecast = live.forecast
        assert forecast is not None
        before = self._given_up.get(pool.spec.name)
        lasts = before is not None and now < before.last_at + LASTS_S
        if _takes(chosen, forecast, lasts, now):
            return None
        if live.request.adapter or len(pool.below_max) < 2 or not self._forecaster.has_costs(pool.spec.name):
            return None
        candidates = pool.candidates(live.request.tier)
        looked_at = 0
        for other in candidates:
            if other is chosen or (lasts and not _has_room(other, now)):
                continue
            elsewhere = self._forecaster.forecast(live, pool, other, NOTHING_AHEAD, now)
            if _takes(other, elsewhere, lasts, now):
                live.forecast = elsewhere
                return other
            looked_at += 1
            if looked_at == LOOKED_AT:
                break
        if not lasts and self._hopeless.get(pool.spec.name, 0.0) < MOST * _capacity_lost(candidates):
            return None
        if random.random() < live.request.tier.admission.exploration:
            return None
        if self._forecaster.idle_breach(live, pool, now) > HOPELESS:
            return None
        worst = None if before is None or now >= before.chosen_at + RENEWED_S else before.replica
        if worst not in candidates:
            worst = self._furthest_behind(live, pool, candidates, now)
        assert worst is not None
        live.forecast = self._forecaster.forecast(live, pool, worst, NOTHING_AHEAD, now)
        live.given_up = worst
        return worst

    def _furthest_behind(self, live: RequestState, pool: Pool, candidates: list[Replica], now: float) -> Replica | None:
        """The replica that would miss the bounds of `live` by most; a slow one before a fast one."""
        found, most, slo = None, -1.0, live.slo
        for replica in candidates:
            forecast = self._forecaster.forecast(live, pool, replica, NOTHING_AHEAD, now)
            behind = max(forecast.ttft_s / slo.ttft_bound_s, forecast.tpot_s / slo.tpot_bound_s)
            behind = max(behind, forecast.e2e_s / slo.e2e_bound_s) * replica.slowness**SLOWNESS_POWER
            if behind > most:
                found, most = replica, behind
        return found


def _capacity_lost(candidates: list[Replica]) -> float:
    """The slowest replica's part of all capacity, over an equal part: 1 if all are as fast, above 0."""
    speeds = [1.0 / replica.slowness for replica in candidates]
    return len(speeds) * min(speeds) / sum(speeds)


def _takes(replica: Replica, forecast: Forecast, lasts: bool, now: float) -> bool:
    if not lasts:
        return forecast.breach <= HOPELESS
    return forecast.breach <= LIKELY and _has_room(replica, now)


def _has_room(replica: Replica, now: float) -> bool:
    """Whether one more request breaks no promise to those that run there."""
    return replica.budget.has_room(replica.held_tokens, now) and replica.has_kv_room
