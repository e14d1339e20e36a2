"""The objectives of all tiers: whether a request would break one, and the longest engine step that they allow.

TTFT percentiles limit admissions (estimators/ttft_judge.py). TPOT and e2e objectives limit the step of replicas
(estimators/step_margin.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from gateway.core.admission.fairness import LengthFairness
from gateway.core.decision import Decision
from gateway.core.estimators.memory import Remembering, objects_in
from gateway.core.estimators.step_margin import LONG_START, StepMargin
from gateway.core.estimators.ttft_judge import TtftJudge, ttft_judges
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
from gateway.core.snapshot import Trust

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

    __slots__ = ("broken", "is_likely_missed", "late")

    def __init__(self, is_likely_missed: bool) -> None:
        self.is_likely_missed = is_likely_missed
        """Whether P(breach) decides and is above the threshold of the tier. Then no judge was asked."""
        self.broken: TtftJudge | None = None
        """The judge that does not admit it; None if all do."""
        self.late: list[float] = []
        """P(first token is late), corrected, for each TTFT objective that was asked, in the order of the tier's."""

    @property
    def is_doubtful(self) -> bool:
        """Whether anything speaks against the request."""
        return self.is_likely_missed or self.broken is not None


class Promises:
    """Counts answers that kept or broke an objective. The counts of unchanged objectives outlive a reload."""

    def __init__(self, policy: Policy, forecaster: Forecaster) -> None:
        self._forecaster = forecaster
        self._judges: dict[str, tuple[TtftJudge, ...]] = {}
        """Judges of the TTFT objectives, by tier."""
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
        self._pools = tuple(policy.pools)
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
        judges = self._judges
        self._judges = {
            name: ttft_judges(judges.get(name, ()), tier.slo.ttft) for name, tier in tiers.items() if tier.slo.ttft
        }
        self._fairness = {name: self._fairness.get(name) or LengthFairness() for name in tiers}

    def memory(self) -> dict[str, object]:
        """The margins of all objectives, by name."""
        return {name: each.memory() for name, each in self._named()}

    def recall(self, memory: object, shift_s: float) -> None:
        """Take over the margins of a predecessor."""
        for pool in self._pools:
            for tier in self._tiers.values():
                self._margins_of(pool, tier)
        for name, each in self._named():
            each.recall(objects_in(memory).get(name), shift_s)

    def _named(self) -> Iterator[tuple[str, Remembering]]:
        for tier, judges in self._judges.items():
            for judge in judges:
                yield f"ttft {tier} {judge.objective}", judge
        for (pool, objective), margin in self._tpot.items():
            yield f"tpot {pool} {objective}", margin
        for (pool, tier, objective), margin in self._e2e.items():
            yield f"e2e {pool} {tier} {objective}", margin

    # ---- decisions

    def doubt(self, offer: Offer, forecast: Forecast) -> Doubt:
        """Ask P(breach) first, then the judges of the tier, up to the first that does not admit the request."""
        request = offer.request
        is_known = self._forecaster.trust(offer.pool.spec.name) is Trust.TRUSTED and not forecast.is_untried
        doubt = Doubt(is_known and forecast.breach > offer.max_breach)
        if doubt.is_likely_missed or not request.stream:
            return doubt
        for judge in self._judges.get(request.tier.name, ()):
            late = self._late(offer, forecast, judge)
            doubt.late.append(late)
            if not judge.admits(late, forecast.at):
                doubt.broken = judge
                break
        return doubt

    def _late(self, offer: Offer, forecast: Forecast, judge: TtftJudge) -> float:
        """P(the first token comes later than the bound of an objective), 0-1, corrected. Before engine costs are known,
        it is 0 or 1 and depends on how long the queue's head has waited.
        """
        bound_s = judge.objective.threshold_s
        if self._forecaster.has_costs(offer.pool.spec.name):
            return judge.corrected(self._forecaster.is_late(offer.request, forecast, bound_s))
        return 1.0 if head_waited_s(offer.pool, offer.request.tier, forecast.at) > bound_s else 0.0

    def _fits_alone(self, offer: Offer) -> bool:
        """Whether an idle replica would keep every TTFT objective and the TPOT bound of the request, so that only room
        is missing.
        """
        judges = self._judges.get(offer.request.tier.name)
        if judges is None or not offer.request.stream or not self._forecaster.has_costs(offer.pool.spec.name):
            return False
        slo = offer.slo  # its bounds may be tighter than its tier's, and then out of reach
        if self._forecaster.costs(offer.pool).step.coefficients[0] > slo.tpot_bound_s:
            return False
        alone_s = self._forecaster.alone_s(offer)
        for judge in judges:
            bound_s = min(judge.objective.threshold_s, slo.ttft_bound_s)
            p = self._forecaster.is_late_alone(offer.pool, alone_s, bound_s)
            if judge.corrected(p) > judge.allowed:
                return False
        return True

    def is_owed(self, offer: Offer, now: float) -> bool:
        """Whether a doubtful request is admitted because too few with a similar prompt length were admitted lately."""
        tier = offer.request.tier
        fairness = self._fairness.get(tier.name)
        if fairness is None or tier.admission.mode is not AdmissionMode.ENFORCE:
            return False
        counts_tokens = tier.value is Value.TOKENS and fairness.is_long(offer.prompt_likely)
        return fairness.is_owed(offer.prompt_likely, 0.0 if counts_tokens else tier.fairness, now)

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
            if tier is None or demand.latest_at < lately:
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
        """Number of admitted requests without a first token, summed over all present judges. A request counts once for
        each judge.
        """
        return sum(judge.open for judges in self._judges.values() for judge in judges)

    def offered(self, offer: Offer, now: float) -> None:
        """Count an arrival."""
        tier, pool = offer.request.tier, offer.pool
        judges = self._judges.get(tier.name, ())
        if not offer.request.stream or tier.admission.mode is AdmissionMode.OFF or len(judges) < 2:
            return
        if not self._forecaster.has_costs(pool.spec.name):
            return
        alone_s = self._forecaster.alone_s(offer)
        for judge in judges:
            if not judge.highest:
                judge.offered(self._forecaster.is_late_alone(pool, alone_s, judge.objective.threshold_s), now)

    def admitted(self, state: RequestState, decision: Decision, forecast: Forecast) -> None:
        """Count a request that was sent or queued on this forecast."""
        offer = decision.offer
        fairness = self._fairness.get(state.request.tier.name)
        if fairness is not None and not state.counted:
            state.counted = True
            fairness.decided(offer.prompt_likely, True, forecast.at)
        self.drop(state)  # it was admitted before if it moved here from the queue of a pool without replicas
        judges = self._judges.get(state.request.tier.name)
        if judges is None or not state.request.stream:
            return
        promised: list[tuple[TtftJudge, float, bool]] = []
        state.promised = promised
        has_costs = self._forecaster.has_costs(offer.pool.spec.name)
        for i, judge in enumerate(judges):
            late = decision.late[i] if i < len(decision.late) else self._late(offer, forecast, judge)
            judge.admitted(late)
            promised.append((judge, late, has_costs))

    @staticmethod
    def _promised(state: RequestState) -> list[tuple[TtftJudge, float, bool]]:
        """The judges that count a request, with its P(late) for each and whether costs were known. The request
        forgets them, so the caller must take it out of their counts.
        """
        promised, state.promised = state.promised, None
        return promised if promised is not None else []

    def drop(self, state: RequestState) -> None:
        """Remove a request, without an answer, from the judges that count it."""
        if state.promised is not None:
            for judge, late, _ in self._promised(state):
                judge.dropped(late)

    def first_token(self, state: RequestState, now: float) -> None:
        """Judge the TTFT objectives of a stream whose first token reached the client."""
        for judge, late, had_costs in self._promised(state):
            judge.judged(late, now - state.request.body_at > judge.objective.threshold_s, now, had_costs)

    def ended(self, state: RequestState, record: Record, now: float) -> None:
        """Learn from the end of a request."""
        lost = is_lost(record)
        fairness = self._fairness.get(state.request.tier.name)
        if fairness is not None and state.offer is not None:
            prompt = state.offer.prompt_likely
            if lost and state.counted:
                fairness.lost(prompt, now)
            elif lost:
                fairness.decided(prompt, False, now)
            elif state.counted and record.outcome is Outcome.INVALID:
                fairness.take_back(prompt, now)
        if lost:
            if state.offer is not None and self._fits_alone(state.offer):
                state.offer.pool.asked.short(state.request.tier, now)
            for judge, late, had_costs in self._promised(state):
                if judge.highest:
                    judge.judged(late, True, now, had_costs)
                else:
                    judge.dropped(late)
        self.drop(state)
        tier = state.request.tier
        if record.pool is None or state.forecast is None or state.was_overfilled:
            return  # the replica was filled beyond the step limit, so the answer shows nothing about the limit
        margins = self._margins_of(record.pool, tier)
        if record.tpot_s is not None:
            for margin in margins.tpot:
                margin.learn(state.forecast.tpot_s, record.tpot_s > margin.objective.threshold_s)
        if record.outcome is Outcome.OK and tier.slo.covers(record.output_tokens):
            # The wait in the queue says nothing about steps. If it counted, a queue would lower the limit, and grow.
            for margin in margins.e2e:
                margin.learn(state.forecast.tpot_s, record.e2e_s - record.queue_s > margin.objective.threshold_s)
                if record.ttft_s is not None:
                    margin.saw_ttft(record.ttft_s - record.queue_s)


def is_lost(record: Record) -> bool:
    """Whether a request was refused or timed out for lack of capacity."""
    outcome = record.outcome
    return (outcome is Outcome.REFUSED or outcome is Outcome.TIMEOUT) and record.why not in NOT_LATE
