"""The decision on a newcomer and its reasons, without taking it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gateway.core.admission.admission import LOOKED_AT, Admission, Verdict, waits
from gateway.core.fleet.pool import Pool, Replica, with_adapter
from gateway.core.forecast.ahead import NOTHING_AHEAD, Forecast
from gateway.core.forecast.trust import Trust
from gateway.core.policy import AdmissionMode, Tier
from gateway.core.request_state import RequestState
from gateway.core.snapshot import ReplicaState

MEASURED: Final = "measured"
WAITS: Final = "waits"
REFUSED: Final = "refused"


@dataclass(frozen=True, slots=True)
class PlacementOption:
    """A replica with a free slot, or the queue (`replica` None), and the forecast there. Seconds from now."""

    replica: str | None
    in_flight: int
    unprefilled_tokens: int
    wait_s: float
    ttft_s: float
    tpot_s: float
    e2e_s: float
    breach: float


@dataclass(frozen=True, slots=True)
class ExcludedReplica:
    """A replica of the pool that gets no requests now, or only probes."""

    replica: str
    state: ReplicaState
    why: str
    """Empty where `state` is the whole reason."""


@dataclass(frozen=True, slots=True)
class PlacementExplanation:
    """The decision and its inputs."""

    verdict: str
    """sent, waits, refused."""
    why: str
    pool: str
    mode: AdmissionMode
    trust: Trust
    threshold: float
    """Largest P(breach) that is admitted."""
    budget: str
    """measured, too few answers, no objective."""
    budget_left: float | None
    """The tier's error budget left, -1 to 1; None unless measured."""
    prompt_tokens: int
    max_tokens: int
    ahead: int
    """Requests that would be served before it."""
    higher_share: float
    """Share (0-1) of the pool's drain rate that more urgent tiers take."""
    drain_rate: float | None
    best: PlacementOption
    runner_up: PlacementOption | None
    left_out: tuple[ExcludedReplica, ...] = ()


def explain(admission: Admission, live: RequestState, pool: Pool, now: float) -> PlacementExplanation:
    """Explain the decision on a newcomer that `pool` would serve. Changes nothing."""
    tier = live.request.tier
    adapter = live.request.adapter
    free = [] if admission.waits_behind(tier, pool) else pool.candidates(tier)
    if adapter:
        free = with_adapter(free, adapter)
    ahead = NOTHING_AHEAD if free else admission.ahead(live, pool, now)
    trust, threshold = admission.trust(pool), admission.promises.threshold(tier)
    found = [_candidate(admission, live, pool, replica, now) for replica in free[:LOOKED_AT]]
    if trust is Trust.TRUSTED and tier.admission.mode is not AdmissionMode.OFF:
        found.sort(key=lambda candidate: candidate.breach > threshold)
    best = found[0] if found else _candidate(admission, live, pool, None, now)
    verdict, why = _verdict(live, best, trust, threshold)
    kept = pool.asked.kept_from(tier)
    if verdict == WAITS and kept and 0 < pool.places <= kept:
        why += f"; {kept} more requests could be sent, which are left to more urgent tiers"
    if verdict == WAITS and waits(live, pool).verdict is Verdict.SHED:
        verdict, why = REFUSED, "the queue is full"
    budget = _budget(tier, admission.promises.budget_left(tier))
    return PlacementExplanation(
        verdict=verdict,
        why=why,
        pool=pool.spec.name,
        mode=tier.admission.mode,
        trust=trust,
        threshold=threshold,
        budget=budget,
        budget_left=admission.promises.budget_left(tier) if budget == MEASURED else None,
        prompt_tokens=live.prompt_tokens,
        max_tokens=live.max_tokens,
        ahead=ahead.requests,
        higher_share=ahead.higher_share,
        drain_rate=pool.drain.per_s,
        best=best,
        runner_up=found[1] if len(found) > 1 else None,
        left_out=tuple(_left_out(pool, adapter, now)),
    )


def _left_out(pool: Pool, adapter: str, now: float) -> Iterator[ExcludedReplica]:
    for name, replica in pool.replicas.items():
        rests_s = pool.backoff_s(replica, now)
        if replica.state is ReplicaState.EJECTED:
            yield ExcludedReplica(name, replica.state, replica.outlier_score.why)
        elif replica.state is not ReplicaState.UP:
            yield ExcludedReplica(name, replica.state, "")
        elif rests_s > 0.0:
            why = f"it refused {replica.refusals} times in a row, and is passed over for {rests_s:.1f} s more"
            yield ExcludedReplica(name, replica.state, why)
        elif (bound := pool.bound(replica, now)) is not None:
            yield ExcludedReplica(name, replica.state, f"it has no room: its {bound} bound is reached")
        elif adapter and not replica.adapters.takes(adapter):
            yield ExcludedReplica(name, replica.state, _without(adapter, replica))


def _without(adapter: str, replica: Replica) -> str:
    """Why a replica cannot serve an adapter."""
    if adapter not in replica.adapters.listed:
        return f"it does not list the adapter {adapter}"
    if adapter == replica.adapters.leaving:
        return f"it gets no more requests for the adapter {adapter}, so that another one finds a place"
    return f"it has no room for the adapter {adapter} beside {', '.join(replica.adapters.loaded())}"


def _candidate(
    admission: Admission, live: RequestState, pool: Pool, replica: Replica | None, now: float
) -> PlacementOption:
    forecast: Forecast = admission.forecast(live, pool, replica, now)
    return PlacementOption(
        replica=None if replica is None else replica.spec.name,
        in_flight=pool.in_flight if replica is None else replica.in_flight,
        unprefilled_tokens=0 if replica is None else replica.unprefilled_tokens,
        wait_s=forecast.wait_s,
        ttft_s=forecast.ttft_s,
        tpot_s=forecast.tpot_s,
        e2e_s=forecast.e2e_s,
        breach=forecast.breach,
    )


def _budget(tier: Tier, left: float) -> str:
    """An unmeasured budget is exactly 0; a measured one is so only by chance."""
    if not tier.slo.objectives():
        return "no objective"
    return MEASURED if left else "too few answers"


def _verdict(live: RequestState, best: PlacementOption, trust: Trust, threshold: float) -> tuple[str, str]:
    admitted = WAITS if best.replica is None else "sent"
    mode = live.request.tier.admission.mode
    if mode is AdmissionMode.OFF:
        return admitted, "admission of this tier is off"
    if not live.slo.bounded:
        return admitted, "the tier has no objective"
    if best.breach <= threshold:
        return admitted, "P(breach) is within the threshold"
    if trust is not Trust.TRUSTED:
        return admitted, f"P(breach) is above the threshold, but the forecast is {trust}"
    if mode is AdmissionMode.SHADOW:
        return admitted, "P(breach) is above the threshold; the tier is in shadow, so it is only counted"
    return (
        REFUSED,
        "P(breach) is above the threshold, unless it explores, spills, is owed to its length or gets a shorter answer",
    )
