"""The objectives of all tiers: whether a request would break one, and the longest step they allow.

TTFT percentiles are constraints on admissions (percentiles.py). TPOT and e2e objectives bound the step of replicas
(step_margin.py). The error budget sets how much risk a tier takes (error_budget.py).
"""

from __future__ import annotations

import math
from typing import Final

from gateway.core.admission.breach_probability import head_waited_s
from gateway.core.admission.error_budget import ErrorBudget
from gateway.core.admission.fairness import LengthFairness
from gateway.core.admission.forecaster import Forecaster
from gateway.core.admission.percentiles import ShareGuard, ttft_guards, vain_guard
from gateway.core.admission.step_margin import LONG_START, StepMargin
from gateway.core.fleet.pool import Pool, Replica
from gateway.core.fleet.step_budget import StepPrices
from gateway.core.forecast.ahead import Forecast
from gateway.core.policy import AdmissionMode, Objective, Policy, Slo, Tier, Value
from gateway.core.request import Outcome, Reason, Record
from gateway.core.request_state import RequestState
from gateway.core.snapshot import TierView

NOT_LATE: Final = (Reason.SHUTTING_DOWN, Reason.NO_REPLICAS)
"""Refusals for reasons other than latency."""
LATELY_S: Final = 5.0
"""Seconds for which a tier's objectives still bind after its last request, or a request's mean stay if longer."""


class TierMargins:
    """The step margins of one tier in one pool, in the order of its objectives."""

    __slots__ = ("e2e", "slo", "tpot")

    def __init__(self, slo: Slo, tpot: list[StepMargin], e2e: list[StepMargin]) -> None:
        self.slo = slo
        self.tpot = tpot
        self.e2e = e2e


class Promises:
    """Counts of answers that kept an objective, and that broke it. Counts for unchanged objectives outlive a reload."""

    def __init__(self, policy: Policy, forecaster: Forecaster) -> None:
        self._forecaster = forecaster
        self._budgets: dict[str, ErrorBudget] = {}
        self._guards: dict[str, tuple[ShareGuard, ...]] = {}
        """The TTFT objectives of each tier."""
        self._promised: dict[int, list[tuple[ShareGuard, float]]] = {}
        """By request without a first token: each promised objective, and its forecast P(late)."""
        self._vain: dict[str, ShareGuard] = {}
        """By tier."""
        self._unsent: dict[int, tuple[ShareGuard, Forecast]] = {}
        """By request that was admitted and not sent yet."""
        self._fairness: dict[str, LengthFairness] = {}
        """By tier."""
        self._tpot: dict[tuple[str, Objective], StepMargin] = {}
        """By pool."""
        self._e2e: dict[tuple[str, str, Objective], StepMargin] = {}
        """By pool and tier, whose answers have lengths of their own."""
        self._margins: dict[tuple[str, str], TierMargins] = {}
        """Both, by pool and tier."""
        self.configure(policy)

    def configure(self, policy: Policy) -> None:
        """Take on a policy."""
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
        """The largest P(breach) that is admitted: the tier's own, scaled by its error budget."""
        written = tier.admission.max_breach_probability
        budget = self._budgets.get(tier.name)
        return written if budget is None else budget.threshold(written)

    def budget_left(self, tier: Tier) -> float | None:
        """Remaining error budget of the tier, -1 to 1; None without objectives or enough answers."""
        budget = self._budgets.get(tier.name)
        return None if budget is None else budget.left

    def views(self) -> tuple[TierView, ...]:
        """A copy for people."""
        return tuple(TierView(name, self.threshold(tier), self.budget_left(tier)) for name, tier in self._tiers.items())

    def offered(self, live: RequestState, pool: Pool, now: float) -> None:
        """A request arrived for this pool, and was decided about."""
        tier = live.request.tier
        guards = self._guards.get(tier.name, ())
        if len(guards) < 2 or not live.request.stream or tier.admission.mode is AdmissionMode.OFF:
            return
        if not self._forecaster.has_costs(pool.spec.name):
            return
        alone_s = self._forecaster.alone_s(live, pool)
        for guard in guards:
            if guard.objective is not None and not guard.highest:
                guard.offered(self._forecaster.is_late_alone(pool, alone_s, guard.objective.threshold_s), now)

    def broken(self, live: RequestState, pool: Pool, forecast: Forecast) -> ShareGuard | None:
        """The constraint of its tier that would break with this request; None if all hold."""
        forecast.late = []
        guards = self._guards.get(live.request.tier.name) if live.request.stream else None
        if guards:
            for guard in guards:
                late = self._late(live, pool, forecast, guard.objective)
                forecast.late.append(late)
                if not guard.admits(late, forecast.at):
                    return guard
            return None
        vain = self._vain.get(live.request.tier.name)
        return None if vain is None or vain.admits(forecast.in_vain, forecast.at) else vain

    def is_owed(self, live: RequestState, now: float) -> bool:
        """Whether it is admitted though doubtful, because too few prompts of its length were."""
        tier = live.request.tier
        fairness = self._fairness.get(tier.name)
        if fairness is None or tier.admission.mode is not AdmissionMode.ENFORCE:
            return False
        counts_tokens = tier.value is Value.TOKENS and fairness.is_long(live.prompt_likely)
        return fairness.is_owed(live.prompt_likely, 0.0 if counts_tokens else tier.fairness, now)

    def _late(self, live: RequestState, pool: Pool, forecast: Forecast, objective: Objective | None) -> float:
        """P(its first token misses the objective), 0-1. Before engine costs are known the head of its queue tells."""
        assert objective is not None
        if self._forecaster.has_costs(pool.spec.name):
            return self._forecaster.is_late(live, forecast, objective.threshold_s)
        return 1.0 if head_waited_s(pool, live.request.tier, forecast.at) > objective.threshold_s else 0.0

    def step_limit_s(self, replica: Replica, prices: StepPrices | None, now: float) -> float:
        """The longest mean step of `replica` that keeps all TPOT and e2e objectives in use; inf without any.

        An objective that even an idle replica would break sets no bound.
        """
        if prices is None:
            return math.inf
        pool = replica.pool
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
            for margin in () if tier.caps.degrade else margins.e2e:  # its answers get shorter instead
                quantile = margin.objective.quantile
                longest = self._forecaster.lengths.longest(name, quantile, tier.slo.e2e_up_to_tokens)
                if longest is not None:
                    margin.fit(longest)
                    if margin.limit_s > alone_s:
                        limit_s = min(limit_s, margin.limit_s)
        return limit_s

    def _margins_of(self, pool: str, tier: Tier) -> TierMargins:
        """The margins of a tier in a pool. Margins of TPOT are shared by all tiers with the same objective."""
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
        """Requests that the guards in force have not judged, one for each guard."""
        guards = [guard for guards in self._guards.values() for guard in guards]
        return sum(guard.open for guard in [*guards, *self._vain.values()])

    def admitted(self, live: RequestState, pool: Pool, forecast: Forecast) -> None:
        """A request with this forecast was sent, or queued."""
        fairness = self._fairness.get(live.request.tier.name)
        if fairness is not None and not live.counted:
            live.counted = True
            fairness.decided(live.prompt_likely, True, forecast.at)
        self._drop(live.request.id)  # it may have moved here from the queue of a pool without replicas
        vain = self._vain.get(live.request.tier.name)
        if vain is not None:
            vain.admitted(forecast.in_vain)
            self._unsent[live.request.id] = vain, forecast
        guards = self._guards.get(live.request.tier.name)
        if guards is not None and live.request.stream:
            promised = self._promised[live.request.id] = []
            known = len(forecast.late) if self._forecaster.has_costs(pool.spec.name) else 0
            for i, guard in enumerate(guards):
                late = forecast.late[i] if i < known else self._late(live, pool, forecast, guard.objective)
                guard.admitted(late)
                promised.append((guard, late))

    def _drop(self, request: int) -> None:
        """Remove a request from the guards that expect it."""
        for guard, late in self._promised.pop(request, ()):
            guard.dropped(late)
        unsent = self._unsent.pop(request, None)
        if unsent is not None:
            unsent[0].dropped(unsent[1].in_vain)

    def sent(self, live: RequestState, now: float) -> None:
        """A request is dispatched for the first time, so it has not waited in vain."""
        if live.request.id in self._unsent:
            self._judge(live, False, now)

    def _judge(self, live: RequestState, in_vain: bool, now: float) -> None:
        guard, forecast = self._unsent.pop(live.request.id)
        guard.judged(forecast.in_vain, in_vain, now)
        self._forecaster.waited(live, forecast, in_vain)

    def first_token(self, live: RequestState, now: float) -> None:
        """The client has the first token of a stream."""
        for guard, late in self._promised.pop(live.request.id, ()):
            assert guard.objective is not None
            guard.judged(late, now - live.request.body_at > guard.objective.threshold_s, now)

    def ended(self, live: RequestState, record: Record, now: float) -> None:
        """A request is over."""
        lost = is_lost(record)
        fairness = self._fairness.get(live.request.tier.name)
        if lost and fairness is not None:
            if live.counted:
                fairness.lost(live.prompt_likely, now)
            else:
                fairness.decided(live.prompt_likely, False, now)
        if lost:
            for guard, late in self._promised.pop(live.request.id, ()):
                if guard.counts_wait(record.e2e_s):
                    guard.judged(late, True, now)
                else:
                    guard.dropped(late)
            if live.request.id in self._unsent:
                self._judge(live, True, now)
        self._drop(live.request.id)
        tier = live.request.tier
        budget = self._budgets.get(tier.name)
        if budget is not None:
            budget.count(tier.slo, record, now)
        if record.pool is None or live.forecast is None or live.given_up is not None or live.was_overfilled:
            return  # what was sent beyond the step limit says nothing about the limit
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
    """Whether lack of capacity made a request be refused or time out."""
    outcome = record.outcome
    return (outcome is Outcome.REFUSED or outcome is Outcome.TIMEOUT) and record.why not in NOT_LATE
