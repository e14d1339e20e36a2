"""Whether a request is sent a second time, to another replica, because its first token is late.

The clock starts when the first attempt has been sent, and rings at a quantile (p95 unless the tier says otherwise) of
the time to the first token, in the same pool, with prompts of about the same length (`core.redundancy.ttft_quantiles`).
Then it is asked whether a duplicate is worth it now; `HedgeDenied` says what may speak against it. The first token of
either attempt commits it; the other is closed at once. At most one duplicate is made, none of what was tried again
already, and none of answers whose first token cannot be seen (`Request.visible`).

A share of the requests that could be duplicated, drawn by chance, never is. An attempt and its duplicate tend to be
slow together, so that those alone show what the tail would be without.

Duplicates are paid for out of two buckets per tier, a share of its requests and the same share of its prompt tokens,
and out of the budget that they share with retries (`core.redundancy.retry_budget`).
"""

from __future__ import annotations

import math
from collections import deque
from enum import StrEnum
from typing import Final

from gateway.core.admission.admission import Admission
from gateway.core.fleet.pool import Pool, Replica
from gateway.core.fleet.quarantine import Quarantine
from gateway.core.learner import Learner
from gateway.core.policy import Policy, Tier
from gateway.core.redundancy.retry_budget import RetryBudget
from gateway.core.redundancy.ttft_quantiles import TtftQuantiles, bucket_of
from gateway.core.request import AttemptResult, HedgeResult, Random
from gateway.core.request_state import Attempt, RequestState
from gateway.core.snapshot import HedgePoolView, HedgeTierView
from gateway.core.timers import Timers

FLOOR_FACTOR: Final = 1.5
"""No duplicate before this multiple of the forecast: what is expected to take long is not late."""
BURST: Final = 20.0
"""Duplicates that a tier may save up."""
BUSY: Final = 0.8
"""Share of a pool's slots, or of a replica's KV cache, in use beyond which duplicates would take from others."""
MAX_BREACH: Final = 0.2
"""A duplicate that itself is likelier than this to miss the objective is not worth sending."""
LAST_HEDGES: Final = 200
MIN_WON: Final = 28
REST_S: Final = 60.0
"""A pool of whose last 200 duplicates fewer than 28 won gets none for a minute, then is tried anew. A fifth should win,
and fewer than 28 of 200 is no bad luck then (two standard deviations)."""


class HedgeDenied(StrEnum):
    """Why a request whose clock rang got no duplicate."""

    BUDGET = "budget"
    """The tier's share of requests is used up."""
    TOKENS = "tokens"
    """The tier's share of prompt tokens is used up."""
    SHARED = "shared"
    """Half of the budget of retries and duplicates together is used up: what is left is for retries."""
    QUEUE = "queue"
    """Others wait for a slot of the pool."""
    BUSY = "busy"
    """More than .8 of the pool's slots are in use."""
    KV = "kv"
    """More than .8 of the KV cache of the replica that would get it is in use."""
    NO_REPLICA = "no-replica"
    """No other replica has a slot free."""
    BREACH = "breach"
    """The duplicate itself would miss the objective, with a probability above .2."""
    LOSING = "losing"
    """Clearly fewer than a fifth of the last 200 duplicates won."""
    SUSPECT = "suspect"
    """A replica broke off with the same body before."""


class TierHedges:
    """Budget of one tier for duplicates, and their outcomes."""

    def __init__(self) -> None:
        self.requests = 0.0
        """Duplicates that it may make."""
        self.tokens = 0.0
        """Prompt tokens that it may have read twice."""
        self.mean_tokens = 0.0
        self.held = 0
        """Requests that were drawn never to be hedged."""
        self.outcomes = dict.fromkeys(HedgeResult, 0)
        self.denied = dict.fromkeys(HedgeDenied, 0)
        self.wasted_prompt_tokens = 0
        self.wasted_output_tokens = 0

    def deposit(self, share: float, prompt_tokens: int) -> None:
        """A request of the tier was sent for the first time: `share` (0-1) of it is earned."""
        self.requests = min(BURST, self.requests + share)
        self.mean_tokens = prompt_tokens if not self.mean_tokens else 0.99 * self.mean_tokens + 0.01 * prompt_tokens
        self.tokens = min(BURST * self.mean_tokens, self.tokens + share * prompt_tokens)

    def denies(self) -> HedgeDenied | None:
        """Whether it cannot pay for one more duplicate.

        Tokens may be overdrawn: a long prompt is as late as a short one, and what it took is earned before the next.
        """
        if self.requests < 1.0:
            return HedgeDenied.BUDGET
        return HedgeDenied.TOKENS if self.tokens <= 0.0 else None

    def pay(self, prompt_tokens: int) -> None:
        """A duplicate is made."""
        self.requests -= 1.0
        self.tokens -= prompt_tokens

    def view(self, tier: str) -> HedgeTierView:
        """A copy for people."""
        return HedgeTierView(
            tier=tier,
            requests_left=self.requests,
            tokens_left=self.tokens,
            held=self.held,
            outcomes=tuple((outcome.value, n) for outcome, n in self.outcomes.items()),
            denied=tuple((why.value, n) for why, n in self.denied.items()),
            wasted_prompt_tokens=self.wasted_prompt_tokens,
            wasted_output_tokens=self.wasted_output_tokens,
        )


class PoolHedges:
    """What is known of one pool: how long its first tokens take, and how its last duplicates fared."""

    def __init__(self) -> None:
        self.first_tokens = TtftQuantiles()
        self.won: deque[bool] = deque(maxlen=LAST_HEDGES)
        self.rests_until = -math.inf

    def rests(self, now: float) -> bool:
        """Whether duplicates lose too often here to be worth it."""
        if len(self.won) == LAST_HEDGES and sum(self.won) < MIN_WON:
            self.won.clear()
            self.rests_until = now + REST_S
        return now < self.rests_until

    def view(self, pool: str, now: float) -> HedgePoolView:
        """A copy for people."""
        won = sum(self.won) / len(self.won) if self.won else None
        return HedgePoolView(pool, self.first_tokens.views(), won, self.rests_until > now)


class Hedges(Learner):
    """The clocks of all requests, what they are set by, and what speaks against a duplicate when one rings."""

    def __init__(
        self, policy: Policy, admission: Admission, quarantine: Quarantine, extra: RetryBudget, random: Random
    ) -> None:
        self._admission = admission
        self._quarantine = quarantine
        self._extra = extra
        self._random = random
        self._pools: dict[str, PoolHedges] = {}
        self._tiers: dict[str, TierHedges] = {}
        self.timers = Timers()
        self.on = False
        """Whether any tier hedges; as long as none does, nothing is kept."""
        self.configure(policy)

    def configure(self, policy: Policy) -> None:
        """Take on a policy. Requests under way keep the tier that they came with; of what is gone nothing is kept."""
        self._pools = {name: pool for name, pool in self._pools.items() if name in policy.pools}
        self._tiers = {name: tier for name, tier in self._tiers.items() if name in policy.tiers}
        self.on = len(self.timers) > 0 or any(tier.hedge is not None for tier in policy.tiers.values())

    # ---- what happens to requests and attempts, in this order

    def opened(self, attempt: Attempt, now: float) -> None:
        """The first attempt of a request earns its tier a share of a duplicate."""
        live = attempt.live
        hedge = live.ask.tier.hedge
        if hedge is not None and attempt.first:
            self.of_tier(live.ask.tier).deposit(hedge.budget, live.prompt_tokens)

    def sent(self, attempt: Attempt, now: float) -> None:
        """An attempt whose tokens can be seen is with its replica."""
        live = attempt.live
        hedge = live.ask.tier.hedge
        if hedge is None or not attempt.first or live.ask.choices > 1:
            return
        if self._random.random() < hedge.holdout:
            self.of_tier(live.ask.tier).held += 1
            return
        pool = self.of_pool(attempt.replica.pool)
        late_s = pool.first_tokens.quantile(bucket_of(attempt.prompt_tokens), hedge.quantile, now)
        if late_s is not None:
            expected_s = 0.0 if attempt.facts is None else attempt.facts.ttft_s
            self.timers.set(live.ask.id, now + max(late_s, FLOOR_FACTOR * expected_s))

    def first_token(self, attempt: Attempt, now: float) -> None:
        """The first token is there: no duplicate is needed."""
        if not self.on or not attempt.live.visible:
            return
        self.timers.clear(attempt.live.ask.id)
        self._learn(attempt, False, now)

    def committed(self, winner: Attempt) -> None:
        """The first token of a hedged request is there."""
        winner.live.hedged = HedgeResult.WON if winner.hedge else HedgeResult.LOST
        self.of_pool(winner.replica.pool).won.append(winner.hedge)

    def closed(self, attempt: Attempt, finish: AttemptResult, now: float) -> None:
        """An attempt is over, whatever ended it: one without a token would have taken longer than it did."""
        live = attempt.live
        if not self.on or not live.visible:
            return
        if attempt.first_at is None:
            self._learn(attempt, True, now)
        if not live.open:
            self.timers.clear(live.ask.id)
        if live.hedged is None or attempt is live.committed or (live.committed is None and not attempt.hedge):
            return
        tier = self.of_tier(live.ask.tier)
        tier.wasted_output_tokens += attempt.tokens
        if attempt.sent_at is not None:
            tier.wasted_prompt_tokens += attempt.prompt_tokens

    def ended(self, live: RequestState) -> None:
        """A request is over."""
        if live.hedged is not None:
            self.of_tier(live.ask.tier).outcomes[live.hedged] += 1

    def _learn(self, attempt: Attempt, censored: bool, now: float) -> None:
        """Of first attempts alone: others are made when things are slow, so that their times are not like any."""
        if attempt.first and attempt.sent_at is not None:
            first_tokens = self.of_pool(attempt.replica.pool).first_tokens
            first_tokens.add(bucket_of(attempt.prompt_tokens), now - attempt.sent_at, censored, now)

    # ---- when a clock rings

    def next_at(self) -> float:
        """When a clock rings next; inf: none is set."""
        return self.timers.next_at()

    def due(self, now: float) -> list[int]:
        """The requests whose clocks have rung."""
        return self.timers.due(now)

    def backup(self, live: RequestState, now: float) -> Replica | None:
        """The first token of a request is late: who gets the duplicate, which is paid for; None: there will be none."""
        if live.outcome is not None or live.committed is not None or live.attempts > 1 or live.open[0].cancelled:
            return None
        tier = self.of_tier(live.ask.tier)
        found = self._find(live, tier, live.open[0].replica, now)
        if isinstance(found, HedgeDenied):
            tier.denied[found] += 1
            return None
        tier.pay(live.prompt_tokens)
        live.hedged = HedgeResult.FAILED
        return found

    def _find(self, live: RequestState, tier: TierHedges, first: Replica, now: float) -> Replica | HedgeDenied:
        """The replica for a duplicate, or what speaks against it: what costs least to find out is asked first."""
        pool, ask = first.pool, live.ask
        if self.of_pool(pool).rests(now):
            return HedgeDenied.LOSING
        if pool.room:
            return HedgeDenied.QUEUE
        if pool.headroom < 1.0 - BUSY:
            return HedgeDenied.BUSY
        if live.body_hash is not None and self._quarantine.knows(live.body_hash, now):
            return HedgeDenied.SUSPECT
        denied = tier.denies()
        if denied is not None:
            return denied
        replica = pool.pick(ask.tier, first, self._random.random())
        if replica is None:
            return HedgeDenied.NO_REPLICA
        capacity = replica.kv.capacity_tokens
        if capacity is not None and replica.held_tokens > BUSY * capacity:
            return HedgeDenied.KV
        if self._admission.trusted(pool) and self._admission.forecast(live, pool, replica, now).breach > MAX_BREACH:
            return HedgeDenied.BREACH
        return replica if self._extra.hedge() else HedgeDenied.SHARED

    # ---- reading

    def pool_views(self, now: float) -> tuple[HedgePoolView, ...]:
        """State of every pool, for people."""
        return tuple(pool.view(name, now) for name, pool in self._pools.items())

    def tier_views(self) -> tuple[HedgeTierView, ...]:
        """Spending and gain of every tier, for people."""
        return tuple(tier.view(name) for name, tier in self._tiers.items())

    def of_pool(self, pool: Pool) -> PoolHedges:
        """How long first tokens of this pool take, and how its duplicates fared."""
        found = self._pools.get(pool.spec.name)
        if found is None:
            found = self._pools[pool.spec.name] = PoolHedges()
        return found

    def of_tier(self, tier: Tier) -> TierHedges:
        """Budget of this tier for duplicates."""
        found = self._tiers.get(tier.name)
        if found is None:
            found = self._tiers[tier.name] = TierHedges()
        return found
