"""Chooses a replica for requests that no replica would serve in time, in tiers whose admission mode is `shadow`.

Shadow mode refuses nothing, so a balancer would overload all replicas alike, and no answer would be in time. So one
replica is given up. It gets the requests that no replica can serve in time, until the load falls. The other replicas
recover, and serve the remaining requests in time. Nothing is held back or refused.

A request is hopeless if, at each replica, its P(breach) is above `HOPELESS` or present steps are much longer than its
TPOT bound. Long answers end late, so the steps show an overload some ten seconds before P(breach) does.

A replica is given up only while most requests are hopeless. If fewer are hopeless, balancing keeps more requests in
time. Perhaps only a strict tier misses its objectives, or only short answers miss theirs while another prompt is read.
Once a replica is given up, one more hopeless request there does little harm. So the other replicas take only requests
that they are likely to serve in time, and that keep their steps within the step budget.

A request that even an idle replica would not serve in time goes where balancing sends it. Whether an idle replica would
be in time is computed from learned costs alone. P(breach) that was learned in an overload was near 1 even for an idle
replica. With it, all replicas were late again.
"""

from __future__ import annotations

from typing import Final

from gateway.core.admission.forecaster import Forecaster
from gateway.core.fleet.fleet import Fleet
from gateway.core.fleet.pool import Pool, Replica
from gateway.core.forecast.ahead_and_forecast import NOTHING_AHEAD, Forecast
from gateway.core.request import Random
from gateway.core.request_state import RequestState

HOPELESS: Final = 0.8
"""A request is hopeless if its P(breach) is above this at every replica."""
TOO_LONG: Final = 1.2
"""A replica is also hopeless for a request if its step, as the step budget counts it, is longer than this many TPOT
bounds.

With 1, goodput was .68 instead of .71 (70B model, 1.28 times the knee): a burst ends, and most answers are in time.
"""
MOST: Final = 0.8
"""A replica is given up if at least this share of the latest requests is hopeless. For a replica slower than the
others, a smaller share is enough.
"""
OF_LATEST: Final = 50.0
"""The share of hopeless requests is averaged over about this many of the latest requests."""
LIKELY: Final = 0.3
"""While a replica is given up, the others take a request if its P(breach) is at most this."""
EASILY: Final = 0.25
"""They also take a stream if its TTFT is within this share of its bound.

P(breach) alone does not suffice: after an overload it is too high at first.
"""
LASTS_S: Final = 5.0
"""A replica stays given up for this long after its last hopeless request."""
RENEWED_S: Final = 1.0
"""The given-up replica is chosen again after this time."""
LOOKED_AT: Final = 4
"""At most this many other replicas, least loaded first, are forecast before a request counts as hopeless."""
SLOWNESS_POWER: Final = 3.0
"""A slow replica is given up first, because less capacity is lost. A replica that is half as fast counts as eight times
as late.
"""


class GivenUp:
    """The replica that a pool has given up."""

    __slots__ = ("chosen_at", "last_at", "replica")

    def __init__(self, replica: Replica, now: float) -> None:
        self.replica = replica
        self.chosen_at = now
        self.last_at = now
        """Time of its last hopeless request."""


class Overflow:
    """Places requests of `shadow` tiers that the router's choice would not serve in time."""

    def __init__(self, forecaster: Forecaster) -> None:
        self._forecaster = forecaster
        self._given_up: dict[str, GivenUp] = {}
        """By pool."""
        self._hopeless: dict[str, float] = {}
        """Share (0-1) of hopeless requests among the latest ones, by pool."""

    def keep(self, fleet: Fleet) -> None:
        """Forget pools and replicas that a reload removed."""
        self._hopeless = {name: share for name, share in self._hopeless.items() if fleet.pool(name) is not None}
        self._given_up = {
            name: given_up
            for name, given_up in self._given_up.items()
            if fleet.replica(given_up.replica.spec.name) is given_up.replica
        }

    def admitted(self, live: RequestState, pool: Pool, now: float) -> None:
        """Record that a request of a `shadow` tier was sent or queued."""
        name, given_up = pool.spec.name, live.given_up
        is_hopeless = live.hopeless or (live.forecast is not None and live.forecast.breach > HOPELESS)
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
        """The replica to send the request to instead of `chosen`, the router's choice; None keeps `chosen`.

        Changes only `live`: its forecast, whether it is hopeless, and `given_up` if it is sent to the given-up replica.
        """
        forecast = live.forecast
        assert forecast is not None
        before = self._given_up.get(pool.spec.name)
        lasts = before is not None and now < before.last_at + LASTS_S
        easily_s = EASILY * live.slo.ttft_bound_s if live.request.stream and live.slo.ttft else 0.0
        if _takes(live, chosen, forecast, lasts, easily_s, now):
            return None
        if live.request.adapter or len(pool.below_max) < 2 or not self._forecaster.has_costs(pool.spec.name):
            return None
        candidates = pool.candidates(live.request)
        made = {chosen: forecast}
        for other in candidates:
            if other is chosen or (lasts and not _has_room(other, now)):
                continue
            elsewhere = made[other] = self._forecaster.forecast(live, pool, other, NOTHING_AHEAD, now)
            if _takes(live, other, elsewhere, lasts, easily_s, now):
                live.forecast = elsewhere
                return other
            if len(made) > LOOKED_AT:
                break
        live.hopeless = True
        if not lasts and self._hopeless.get(pool.spec.name, 0.0) < MOST * _capacity_lost(candidates):
            return None
        if random.random() < live.request.tier.admission.exploration:
            return None
        if self._forecaster.idle_breach(live, pool, now) > HOPELESS:
            return None
        worst = None if before is None or now >= before.chosen_at + RENEWED_S else before.replica
        if worst is None or worst not in candidates:
            worst = self._furthest_behind(live, pool, candidates, made, now)
        live.forecast = made.get(worst) or self._forecaster.forecast(live, pool, worst, NOTHING_AHEAD, now)
        live.given_up = worst
        return worst

    def _furthest_behind(
        self, live: RequestState, pool: Pool, candidates: list[Replica], made: dict[Replica, Forecast], now: float
    ) -> Replica:
        """The replica that would miss the bounds of `live` by the largest factor, where slow replicas get an extra
        factor.

        `made`: forecasts at some of the replicas. Those at the others are added.
        """
        found, most, slo = candidates[0], -1.0, live.slo
        for replica in candidates:
            forecast = made.get(replica)
            if forecast is None:
                forecast = made[replica] = self._forecaster.forecast(live, pool, replica, NOTHING_AHEAD, now)
            behind = max(forecast.ttft_s / slo.ttft_bound_s, forecast.tpot_s / slo.tpot_bound_s)
            behind = max(behind, forecast.e2e_s / slo.e2e_bound_s) * replica.slowness**SLOWNESS_POWER
            if behind > most:
                found, most = replica, behind
        return found


def _capacity_lost(candidates: list[Replica]) -> float:
    """The slowest replica's share of all capacity, divided by an equal share: 1 if all are equally fast, else less."""
    speeds = [1.0 / replica.slowness for replica in candidates]
    return len(speeds) * min(speeds) / sum(speeds)


def _takes(live: RequestState, replica: Replica, forecast: Forecast, lasts: bool, easily_s: float, now: float) -> bool:
    if not lasts:
        return forecast.breach <= HOPELESS and not _is_step_too_long(live, replica, now)
    return (forecast.breach <= LIKELY or forecast.ttft_s <= easily_s) and _has_room(replica, now)


def _is_step_too_long(live: RequestState, replica: Replica, now: float) -> bool:
    """Whether steps of the present requests there are much longer than the TPOT bound of `live`."""
    if not live.request.stream or not live.slo.tpot:
        return False
    step_s = replica.budget.step_s(replica.held_tokens, now)
    return step_s is not None and step_s > TOO_LONG * live.slo.tpot_bound_s


def _has_room(replica: Replica, now: float) -> bool:
    """Whether one more request keeps the replica's step within its budget, and its KV cache within bounds."""
    return replica.budget.has_room(replica.held_tokens, now) and replica.has_kv_room
