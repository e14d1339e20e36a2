"""Whether a request is sent, waits, or is shed: the order of the decision, and the probability it is taken on.

    fits now -> waits, with a deadline -> spills into a longer pool -> gets a shorter answer -> is shed

A request is doubtful if the forecast says that it misses an objective of its tier with a probability above the tier's
threshold. What is not doubtful takes a slot, or waits for one. Of what is doubtful a small share is let in all the
same, because only what is let in shows whether the forecast was right. While the forecast is not to be trusted nothing
is doubtful: the bounds of slots and waiting room decide, and when a turn comes whether there is time for a first token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum, auto
from typing import Final

from gateway.core.admission.error_budget import ErrorBudget
from gateway.core.admission.forecaster import Forecaster
from gateway.core.admission.percentiles import PercentileGuard
from gateway.core.admission.tpot_margin import TpotMargin
from gateway.core.fleet.fleet import Fleet
from gateway.core.fleet.pool import Pool, Replica
from gateway.core.fleet.step_budget import StepPrices
from gateway.core.forecast.ahead import NOTHING_AHEAD, Ahead, Forecast
from gateway.core.forecast.trust import Trust
from gateway.core.policy import AdmissionMode, Objective, Policy, Tier
from gateway.core.queueing.request import QueuedRequest
from gateway.core.request import Outcome, Random, Reason, Record
from gateway.core.request_state import RequestState
from gateway.core.snapshot import TierView

LOOKED_AT: Final = 4
"""Replicas with a free slot, least loaded first, that are asked before one is shed."""
PROBE_EVERY_S: Final = 1.0
"""A tier of which nothing was let in for so long gets its next doubtful request in."""
MAX_HIGHER_SHARE: Final = 0.9
SPILL_HEADROOM: Final = 0.3
"""Share of its slots that a pool must have free to take what another one sheds,"""
SPILL_BREACH: Final = 0.05
"""and how probable a miss may be there."""
CONTESTED_BREACH: Final = 0.1
"""The same of one that others of its tier wait behind: they are fresher, and its slot is worth more to them."""
RECHECK_FROM: Final = 4.0
"""It is looked at again if no more time is left than so many times what its engine was to take to its first token."""
DEGRADE_MARGIN: Final = 0.8
"""Of the time that is left for an answer, what a shorter one is made to fit,"""
MIN_DEGRADED_TOKENS: Final = 16
"""and the shortest that is worth sending."""
HOLD_SHARE: Final = 0.2
"""Of the tightest TTFT objective, what may wait unread inside an engine,"""
MAX_TIGHTEST_S: Final = 5.0
"""which is taken to be no looser than this."""
MIN_WINDOW_TOKENS: Final = 2048.0
"""What one step of an engine reads by default (vLLM: max_num_batched_tokens)."""
MAX_WINDOW_TOKENS: Final = 16384.0
"""Also the window before it is known how fast an engine reads."""


NOT_LATE: Final = (Reason.SHUTTING_DOWN, Reason.NO_REPLICAS)
"""Refusals that say nothing of latency: there was nobody to be late."""
LONG_WAIT: Final = 0.5
"""Part of a TTFT bound after which a refusal has made its client wait: what is refused before was hardly promised."""
LATELY_S: Final = 5.0
"""A tier is kept in mind for so long after its last request, or for as long as a request stays if that is longer."""


class Verdict(Enum):
    """Decision on a newcomer."""

    SEND = auto()
    WAIT = auto()
    SHED = auto()


class Decision:
    """The verdict, with the replica it is sent to, whom it costs their places, or why it is shed."""

    __slots__ = ("detail", "replica", "verdict", "victims", "why")

    def __init__(
        self,
        verdict: Verdict,
        replica: Replica | None = None,
        victims: Sequence[QueuedRequest] = (),
        why: Reason = Reason.QUEUE_FULL,
        detail: str = "",
    ) -> None:
        self.verdict = verdict
        self.replica = replica
        self.victims = victims
        self.why = why
        self.detail = detail


class Admission:
    """Decides about newcomers, and once more about those whose turn has come."""

    def __init__(self, policy: Policy, fleet: Fleet, forecaster: Forecaster, random: Random) -> None:
        self._fleet = fleet
        self._forecaster = forecaster
        self._random = random
        self._budgets: dict[str, ErrorBudget] = {}
        self._guards: dict[str, tuple[PercentileGuard, ...]] = {}
        """The TTFT objectives of each tier."""
        self._promised: dict[int, list[tuple[PercentileGuard, float]]] = {}
        """By request without a first token: the objectives promised to it, and how probable it is late for each."""
        self._hold_s = math.inf
        self._margins: dict[tuple[str, Objective], TpotMargin] = {}
        self.configure(policy)

    def configure(self, policy: Policy) -> None:
        """Take on a policy."""
        self._tiers = policy.tiers
        self._margins = {
            (pool, objective): margin
            for (pool, objective), margin in self._margins.items()
            if pool in policy.pools and any(objective in tier.slo.tpot for tier in policy.tiers.values())
        }
        self._guards = {
            name: _guards(self._guards.get(name, ()), tier.slo.ttft)
            for name, tier in policy.tiers.items()
            if tier.slo.ttft
        }
        kept = self._budgets
        self._budgets = {
            name: kept[name] if name in kept and kept[name].slo == tier.slo else ErrorBudget(tier.slo)
            for name, tier in policy.tiers.items()
        }
        tightest_s = min((tier.slo.ttft_bound_s for tier in policy.tiers.values()), default=math.inf)
        self._hold_s = HOLD_SHARE * min(tightest_s, MAX_TIGHTEST_S)

    # ---- decisions

    def arrives(self, live: RequestState, pool: Pool, now: float) -> Decision:
        """About a newcomer of `pool`. A tier that waits already is not overtaken by its own."""
        tier = live.ask.tier
        replica = None if pool.room.holds(tier) else pool.pick(tier, None, self._random.random())
        if tier.admission.mode is not AdmissionMode.OFF and live.slo.bounded:
            live.forecast = forecast = self.forecast(live, pool, replica, now)
            if self.is_doubtful(live, pool, forecast):
                faster = None if replica is None else self._faster(live, pool, replica, now)
                if faster is not None:
                    return Decision(Verdict.SEND, faster)
                if not self._is_let_in(live, pool, now):
                    other = self._spill(live, pool, now)
                    if other is not None:
                        return Decision(Verdict.SEND, other)
                    if not self._degrade(live, pool, replica, forecast, now):
                        detail = self.why(live, pool, forecast)
                        return Decision(Verdict.SHED, why=Reason.PREDICTED, detail=detail)
        if replica is not None:
            return Decision(Verdict.SEND, replica)
        return waits(live, pool)

    def is_hopeless(self, live: RequestState, replica: Replica, now: float) -> str:
        """Why one whose turn has come would miss its objective even so; empty if it need not."""
        pool = replica.pool
        before = live.forecast
        if before is None or live.explored or live.ask.tier.admission.mode is not AdmissionMode.ENFORCE:
            return ""
        left_s = live.deadline - now
        if left_s > RECHECK_FROM * before.engine_s(live.ask.body_at):
            return ""
        forecast = self._forecaster.forecast(live, pool, replica, NOTHING_AHEAD, now)
        if not self.trusted(pool):
            # Its probability is not believed; that an engine takes time to a first token is. Without this, all who wait
            # until the end of their deadline are sent just too late, and the forecast is right in saying so of each.
            bound_s = live.slo.ttft_bound_s
            if not live.ask.stream or forecast.ttft_s <= bound_s:
                return ""
            return f"The replicas are busy. Its turn came too late for a first token within {bound_s:g} s."
        limit = self.threshold(live.ask.tier)
        if pool.room.band(live.ask.tier).count > 1:
            limit = min(limit, CONTESTED_BREACH)
        return self.reason(live, forecast, limit) if forecast.breach > limit else ""

    def is_doubtful(self, live: RequestState, pool: Pool, forecast: Forecast) -> bool:
        """Whether the forecast is against it, and may be believed."""
        if forecast.breach > self.threshold(live.ask.tier) and self.trusted(pool):
            return True
        return self._broken(live, pool, forecast) is not None

    def _broken(self, live: RequestState, pool: Pool, forecast: Forecast) -> PercentileGuard | None:
        """The TTFT objective of its tier that would not be kept with it."""
        if live.ask.stream:
            for guard in self._guards.get(live.ask.tier.name, ()):
                if not guard.admits(self._late(live, pool, forecast, guard.objective), forecast.at):
                    return guard
        return None

    def _late(self, live: RequestState, pool: Pool, forecast: Forecast, objective: Objective) -> float:
        """P(its first token is later than the objective wants it), 0-1.

        Before it is known what engines take, those that wait already tell: it will wait for longer than they have.
        """
        if self._forecaster.has_costs(pool.spec.name):
            return self._forecaster.is_late(live, forecast, objective.threshold_s)
        before = pool.room.band(live.ask.tier).first() if pool.room.holds(live.ask.tier) else None
        return 0.0 if before is None or forecast.at - before.ask.body_at <= objective.threshold_s else 1.0

    # ---- what they are made from

    def forecast(self, live: RequestState, pool: Pool, replica: Replica | None, now: float) -> Forecast:
        """Of a newcomer that is sent to `replica`, or has to wait."""
        ahead = NOTHING_AHEAD if replica is not None else self.ahead(live, pool, now)
        return self._forecaster.forecast(live, pool, replica, ahead, now)

    def trust(self, pool: Pool) -> Trust:
        """Whether forecasts for this pool may be acted upon, or why not."""
        return self._forecaster.trust(pool.spec.name)

    def trusted(self, pool: Pool) -> bool:
        """Whether forecasts for this pool decide; else only the bounds of slots and waiting room do."""
        return self._forecaster.trust(pool.spec.name) is Trust.TRUSTED

    def threshold(self, tier: Tier) -> float:
        """The largest probability of a miss that is put up with: the tier's, by what is left of its error budget."""
        written = tier.admission.max_breach_probability
        budget = self._budgets.get(tier.name)
        return written if budget is None else budget.threshold(written)

    def budget_left(self, tier: Tier) -> float:
        """Remaining error budget of the tier, -1 to 1."""
        budget = self._budgets.get(tier.name)
        return 0.0 if budget is None else budget.left

    def views(self, policy: Policy) -> tuple[TierView, ...]:
        """A copy for people."""
        return tuple(
            TierView(name, self.threshold(tier), self._budgets[name].left) for name, tier in policy.tiers.items()
        )

    def admitted(self, live: RequestState, pool: Pool, now: float) -> None:
        """A request was sent, or has begun to wait."""
        pool.room.band(live.ask.tier).admitted(now)
        forecast = live.forecast
        if forecast is None:
            return
        self._forecaster.watch(live, now)
        guards = self._guards.get(live.ask.tier.name)
        if guards is not None and live.ask.stream:
            self._drop(live.ask.id)  # it may have waited for a pool that has no replicas any more
            promised = self._promised[live.ask.id] = []
            for guard in guards:
                late = self._late(live, pool, forecast, guard.objective)
                guard.admitted(late)
                promised.append((guard, late))

    def _drop(self, request: int) -> None:
        """Expect nothing more of a request by what was promised to it until now."""
        for guard, late in self._promised.pop(request, ()):
            guard.dropped(late)

    @property
    def promises(self) -> int:
        """TTFT objectives promised to requests without a first token, counted by the guards in force."""
        return sum(guard.open for guards in self._guards.values() for guard in guards)

    def first_token(self, live: RequestState, now: float) -> None:
        """The client has the first token of a stream."""
        for guard, late in self._promised.pop(live.ask.id, ()):
            guard.answered(late, now - live.ask.body_at, now)

    def ended(self, live: RequestState, record: Record, now: float) -> None:
        """A request is over."""
        in_vain = record.outcome in (Outcome.REFUSED, Outcome.TIMEOUT) and record.why not in NOT_LATE
        for guard, late in self._promised.pop(live.ask.id, ()):
            if in_vain and guard.last and record.e2e_s >= LONG_WAIT * guard.objective.threshold_s:
                guard.answered(late, math.inf, now)
            else:
                guard.dropped(late)
        budget = self._budgets.get(live.ask.tier.name)
        if budget is not None:
            budget.count(live.ask.tier.slo, record, now)
        if record.tpot_s is not None and record.pool is not None and live.forecast is not None:
            for objective in live.ask.tier.slo.tpot:
                self._margin(record.pool, objective).learn(live.forecast.tpot_s, record.tpot_s)

    def ahead(self, live: RequestState, pool: Pool, now: float) -> Ahead:
        """Work before a newcomer who has to wait."""
        ask, room = live.ask, pool.room
        own = room.band(ask.tier).ahead_of(ask.tenant) if room.holds(ask.tier) else 0
        above, per_s = room.above(ask.tier, now)
        drain = pool.drain.per_s
        share = min(MAX_HIGHER_SHARE, per_s / drain) if drain else 0.0
        return Ahead(above + own, own, share, ask.tier.floor)

    def prefill_limit(self, pool: Pool) -> float:
        """Prompt tokens that an engine of `pool` may have to read before it is sent more.

        What waits in an engine is served in order of arrival, whatever its tier; so no more is sent than it reads in a
        part of the tightest TTFT objective, and enough to keep it busy. Slots alone do not see to that where prompts
        are long and answers short.
        """
        token_s = self._forecaster.prefill_s_per_token(pool.spec.name)
        if token_s is None:
            return MAX_WINDOW_TOKENS
        return min(MAX_WINDOW_TOKENS, max(MIN_WINDOW_TOKENS, self._hold_s / token_s))

    def step_limit_s(self, replica: Replica, prices: StepPrices | None, now: float) -> float:
        """The longest mean step of `replica` with which the TPOT of every tier that uses its pool is kept."""
        if prices is None:
            return math.inf
        pool = replica.pool
        lately = now - max(LATELY_S, self._forecaster.costs(pool).stay_s)
        limit_s = math.inf
        for name, at in pool.asked_at.items():
            tier = self._tiers.get(name)
            if tier is None or at < lately:
                continue
            for objective in tier.slo.tpot:
                if objective.threshold_s > prices.base_s + prices.sequence_s:
                    limit_s = min(limit_s, self._margin(pool.spec.name, objective).limit_s)
        return limit_s

    def _margin(self, pool: str, objective: Objective) -> TpotMargin:
        found = self._margins.get((pool, objective))
        if found is None:
            found = self._margins[pool, objective] = TpotMargin(objective)
        return found

    def why(self, live: RequestState, pool: Pool, forecast: Forecast) -> str:
        """What a client is told of a forecast that is against it."""
        limit = self.threshold(live.ask.tier)
        guard = None if forecast.breach > limit else self._broken(live, pool, forecast)
        if guard is None:
            return self.reason(live, forecast, limit)
        objective = guard.objective
        return (
            f"The replicas are busy. Predicted: time to first token {forecast.ttft_s:.3g} s; "
            f"at least {objective.quantile:.3g} of the answers are to have theirs within {objective.threshold_s:g} s."
        )

    def reason(self, live: RequestState, forecast: Forecast, limit: float) -> str:
        """What a client is told of a forecast whose P(breach) is above `limit`."""
        slo = live.slo
        latencies = (
            ("time to first token", forecast.ttft_s, slo.ttft_bound_s),
            ("time per token", forecast.tpot_s, slo.tpot_bound_s),
            ("time to the end", forecast.e2e_s, slo.e2e_bound_s),
        )
        said = [
            f"{name} {seconds:.3g} s of {bound_s:g} s" for name, seconds, bound_s in latencies if bound_s < math.inf
        ]
        chance = f"it misses its objective with probability {forecast.breach:.2f}, above {limit:.2f}"
        return f"The replicas are busy. Predicted: {', '.join(said)}; {chance}."

    # ---- what becomes of the doubtful

    def _is_let_in(self, live: RequestState, pool: Pool, now: float) -> bool:
        """Whether a doubtful one is admitted all the same."""
        admission = live.ask.tier.admission
        if admission.mode is AdmissionMode.SHADOW:
            live.would_shed = True
            return True
        if admission.exploration <= 0.0:
            return False
        idle_s = now - pool.room.band(live.ask.tier).admitted_at
        live.explored = idle_s >= PROBE_EVERY_S or self._random.random() < admission.exploration
        return live.explored

    def _faster(self, live: RequestState, pool: Pool, doubtful: Replica, now: float) -> Replica | None:
        """The first of those next in line on which it is not doubtful: the router does not ask how fast they are."""
        for replica in pool.candidates(live.ask.tier)[:LOOKED_AT]:
            if replica is doubtful:
                continue
            forecast = self._forecaster.forecast(live, pool, replica, NOTHING_AHEAD, now)
            if not self.is_doubtful(live, pool, forecast):
                live.forecast = forecast
                return replica
        return None

    def _spill(self, live: RequestState, pool: Pool, now: float) -> Replica | None:
        """A replica of a pool that takes what this one sheds, if it can spare it."""
        ask = live.ask
        for spec in ask.policy.route(ask.model, ask.tier):
            if pool.spec.name not in spec.spill_from:
                continue
            other = self._fleet.pool(spec.name)
            fits = spec.takes(live.prompt_tokens, ask.batch)
            if other is None or not fits or other.room or other.headroom < SPILL_HEADROOM or not self.trusted(other):
                continue
            replica = other.pick(ask.tier, None, self._random.random())
            if replica is None:
                continue
            forecast = self._forecaster.forecast(live, other, replica, NOTHING_AHEAD, now)
            if forecast.breach < SPILL_BREACH:
                live.forecast = forecast
                return replica
        return None

    def _degrade(self, live: RequestState, pool: Pool, replica: Replica | None, forecast: Forecast, now: float) -> bool:
        """Hold the answer so short that it is complete in time, where the tier allows that and it helps."""
        bound_s = live.slo.e2e_bound_s
        if not live.ask.tier.caps.degrade or bound_s == math.inf or live.ask.choices > 1:
            return False  # of several choices nobody could tell whether one of them was cut
        asked = live.max_tokens
        live.max_tokens = min(asked, int(DEGRADE_MARGIN * (bound_s - forecast.ttft_s) / max(forecast.tpot_s, 1e-6)))
        if MIN_DEGRADED_TOKENS <= live.max_tokens < asked:
            shorter = self.forecast(live, pool, replica, now)
            if shorter.breach <= self.threshold(live.ask.tier):
                live.forecast, live.degraded = shorter, True
                return True
        live.max_tokens = asked
        return False


def _guards(before: tuple[PercentileGuard, ...], objectives: tuple[Objective, ...]) -> tuple[PercentileGuard, ...]:
    """One for each objective, with what was counted before where it is the same."""
    kept = {(guard.objective, guard.last): guard for guard in before}
    last = max(objectives, key=lambda objective: objective.quantile)
    return tuple(
        kept.get((objective, objective is last)) or PercentileGuard(objective, objective is last)
        for objective in objectives
    )


def waits(live: RequestState, pool: Pool) -> Decision:
    """The waiting room is bounded by count and by bytes of held bodies; a more urgent tier displaces a less urgent.

    Within a tier a tenant that has less than its share of it displaces one that has more. Tiers whose admission is not
    enforced always wait: their deadline is then the only thing that ends the wait.
    """
    ask, room, spec = live.ask, pool.room, pool.spec
    count, held = room.shared_with(ask.tier.priority)
    fits = count < spec.queue_limit and held + ask.body_bytes <= spec.queue_bytes
    if fits or ask.tier.admission.mode is not AdmissionMode.ENFORCE:
        return Decision(Verdict.WAIT)
    victim = room.last_below(ask.tier.priority)
    if victim is not None and held - victim.ask.body_bytes + ask.body_bytes <= spec.queue_bytes:
        return Decision(Verdict.WAIT, victims=(victim,))
    if room.holds(ask.tier):
        by_count, spare_bytes = count >= spec.queue_limit, spec.queue_bytes - held
        victims = room.band(ask.tier).yield_to(ask.tenant, ask.body_bytes, by_count, spare_bytes)
        if victims:
            return Decision(Verdict.WAIT, victims=victims)
    return Decision(Verdict.SHED)
