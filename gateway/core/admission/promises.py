"""The objectives of all tiers: whether a request would break one, and the longest engine step that they allow.

TTFT percentiles limit admissions (estimators/ttft_guard.py). TPOT and e2e objectives limit the step of replicas
(step_margin.py). The error budget scales the threshold for P(breach) of a tier (error_budget.py).
"""

from __future__ import annotations

import math
from typing import Final

from gateway.core.admission.error_budget import ErrorBudget
from gateway.core.admission.fairness import LengthFairness
from gateway.core.decision import Decision
from gateway.core.estimators.step_margin import LONG_START, StepMargin
from gateway.core.estimators.ttft_guard import (
    NEARLY_IDLE,
    UNLIKELY,
    WAITING,
    WAITING_ABOVE,
    ShareGuard,
    TtftGuard,
    part_of_bound,
    ttft_guards,
    vain_guard,
)
from gateway.core.fleet.pool import Pool
from gateway.core.fleet.step_budget import StepPrices
from gateway.core.forecast.forecaster import Forecaster
from gateway.core.forecast.wait import head_waited_s
from gateway.core.offer import Offer
from gateway.core.policy import AdmissionMode, Policy, Tier, Value
from gateway.core.prediction import Forecast
from gateway.core.request_state import RequestState
from gateway.core.results import Outcome, Reason, Record
from gateway.core.slo import Objective, Slo
from gateway.core.snapshot import TierView, Trust

NOT_LATE: Final = (Reason.SHUTTING_DOWN, Reason.NO_REPLICAS)
"""Refusals for reasons other than latency."""
LATELY_S: Final = 5.0
"""A tier's objectives limit steps for this time after its last request, or for a request's mean time in the engine if
that is longer.
"""


class TierMargins:
    """The step margins of one tier in one pool, in the order of the tier's objectives."""

    __slots__ = ("e2e", "slo", "tpot")

    def __init__(self, slo: Slo, tpot: list[StepMargin], e2e: list[StepMargin]) -> None:
        self.slo = slo
        self.tpot = tpot
        self.e2e = e2e


class Doubt:
    """The doubt about a new request: a likely miss, or a percentile of its tier that would break."""

    __slots__ = ("broken", "doubted", "is_likely_missed", "late", "part")

    def __init__(self, is_likely_missed: bool) -> None:
        self.is_likely_missed = is_likely_missed
        """Whether a trusted P(breach) is above the threshold of the tier. Then no guard was asked."""
        self.broken: ShareGuard | None = None
        """The guard that does not admit it; None if all do."""
        self.late: list[float] = []
        """P(first token is late) for each TTFT objective that was checked, in the order of the tier's objectives."""
        self.part = 1.0
        """Part of the bound of the broken guard, within which the first token must be likely to come."""
        self.doubted = 0.0
        """P(the first token comes later than that)."""

    @property
    def is_doubtful(self) -> bool:
        """Whether anything speaks against the request."""
        return self.is_likely_missed or self.broken is not None


class Promises:
    """Counts answers that kept or broke an objective. The counts of unchanged objectives outlive a reload."""

    def __init__(self, policy: Policy, forecaster: Forecaster) -> None:
        self._forecaster = forecaster
        self._budgets: dict[str, ErrorBudget] = {}
        self._guards: dict[str, tuple[TtftGuard, ...]] = {}
        """Guards of the TTFT objectives, by tier."""
        self._vain: dict[str, ShareGuard] = {}
        """By tier."""
        self._fairness: dict[str, LengthFairness] = {}
        """By tier."""
        self._tpot: dict[tuple[str, Objective], StepMargin] = {}
        """By pool."""
        self._e2e: dict[tuple[str, str, Objective], StepMargin] = {}
        """Step margins by pool, tier and e2e objective. The tier matters, because the lengths of answers differ by
        tier.
        """
        self._margins: dict[tuple[str, str], TierMargins] = {}
        """TPOT and e2e margins together, by pool and tier."""
        self.configure(policy)

    def configure(self, policy: Policy) -> None:
        """Apply a policy."""
        self._tiers = tiers = policy.tiers
        self._margins = {}
        self._tpot = {
            (pool, objective): margin
            for (pool, objective), margin in self._tpot.items()
            if pool in policy.pools and any(objective in tier.slo.tpot for tier in tiers.values())
        }
        self._e2e = {
            (pool, name, objective): margin
            for (pool, name, objective), margin in self._e2e.items()
            if pool in policy.pools and name in tiers and objective in tiers[name].slo.e2e
        }
        self._guards = {
            name: ttft_guards(self._guards.get(name, ()), tier.slo.ttft)
            for name, tier in tiers.items()
            if tier.slo.ttft
        }
        self._vain = {name: self._vain.get(name) or vain_guard() for name in tiers}
        self._fairness = {name: self._fairness.get(name) or LengthFairness() for name in tiers}
        kept = self._budgets
        self._budgets = {
            name: kept[name] if name in kept and kept[name].slo == tier.slo else ErrorBudget(tier.slo)
            for name, tier in tiers.items()
        }

    # ---- decisions

    def threshold(self, tier: Tier) -> float:
        """The largest P(breach) that is admitted: the policy's value for the tier, scaled by the tier's error
        budget.
        """
        written = tier.admission.max_breach_probability
        budget = self._budgets.get(tier.name)
        return written if budget is None else budget.threshold(written)

    def budget_left(self, tier: Tier) -> float | None:
        """Remaining error budget of the tier, -1 to 1; None without objectives or enough answers."""
        budget = self._budgets.get(tier.name)
        return None if budget is None else budget.left

    def views(self) -> tuple[TierView, ...]:
        """Threshold and remaining budget of each tier, for the admin pages."""
        return tuple(TierView(name, self.threshold(tier), self.budget_left(tier)) for name, tier in self._tiers.items())

    def offered(self, decision: Decision, offer: Offer, now: float) -> None:
        """Count an arrival, after the decision on it. `offer`: what it asked for."""
        tier, pool, forecast = offer.request.tier, offer.pool, decision.forecast
        guards = self._guards.get(tier.name, ())
        if not offer.request.stream or tier.admission.mode is AdmissionMode.OFF:
            return
        for guard in guards:
            if guard.highest:
                guard.asked(forecast is not None and forecast.wait_s > 0.0, now)
        if len(guards) < 2:
            return
        if not self._forecaster.has_costs(pool.spec.name):
            return
        alone_s = self._forecaster.alone_s(offer)
        for guard in guards:
            if not guard.highest:
                guard.offered(self._forecaster.is_late_alone(pool, alone_s, guard.objective.threshold_s), now)

    def is_within(self, offer: Offer, forecast: Forecast) -> bool:
        """Whether P(breach) is within the threshold of the tier."""
        return forecast.breach <= self.threshold(offer.request.tier)

    def doubt(self, offer: Offer, forecast: Forecast) -> Doubt:
        """Ask P(breach) first, then the guards of the tier, up to the first that does not admit the request."""
        request, pool = offer.request, offer.pool.spec.name
        doubt = Doubt(not self.is_within(offer, forecast) and self._forecaster.trust(pool) is Trust.TRUSTED)
        if doubt.is_likely_missed:
            return doubt
        guards = self._guards.get(request.tier.name) if request.stream else None
        if not guards:
            vain = self._vain.get(request.tier.name)
            if vain is not None and not vain.admits(forecast.in_vain, forecast.at):
                doubt.broken = vain
            return doubt
        for guard in guards:
            bound_s = guard.objective.threshold_s
            late = doubted = self._late(offer, forecast, bound_s)
            doubt.late.append(late)
            part = self._part_of_bound(offer, forecast, guard)
            if part is not None and part < 1.0:
                doubted = self._late(offer, forecast, part * bound_s)
            admits = guard.admits(doubted, forecast.at, part is None)
            if not admits and not self._is_nearly_idle(offer, forecast, guard, late):
                doubt.broken, doubt.part, doubt.doubted = guard, 1.0 if part is None else part, doubted
                break
        return doubt

    @staticmethod
    def _part_of_bound(offer: Offer, forecast: Forecast, guard: TtftGuard) -> float | None:
        """In a lasting overload, the part of the bound within which a waiting request must be likely to get its first
        token. Otherwise None: the request may use up late answers that earlier ones were allowed but did not suffer.
        """
        if not guard.highest or forecast.wait_s <= 0.0:
            return None
        share = guard.waiting_share(forecast.at)
        if share <= WAITING:
            return None
        if offer.pool.asked.is_lowest(offer.request.tier, forecast.at):
            return part_of_bound(share)
        return 1.0 if share > WAITING_ABOVE else None

    def _is_nearly_idle(self, offer: Offer, forecast: Forecast, guard: TtftGuard, late: float) -> bool:
        """Whether the request would be sent at once, and P(late) is small, and not much above that at an idle
        replica.
        """
        if (
            late > max(guard.allowed, UNLIKELY)
            or forecast.wait_s > 0.0
            or not self._forecaster.has_costs(offer.pool.spec.name)
        ):
            return False
        alone_s = self._forecaster.alone_s(offer)
        return late <= NEARLY_IDLE * self._forecaster.is_late_alone(offer.pool, alone_s, guard.objective.threshold_s)

    def is_owed(self, offer: Offer, now: float) -> bool:
        """Whether a doubtful request is admitted because too few with a similar prompt length were admitted lately."""
        tier = offer.request.tier
        fairness = self._fairness.get(tier.name)
        if fairness is None or tier.admission.mode is not AdmissionMode.ENFORCE:
            return False
        counts_tokens = tier.value is Value.TOKENS and fairness.is_long(offer.prompt_likely)
        return fairness.is_owed(offer.prompt_likely, 0.0 if counts_tokens else tier.fairness, now)

    def _late(self, offer: Offer, forecast: Forecast, bound_s: float) -> float:
        """P(the first token comes later than `bound_s` after body complete), 0-1. Before engine costs are known, it is
        0 or 1 and depends on how long the queue's head has waited.
        """
        if self._forecaster.has_costs(offer.pool.spec.name):
            return self._forecaster.is_late(offer.request, forecast, bound_s)
        return 1.0 if head_waited_s(offer.pool, offer.request.tier, forecast.at) > bound_s else 0.0

    def step_limit_s(self, pool: Pool, prices: StepPrices | None, now: float) -> float:
        """Limit (seconds) on the mean step of a replica with these `prices`, so that it keeps all TPOT and e2e
        objectives of recently active tiers; inf without any.

        An objective that the replica would break even if it were idle is left out.
        """
        if prices is None:
            return math.inf
        lately = now - max(LATELY_S, self._forecaster.costs(pool).stay_s)
        alone_s = prices.base_s + prices.sequence_s
        limit_s = math.inf
        for name, demand in pool.asked.tiers.items():
            tier = self._tiers.get(name)
            if tier is None or demand.at < lately:
                continue
            margins = self._margins_of(pool.spec.name, tier)
            for margin in margins.tpot:
                if margin.objective.threshold_s > alone_s:
                    limit_s = min(limit_s, margin.limit_s)
            # a tier with `degrade` gets shorter answers instead
            for margin in () if tier.caps.degrade else margins.e2e:
                quantile = margin.objective.quantile
                longest = self._forecaster.lengths.longest(name, quantile, tier.slo.e2e_up_to_tokens)
                if longest is not None:
                    margin.fit(longest)
                    if margin.limit_s > alone_s:
                        limit_s = min(limit_s, margin.limit_s)
        return limit_s

    def _margins_of(self, pool: str, tier: Tier) -> TierMargins:
        """The margins of a tier in a pool. Tiers with the same TPOT objective share its margin."""
        found = self._margins.get((pool, tier.name))
        if found is None or (found.slo is not tier.slo and found.slo != tier.slo):
            tpot, e2e = self._tpot, self._e2e
            found = self._margins[pool, tier.name] = TierMargins(
                tier.slo,
                [tpot.setdefault((pool, one), StepMargin(one)) for one in tier.slo.tpot],
                [e2e.setdefault((pool, tier.name, one), StepMargin(one, LONG_START)) for one in tier.slo.e2e],
            )
        return found

    # ---- events

    @property
    def open(self) -> int:
        """Number of admitted requests whose outcome is unknown, summed over all present guards. A request counts once
        for each guard.
        """
        guards = [guard for guards in self._guards.values() for guard in guards]
        return sum(guard.open for guard in [*guards, *self._vain.values()])

    def admitted(self, live: RequestState, decision: Decision, forecast: Forecast) -> None:
        """Count a request that was sent or queued on this forecast."""
        fairness = self._fairness.get(live.request.tier.name)
        if fairness is not None and not live.counted:
            live.counted = True
            fairness.decided(decision.offer.prompt_likely, True, forecast.at)
        self._drop(live)  # it was admitted before if it moved here from the queue of a pool without replicas
        vain = self._vain.get(live.request.tier.name)
        if vain is not None:
            vain.admitted(forecast.in_vain)
            live.unsent = vain, forecast
        guards = self._guards.get(live.request.tier.name)
        if guards is not None and live.request.stream:
            promised: list[tuple[TtftGuard, float, bool]] = []
            live.promised = promised
            offer = decision.offer
            has_costs = self._forecaster.has_costs(offer.pool.spec.name)
            known = len(decision.late) if has_costs else 0
            for i, guard in enumerate(guards):
                late = decision.late[i] if i < known else self._late(offer, forecast, guard.objective.threshold_s)
                guard.admitted(late)
                promised.append((guard, late, has_costs))

    @staticmethod
    def _promised(live: RequestState) -> list[tuple[TtftGuard, float, bool]]:
        """The TTFT guards that count a request, with its P(late) for each and whether costs were known. From now on
        they do not count it.
        """
        promised, live.promised = live.promised, None
        return promised if promised is not None else []

    def _drop(self, live: RequestState) -> None:
        """Remove a request, without a judgement, from the guards that count it."""
        if live.promised is not None:
            for guard, late, _ in self._promised(live):
                guard.dropped(late)
        unsent = live.unsent
        if unsent is not None:
            live.unsent = None
            vain, forecast = unsent
            vain.dropped(forecast.in_vain)

    def sent(self, live: RequestState, now: float) -> None:
        """Record the first dispatch of a request: it has not waited in vain."""
        self._judge(live, False, now)

    def _judge(self, live: RequestState, in_vain: bool, now: float) -> None:
        """Tell the guard of waits in vain how the wait of a request ended, unless the guard does not count it."""
        unsent = live.unsent
        if unsent is None:
            return
        live.unsent = None
        vain, forecast = unsent
        vain.judged(forecast.in_vain, in_vain, now)
        self._forecaster.waited(live, forecast, in_vain)

    def first_token(self, live: RequestState, now: float) -> None:
        """Judge the TTFT objectives of a stream whose first token reached the client."""
        for guard, late, had_costs in self._promised(live):
            guard.judged(late, now - live.request.body_at > guard.objective.threshold_s, now, had_costs)

    def ended(self, live: RequestState, record: Record, now: float) -> None:
        """Learn from the end of a request."""
        lost = is_lost(record)
        fairness = self._fairness.get(live.request.tier.name)
        if fairness is not None and live.offer is not None:
            prompt = live.offer.prompt_likely
            if lost and live.counted:
                fairness.lost(prompt, now)
            elif lost:
                fairness.decided(prompt, False, now)
            elif live.counted and record.outcome is Outcome.INVALID:
                fairness.take_back(prompt, now)
        if lost:
            for guard, late, had_costs in self._promised(live):
                if guard.counts_wait(record.e2e_s):
                    guard.judged(late, True, now, had_costs)
                else:
                    guard.dropped(late)
            self._judge(live, True, now)
        self._drop(live)
        tier = live.request.tier
        budget = self._budgets.get(tier.name)
        if budget is not None:
            budget.count(tier.slo, record, now)
        if record.pool is None or live.forecast is None or live.was_overfilled:
            return  # the replica was filled beyond the step limit, so the answer shows nothing about the limit
        margins = self._margins_of(record.pool, tier)
        if record.tpot_s is not None:
            for margin in margins.tpot:
                margin.learn(live.forecast.tpot_s, record.tpot_s > margin.objective.threshold_s)
        if record.outcome is Outcome.OK and tier.slo.covers(record.output_tokens):
            for margin in margins.e2e:
                margin.learn(live.forecast.tpot_s, record.e2e_s > margin.objective.threshold_s)
                if record.ttft_s is not None:
                    margin.saw_ttft(record.ttft_s)


def is_lost(record: Record) -> bool:
    """Whether a request was refused or timed out for lack of capacity."""
    outcome = record.outcome
    return (outcome is Outcome.REFUSED or outcome is Outcome.TIMEOUT) and record.why not in NOT_LATE
