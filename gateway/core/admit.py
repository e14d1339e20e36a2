"""Whether a request is sent, waits, or is shed: the order of the decision, and the probability it is taken on.

    fits now -> waits, with a deadline -> spills into a longer pool -> gets a shorter answer -> is shed

A request is doubtful if the forecast says that it misses an objective of its tier with a probability above the tier's
threshold. What is not doubtful takes a slot, or waits for one. Of what is doubtful a small share is let in all the
same, because only what is let in shows whether the forecast was right. While the forecast is not to be trusted nothing
is doubtful, and the bounds of slots and waiting room alone decide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum, auto

from gateway.core.fleet import Fleet
from gateway.core.forecast import NOTHING_AHEAD, Ahead, Forecast, Forecaster
from gateway.core.ledger import Live
from gateway.core.model import Random, Why
from gateway.core.pools import PoolNow, Replica
from gateway.core.rules import AdmissionMode, Policy
from gateway.core.trust import Trust

PROBE_EVERY_S = 1.0
"""A tier of which nothing was let in for so long gets its next doubtful request in."""
MAX_HIGHER_SHARE = 0.95
SPILL_HEADROOM = 0.3
"""Share of its slots that a pool must have free to take what another one sheds,"""
SPILL_BREACH = 0.05
"""and how probable a miss may be there."""
CONTESTED_BREACH = 0.1
"""The same of one that others wait behind: they are fresher, and its slot is worth more to them."""
HOLD_SHARE = 0.2
"""Of the tightest TTFT objective, what may wait unread inside an engine,"""
MAX_TIGHTEST_S = 5.0
"""which is taken to be no looser than this."""
LEAST_WINDOW_TOKENS = 2048.0
"""What one step of an engine reads by default (vLLM: max_num_batched_tokens)."""
MOST_WINDOW_TOKENS = 16384.0
"""Also the window before it is known how fast an engine reads."""


class Verdict(Enum):
    """What to do with a newcomer."""

    SEND = auto()
    WAIT = auto()
    SHED = auto()


@dataclass(slots=True)
class Decision:
    """The verdict, with the replica it is sent to, whom it costs its place, or why it is shed."""

    verdict: Verdict
    replica: Replica | None = None
    victim: Live | None = None
    why: Why = Why.QUEUE_FULL


class Admission:
    """Decides about newcomers, and once more about those whose turn has come."""

    def __init__(self, policy: Policy, fleet: Fleet, forecaster: Forecaster, random: Random) -> None:
        self.hold_s = math.inf
        """Seconds of prompts that an engine may have before it."""
        self.configure(policy)
        self._fleet = fleet
        self._forecaster = forecaster
        self._random = random

    def arrives(self, live: Live, pool: PoolNow, now: float) -> Decision:
        """About a newcomer of `pool`. A tier that waits already is not overtaken by its own."""
        tier = live.ask.tier
        replica = None if pool.room.holds(tier) else pool.pick(tier, None, self._random.random())
        if tier.admission.mode is not AdmissionMode.OFF:
            ahead = NOTHING_AHEAD if replica is not None else self.ahead(live, pool, now)
            live.forecast = self._forecaster.forecast(live, pool, replica, ahead, now)
            if self._is_doubtful(live, pool, live.forecast) and not self._is_let_in(live, pool, now):
                other = self._spill(live, pool, now)
                return Decision(Verdict.SHED, why=Why.PREDICTED) if other is None else Decision(Verdict.SEND, other)
        if replica is not None:
            return Decision(Verdict.SEND, replica)
        return _wait(live, pool)

    def is_hopeless(self, live: Live, replica: Replica, now: float) -> bool:
        """Whether one whose turn has come would miss its objective even so."""
        if live.ask.tier.admission.mode is not AdmissionMode.ENFORCE or live.explored:
            return False
        pool = replica.pool
        if self._forecaster.trust(pool.spec.name) is not Trust.TRUSTED:
            return False
        forecast = self._forecaster.forecast(live, pool, replica, NOTHING_AHEAD, now)
        limit = self.threshold(live)
        return forecast.breach > (limit if len(pool.room) == 1 else min(limit, CONTESTED_BREACH))

    def prefill_limit(self, pool: PoolNow) -> float:
        """Prompt tokens that an engine of `pool` may have to read before it is sent more.

        What waits in an engine is served in order of arrival, whatever its tier; so no more is sent than it reads in a
        part of the tightest TTFT objective, and enough to keep it busy. Slots alone do not see to that where prompts
        are long and answers short.
        """
        token_s = self._forecaster.prefill_s_per_token(pool.spec.name)
        if token_s is None:
            return MOST_WINDOW_TOKENS
        return min(MOST_WINDOW_TOKENS, max(LEAST_WINDOW_TOKENS, self.hold_s / token_s))

    def configure(self, policy: Policy) -> None:
        """Take on a policy."""
        tightest_s = min((tier.slo.ttft_bound_s for tier in policy.tiers.values()), default=math.inf)
        self.hold_s = HOLD_SHARE * min(tightest_s, MAX_TIGHTEST_S)

    def threshold(self, live: Live) -> float:
        """The largest probability of a miss that is put up with."""
        return live.ask.tier.admission.max_breach_probability

    def ahead(self, live: Live, pool: PoolNow, now: float) -> Ahead:
        """What stands before a newcomer who has to wait."""
        ask, room = live.ask, pool.room
        band = room.band(ask.tier)
        own = band.ahead_of(ask.tenant)
        own_tokens = band.tokens * own // band.count if band.count else 0
        above, tokens, per_s = room.above(ask.tier, now)
        drain = pool.drain.per_s
        share = min(MAX_HIGHER_SHARE, per_s / drain) if drain else 0.0
        return Ahead(above + own, tokens + own_tokens, own, own_tokens, share, ask.tier.floor)

    def _is_doubtful(self, live: Live, pool: PoolNow, forecast: Forecast) -> bool:
        if forecast.breach <= self.threshold(live):
            return False
        return self._forecaster.trust(pool.spec.name) is Trust.TRUSTED

    def _is_let_in(self, live: Live, pool: PoolNow, now: float) -> bool:
        """Whether a doubtful one is admitted all the same."""
        admission = live.ask.tier.admission
        if admission.mode is AdmissionMode.SHADOW:
            live.would_shed = True
            return True
        idle_s = now - pool.room.band(live.ask.tier).admitted_at
        live.explored = idle_s >= PROBE_EVERY_S or self._random.random() < admission.exploration
        return live.explored

    def _spill(self, live: Live, pool: PoolNow, now: float) -> Replica | None:
        """A replica of a pool that takes what this one sheds, if it can spare it."""
        ask = live.ask
        for spec in ask.policy.route(ask.model, ask.tier):
            if pool.spec.name not in spec.spill_from:
                continue
            other = self._fleet.pool(spec.name)
            fits = spec.max_prompt_tokens is None or live.prompt_tokens <= spec.max_prompt_tokens * ask.batch
            if other is None or not fits or len(other.room) or other.headroom < SPILL_HEADROOM:
                continue
            if self._forecaster.trust(spec.name) is not Trust.TRUSTED:
                continue
            replica = other.pick(ask.tier, None, self._random.random())
            if replica is None:
                continue
            forecast = self._forecaster.forecast(live, other, replica, NOTHING_AHEAD, now)
            if forecast.breach < SPILL_BREACH:
                live.forecast = forecast
                return replica
        return None


def _wait(live: Live, pool: PoolNow) -> Decision:
    """The waiting room is bounded by count and by bytes of held bodies; a more urgent tier displaces a less urgent.

    Tiers whose admission is not enforced always wait: their deadline is then the only thing that ends the wait.
    """
    ask, room, spec = live.ask, pool.room, pool.spec
    fits = len(room) < spec.queue_limit and room.bytes + ask.body_bytes <= spec.queue_bytes
    if fits or ask.tier.admission.mode is not AdmissionMode.ENFORCE:
        return Decision(Verdict.WAIT)
    victim = room.last_below(ask.tier.priority)
    if victim is not None and room.bytes - victim.ask.body_bytes + ask.body_bytes <= spec.queue_bytes:
        return Decision(Verdict.WAIT, victim=victim)
    return Decision(Verdict.SHED)
