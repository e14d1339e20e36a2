"""Explains which decision a new request would get, and why. Nothing is decided or changed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gateway.core.admission.admission import Admission
from gateway.core.admission.rules import SAYS
from gateway.core.decision import Decision, RuleName, Verdict
from gateway.core.fleet.eligibility import with_adapter
from gateway.core.fleet.pool import Pool, Replica
from gateway.core.offer import Offer
from gateway.core.policy import AdmissionMode
from gateway.core.prediction import NOTHING_AHEAD, Forecast
from gateway.core.queueing.limits import LimitExceeded
from gateway.core.queueing.tier_queue import LOOKED_AHEAD
from gateway.core.request import Request
from gateway.core.results import LIMITS as LIMIT_REASONS
from gateway.core.results import Reason
from gateway.core.scheduling.next_queued import has_room, may_be_passed
from gateway.core.serving import MAX_NAME, sent_name
from gateway.core.slo import Objective, Slo
from gateway.core.snapshot import CapacityBound, ReplicaState, Trust, usual

SENT: Final = "sent"
WAITS: Final = "waits"
REFUSED: Final = "refused"
LIMITS: Final = frozenset(reason.value for reason in LIMIT_REASONS)
DRAW: Final = 0.5
PASSING: Final = "others of its tier wait for busy replicas of their own, and it does not"


@dataclass(frozen=True, slots=True)
class PlacementOption:
    """The forecast at a replica with a free slot, or in the queue (`replica` None). Times are seconds from now."""

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
    """A replica of the pool that gets no requests now, or only single ones that show whether it has recovered."""

    replica: str
    state: ReplicaState
    why: str
    """Details of the reason; empty if `state` says everything."""


@dataclass(frozen=True, slots=True)
class ExplainedVerdict:
    """The verdict of the controller, the constraint that decided, and the reason in words."""

    verdict: str
    """The decision: `sent`, `waits` or `refused`."""
    constraint: str
    """The objective, bound, limit or rule that decided; empty if the request would be sent."""
    why: str


@dataclass(frozen=True, slots=True)
class PlacementExplanation:
    """The decision on a new request, and its inputs."""

    verdict: str
    """The decision: `sent`, `waits` or `refused`."""
    constraint: str
    """The objective, bound, limit or rule that decided; empty if the request would be sent."""
    why: str
    pool: str
    mode: AdmissionMode
    trust: Trust
    threshold: float
    """Largest P(breach) that is admitted, 0-1."""
    prompt_tokens: int
    max_tokens: int
    ahead: int
    """Queued requests that would be served before this one."""
    higher_share: float
    """Share (0-1) of the pool's drain rate that more urgent tiers take."""
    drain_rate: float | None
    own_rate: float | None
    """Requests per second that its own tier has lately sent from its queue; None if unknown."""
    best: PlacementOption
    runner_up: PlacementOption | None
    left_out: tuple[ExcludedReplica, ...] = ()


class MiddleDraw:
    """Replaces random draws in a hypothetical decision: the request is admitted as exploration if the chance of that is
    above one half.
    """

    def random(self) -> float:
        """The middle of [0, 1)."""
        return DRAW


def explain(admission: Admission, offer: Offer, exceeded: LimitExceeded | None, now: float) -> PlacementExplanation:
    """Explain the decision on a new request. `exceeded`: the tenant's limit that it exceeds, if any."""
    outlook, pool = admission.outlook, offer.pool
    tier, adapter = offer.request.tier, offer.request.affinity.adapter
    decision, passes = _decided_on(admission, offer, now)
    replica, got = decision.replica, decision.offer
    chosen = got if replica is None or replica.pool is got.pool else got.at(replica.pool)
    best = _option(chosen.pool, replica, decision.forecast or outlook.forecast(chosen, replica, now))
    free = [] if replica is None else pool.candidates(offer.request)
    if adapter:
        free = with_adapter(free, adapter)
    others = [other for other in free if other is not replica]
    runner_up = _option(pool, others[0], outlook.forecast(offer, others[0], now)) if others else None
    ahead = NOTHING_AHEAD if replica is not None else outlook.ahead(offer, now)
    decided = _limited(exceeded) if exceeded is not None else _verdict(admission, offer, decision, passes, now)
    return PlacementExplanation(
        verdict=decided.verdict,
        constraint=decided.constraint,
        why=decided.why,
        pool=chosen.pool.spec.name,
        mode=tier.admission.mode,
        trust=outlook.trust(pool),
        threshold=tier.admission.max_breach_probability,
        prompt_tokens=offer.prompt_tokens,
        max_tokens=got.max_tokens,
        ahead=ahead.requests,
        higher_share=ahead.higher_share,
        drain_rate=outlook.drain_per_s(pool),
        own_rate=ahead.own_per_s,
        best=best,
        runner_up=runner_up,
        left_out=tuple(_left_out(pool, offer.request, now)),
    )


def _decided_on(admission: Admission, offer: Offer, now: float) -> tuple[Decision, bool]:
    """The decision on a request, and whether it passes others of its tier that wait."""
    decision = admission.decide(offer, MiddleDraw(), now)
    passing = _passing(admission, offer, now) if decision.verdict is Verdict.WAIT else None
    if passing is None:
        return decision, False
    forecast = None if decision.forecast is None else admission.outlook.forecast(decision.offer, passing, now)
    return Decision(Verdict.SEND, decision.rule, decision.offer, passing, forecast), True


def _passing(admission: Admission, offer: Offer, now: float) -> Replica | None:
    """The replica that would take a new request at once although others of its tier wait. Each of those waits for its
    own busy replica.

    The rule of `NextQueued` is used, because a new request is queued before the queue is served.
    """
    pool, tier = offer.pool, offer.request.tier
    if not admission.waits_behind(offer):
        return None
    queue = pool.queue.of_tier(tier)
    head = queue.head(now)
    is_compared = pool.knows_caches and queue.count < LOOKED_AHEAD and has_room(pool, tier)
    if not is_compared and (head is None or not may_be_passed(head, pool)):
        return None
    replica = pool.pick(offer.request, offer.needs_tokens, DRAW)
    return None if replica is None or admission.patience.waits_for_own(offer, replica, now) else replica


def _limited(exceeded: LimitExceeded) -> ExplainedVerdict:
    never = exceeded.wait_s == math.inf
    when = "it exceeds the whole limit" if never else f"there is room in {exceeded.wait_s:.3g} s"
    return ExplainedVerdict(REFUSED, exceeded.why.value, f"its tenant has used up a limit of its tier; {when}")


def _verdict(admission: Admission, offer: Offer, decision: Decision, passes: bool, now: float) -> ExplainedVerdict:
    if decision.verdict is Verdict.SHED and decision.why is Reason.PREDICTED:
        return ExplainedVerdict(REFUSED, _missed(admission, decision, now), decision.detail)
    if decision.verdict is Verdict.SHED:
        return ExplainedVerdict(REFUSED, "queue", "the queue is full")
    constraint, why = _admitted(admission, offer, decision)
    if decision.verdict is Verdict.SEND:
        return ExplainedVerdict(SENT, constraint, f"{why}; {PASSING}" if passes else why)
    bound, held = _awaited(admission, offer)
    return ExplainedVerdict(WAITS, bound, f"{why}; {held}")


def _admitted(admission: Admission, offer: Offer, decision: Decision) -> tuple[str, str]:
    """The rule by which a doubtful request was admitted, or empty, and the reason in words."""
    rule, forecast, outlook = decision.rule, decision.forecast, admission.outlook
    says = SAYS[rule]
    if forecast is None or rule is RuleName.OWN_CACHE:
        return "", says
    if rule is RuleName.SHADOW:
        doubt = outlook.doubt(offer, forecast)
        if not doubt.is_doubtful:  # it was doubtful only in the queue, which it passes
            return rule.value, says
        return rule.value, f"{says}. {outlook.why(offer, forecast, doubt).removesuffix('.')}"
    if rule is RuleName.SHORTER_ANSWER:
        return rule.value, f"{says}: it gets at most {decision.offer.max_tokens} tokens"
    if rule is not RuleName.IN_TIME:
        return rule.value, says
    if forecast.breach > offer.max_breach:
        return "", f"P(breach) is above the threshold, but the forecast is {outlook.trust(offer.pool)}"
    return "", says


def _missed(admission: Admission, decision: Decision, now: float) -> str:
    """The objective for which a doubtful request is refused. It is the percentile that would break, or else the
    objective with the likeliest miss.

    The likeliest miss is found by a forecast for each metric alone.
    """
    forecast, offer, outlook = decision.forecast, decision.offer, admission.outlook
    assert forecast is not None
    doubt = outlook.doubt(offer, forecast)
    if not doubt.is_likely_missed:
        return "" if doubt.broken is None else doubt.broken.name
    slo, likeliest, most = offer.slo, "", -1.0
    alone = (
        ("TTFT", slo.ttft, Slo(ttft=slo.ttft)),
        ("TPOT", slo.tpot, Slo(tpot=slo.tpot)),
        ("e2e", slo.e2e, Slo(e2e=slo.e2e, e2e_up_to_tokens=slo.e2e_up_to_tokens)),
    )
    for name, objectives, one in alone:
        if objectives:
            breach = outlook.forecast(offer.judged_by(one), decision.replica, now).breach
            if breach > most:
                highest = max(objectives, key=_quantile)
                likeliest, most = f"{name} {highest.percentile}", breach
    return likeliest


def _awaited(admission: Admission, offer: Offer) -> tuple[str, str]:
    """The bound that keeps a waiting request from being sent, and the reason in words."""
    pool, tier, adapter = offer.pool, offer.request.tier, offer.request.affinity.adapter
    free = pool.candidates(offer.request)
    if not free and pool.ready(tier):
        return "model", "the replicas that list its model are busy"
    if free and adapter and not with_adapter(free, adapter):
        return "adapter", "no replica has room for its adapter"
    if free and admission.waits_behind(offer):
        return "order", "others of its tier wait before it"
    if free:
        return "home", "the replica of its session, or with its prompt in the cache, is busy"
    is_enforced = tier.admission.mode is AdmissionMode.ENFORCE
    if not (pool.free_replicas if is_enforced else pool.below_max):
        bounds = [replica.bound for replica in pool.replicas.values() if is_enforced and replica.bound is not None]
        bound = usual(bounds) or CapacityBound.SLOTS
        return bound.value, f"no replica has room, most by their {bound.value} bound"
    is_owed = pool.queue.is_owed(tier)
    if pool.asked.yields(tier, is_owed):
        return "urgent", "a more urgent tier is short of room, so less urgent ones get nothing but their floors"
    if kept := pool.asked.kept_from(tier, is_owed):
        return "places", f"the free places, up to {kept}, are left to more urgent tiers"
    return "reserve", "the free slots are reserved for other tiers, or their replicas asked for time"


def _left_out(pool: Pool, request: Request, now: float) -> Iterator[ExcludedReplica]:
    adapter = request.affinity.adapter
    for name, replica in pool.replicas.items():
        rests_s = pool.backoffs.left_s(replica, now)
        if replica.state is not ReplicaState.UP:
            yield ExcludedReplica(name, replica.state, _why_out(replica, now))
        elif not adapter and not replica.takes_name(sent_name(request)):
            yield ExcludedReplica(name, replica.state, f"it does not list the model {sent_name(request)[:MAX_NAME]}")
        elif rests_s > 0.0:
            why = f"it refused {replica.refusals} times in a row, and is passed over for {rests_s:.1f} s more"
            yield ExcludedReplica(name, replica.state, why)
        elif replica.bound is not None:
            yield ExcludedReplica(name, replica.state, _bounded(pool, replica, replica.bound, now))
        elif adapter and not replica.adapters.takes(adapter):
            yield ExcludedReplica(name, replica.state, _without(adapter, replica))


def _why_out(replica: Replica, now: float) -> str:
    """A text that says why a replica is out, with its latest error."""
    if replica.state is ReplicaState.DRAINED:
        return ""
    last = replica.health.view(now, replica.share).last_error
    if replica.state is ReplicaState.EJECTED:
        return f"{replica.health.why}; last error: {last}" if last else replica.health.why
    return f"{last}; it gets one request at a time" if replica.state is ReplicaState.PROBING else last


def _bounded(pool: Pool, replica: Replica, bound: CapacityBound, now: float) -> str:
    """A text that names the bound a replica has reached, with its values."""
    budget = replica.budget
    if bound is CapacityBound.SLOTS:
        used = f"{replica.total_in_flight} of {replica.slots} are in use"
    elif bound is CapacityBound.KV:
        capacity = replica.kv.capacity_tokens
        used = f"{replica.total_held_tokens} tokens held, {budget.total_growth_tokens:.0f} expected, of {capacity:.0f}"
    elif bound is CapacityBound.TPOT:
        step_s = budget.step_s(replica.total_held_tokens, now) or 0.0
        limit = f"{budget.limit_s * 1e3:.3g} ms"
        exceeds = f"more than {limit}" if step_s > budget.limit_s else f"with one more it would exceed {limit}"
        used = f"a step takes {step_s * 1e3:.3g} ms, {exceeds}"
    else:
        used = f"{replica.total_unread_tokens} of {pool.prefill_limit:.0f} tokens"
    return f"it has no room: its {bound} bound is reached, {used}"


def _without(adapter: str, replica: Replica) -> str:
    """Why a replica cannot serve a LoRA adapter now."""
    if adapter not in replica.adapters.listed:
        return f"it does not list the adapter {adapter}"
    if adapter == replica.adapters.leaving:
        return f"it gets no more requests for the adapter {adapter}, so that another adapter can be loaded"
    return f"it has no room for the adapter {adapter} beside {', '.join(replica.adapters.loaded())}"


def _option(pool: Pool, replica: Replica | None, forecast: Forecast) -> PlacementOption:
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


def _quantile(objective: Objective) -> float:
    return objective.quantile
