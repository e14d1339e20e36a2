"""Hedging: a request whose first token is late is sent a second time, to another replica.

The hedge timer starts when the first attempt has been sent. It fires at a quantile (p95 unless the tier says otherwise)
of the TTFT of prompts of similar length in the same pool (`core.redundancy.ttft_quantiles`). When it fires, a duplicate
is sent, unless a reason of `HedgeDenied` applies. The attempt with the first token is committed, and the other is
cancelled. A request gets at most one duplicate. Retried requests get no duplicate, nor do requests without a visible
first token (`Request.visible`).

A random share of the requests that could be hedged is never hedged: the holdout. An attempt and its duplicate tend to
be slow together, so only the holdout shows how long the tail would be without hedging.

Two budgets per tier limit duplicates: a share of the tier's requests, and the same share of its prompt tokens. A third
budget is shared with retries (`core.redundancy.retry_budget`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from gateway.core.admission.outlook import Outlook
from gateway.core.deadlines import Timers
from gateway.core.fleet.pool import Pool, Replica
from gateway.core.fleet.slot import UNREAD
from gateway.core.forecast.learner import Learner
from gateway.core.policy import Policy, Tier
from gateway.core.redundancy.request_quarantine import Quarantine
from gateway.core.redundancy.retry_budget import RetryBudget
from gateway.core.redundancy.ttft_quantiles import TtftQuantiles, bucket_of
from gateway.core.request import Random
from gateway.core.request_state import Attempt, RequestState, offer_of
from gateway.core.results import AttemptResult, HedgeResult
from gateway.core.snapshot import HedgePoolView, HedgeTierView

FLOOR_FACTOR: Final = 1.5
"""No duplicate is sent before this multiple of the expected TTFT: a long prompt is not late merely because it is long.

The expected TTFT is that of the pool's typical replica. With the learned speed of a slow replica, its duplicates would
come later.
"""
BURST: Final = 20.0
"""Largest number of duplicates that a tier can save up."""
BUSY: Final = 0.8
"""No duplicate is sent if more than this share of the pool's slots, or of the replica's KV cache, is in use: it would
delay other requests.
"""
MAX_BREACH: Final = 0.2
"""Largest P(breach) at which a duplicate is sent."""
LAST_HEDGES: Final = 200
MIN_WON: Final = 28
SUSPENSION_S: Final = 60.0
"""A pool gets no duplicates for this long if fewer than 28 of its last 200 duplicates won. At least a fifth should win,
and 28 of 200 is two standard deviations below a fifth.
"""


class HedgeDenied(StrEnum):
    """Why a request whose hedge timer fired got no duplicate."""

    BUDGET = "budget"
    """The tier's share of requests is used up."""
    TOKENS = "tokens"
    """The tier's share of prompt tokens is used up."""
    SHARED = "shared"
    """The half of the shared budget that duplicates may use is used up. The other half is for retries."""
    QUEUE = "queue"
    """The queue of the pool is not empty."""
    BUSY = "busy"
    """More than .8 of the pool's slots are in use."""
    KV = "kv"
    """More than .8 of the KV cache is in use at the replica that would get the duplicate."""
    NO_REPLICA = "no-replica"
    """No other replica has a slot free."""
    BREACH = "breach"
    """The duplicate would miss an objective with a probability above .2."""
    LOSING = "losing"
    """Clearly fewer than a fifth of the last 200 duplicates won."""
    SUSPECT = "suspect"
    """The request is a suspect of quarantine: a replica's connection broke while it had a request with the same
    body.
    """


class TierHedges:
    """Budget of one tier for duplicates, and their outcomes."""

    def __init__(self) -> None:
        self.requests = 0.0
        """Number of duplicates that the tier may send."""
        self.tokens = 0.0
        """Prompt tokens that engines may still read for the tier's duplicates; cached tokens do not count."""
        self.mean_tokens = 0.0
        self.held = 0
        """Number of requests in the holdout."""
        self.outcomes = dict.fromkeys(HedgeResult, 0)
        self.denied = dict.fromkeys(HedgeDenied, 0)
        self.wasted_prompt_tokens = 0
        self.wasted_output_tokens = 0

    def deposit(self, share: float, unread_tokens: int) -> None:
        """Count a request of the tier that was sent for the first time. It adds `share` (0-1) of a duplicate to the
        budget.
        """
        self.requests = min(BURST, self.requests + share)
        self.mean_tokens = unread_tokens if not self.mean_tokens else 0.99 * self.mean_tokens + 0.01 * unread_tokens
        self.tokens = min(BURST * self.mean_tokens, self.tokens + share * unread_tokens)

    def denies(self) -> HedgeDenied | None:
        """Why the tier's budget does not allow one more duplicate; None if it does.

        Tokens may be overdrawn, so that a long prompt can be hedged. After that, the next duplicate must wait until the
        tokens are earned.
        """
        if self.requests < 1.0:
            return HedgeDenied.BUDGET
        return HedgeDenied.TOKENS if self.tokens <= 0.0 else None

    def pay(self, unread_tokens: int) -> None:
        """Take a duplicate out of the tier's budget."""
        self.requests -= 1.0
        self.tokens -= unread_tokens

    def view(self, tier: str) -> HedgeTierView:
        """A copy for the admin pages and metrics."""
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
    """TTFT quantiles of one pool, and the results of its last duplicates."""

    def __init__(self) -> None:
        self.first_tokens = TtftQuantiles()
        self.won: deque[bool] = deque(maxlen=LAST_HEDGES)
        self.suspended_until = -math.inf

    def is_suspended(self, now: float) -> bool:
        """Whether hedging is suspended in this pool, because too few duplicates won."""
        if len(self.won) == LAST_HEDGES and sum(self.won) < MIN_WON:
            self.won.clear()
            self.suspended_until = now + SUSPENSION_S
        return now < self.suspended_until

    def view(self, pool: str, now: float, quantiles: Iterable[float]) -> HedgePoolView:
        """A copy for the admin pages and metrics."""
        won = sum(self.won) / len(self.won) if self.won else None
        return HedgePoolView(pool, self.first_tokens.views(quantiles), won, self.suspended_until > now)


class Hedges(Learner):
    """The hedge timers of all requests, the quantiles to which they are set, and the budgets."""

    def __init__(
        self, policy: Policy, outlook: Outlook, quarantine: Quarantine, retry_budget: RetryBudget, random: Random
    ) -> None:
        self._outlook = outlook
        self._quarantine = quarantine
        self._retry_budget = retry_budget
        self._random = random
        self._pools: dict[str, PoolHedges] = {}
        self._tiers: dict[str, TierHedges] = {}
        self.timers = Timers()
        self.on = False
        """Whether any tier hedges. If none does, no statistics are kept."""
        self.configure(policy)

    def configure(self, policy: Policy) -> None:
        """Apply a policy. Requests under way keep their tier. Removed pools and tiers are forgotten."""
        self._pools = {name: pool for name, pool in self._pools.items() if name in policy.pools}
        self._tiers = {name: tier for name, tier in self._tiers.items() if name in policy.tiers}
        self._quantiles = sorted({tier.hedge.quantile for tier in policy.tiers.values() if tier.hedge is not None})
        self.on = len(self.timers) > 0 or bool(self._quantiles)

    # ---- events of requests and attempts, in this order

    def opened(self, attempt: Attempt, now: float) -> None:
        """Add to the tier's budget for the first attempt of a request."""
        state = attempt.state
        hedge = state.request.tier.hedge
        if hedge is not None and attempt.first:
            self.of_tier(state.request.tier).deposit(hedge.budget, attempt.slot.unread_tokens)

    def sent(self, attempt: Attempt, now: float) -> None:
        """Set the hedge timer of an attempt that was sent. Only first attempts with visible tokens outside the holdout
        get a timer.
        """
        state = attempt.state
        hedge = state.request.tier.hedge
        if hedge is None or not attempt.first or state.request.choices > 1:
            return
        if self._random.random() < hedge.holdout:
            self.of_tier(state.request.tier).held += 1
            return
        pool = self.of_pool(attempt.replica.pool)
        late_s = pool.first_tokens.quantile(bucket_of(attempt.slot.unread_tokens), hedge.quantile, now)
        if late_s is not None:
            expected_s = 0.0 if attempt.prediction is None else attempt.prediction.expected_s
            self.timers.set(state.request.id, now + max(late_s, FLOOR_FACTOR * expected_s))

    def first_token(self, attempt: Attempt, now: float) -> None:
        """Learn the TTFT, and clear the hedge timer, because the first token has come."""
        if not self.on or not attempt.state.visible:
            return
        self.timers.clear(attempt.state.request.id)
        self._learn(attempt, False, now)

    def committed(self, winner: Attempt) -> None:
        """Record which attempt of a hedged request won."""
        winner.state.hedged = HedgeResult.WON if winner.hedge else HedgeResult.LOST
        self.of_pool(winner.replica.pool).won.append(winner.hedge)

    def closed(self, attempt: Attempt, result: AttemptResult, now: float) -> None:
        """Learn from an attempt that is over. Without a first token, its TTFT is censored: it would have been longer
        than the time so far.
        """
        state = attempt.state
        if not self.on or not state.visible:
            return
        if attempt.first_at is None and result.end not in UNREAD:
            self._learn(attempt, True, now)
        if not state.open:
            self.timers.clear(state.request.id)
        if state.hedged is None or attempt is state.committed or (state.committed is None and not attempt.hedge):
            return
        tier = self.of_tier(state.request.tier)
        tier.wasted_output_tokens += attempt.tokens
        if attempt.sent_at is not None:
            tier.wasted_prompt_tokens += attempt.slot.unread_tokens

    def ended(self, state: RequestState) -> None:
        """Count the result of the hedge when a request is over."""
        if state.hedged is not None:
            self.of_tier(state.request.tier).outcomes[state.hedged] += 1

    def _learn(self, attempt: Attempt, censored: bool, now: float) -> None:
        """Learn the TTFT of a first attempt.

        Second attempts do not count. They are made when replicas are slow, so they are not typical. Nor does an attempt
        whose first token was awaited while the gateway itself stood still.
        """
        prediction = attempt.slot.prediction
        is_ours = prediction is not None and not prediction.counts
        if attempt.first and attempt.sent_at is not None and not is_ours:
            first_tokens = self.of_pool(attempt.replica.pool).first_tokens
            first_tokens.add(bucket_of(attempt.slot.unread_tokens), now - attempt.sent_at, censored, now)

    # ---- when a timer fires

    def replica_for_duplicate(self, state: RequestState, now: float) -> Replica | None:
        """The replica for the duplicate of a late request; None if it gets none. The duplicate is taken out of the
        budgets.
        """
        if state.outcome is not None or state.committed is not None or state.attempts > 1 or state.open[0].cancelled:
            return None
        tier = self.of_tier(state.request.tier)
        found = self._find(state, tier, state.open[0].replica, now)
        if isinstance(found, HedgeDenied):
            tier.denied[found] += 1
            return None
        tier.pay(found.unread_of(state.prompt_tokens, state.request))
        state.hedged = HedgeResult.FAILED
        return found

    def _find(self, state: RequestState, tier: TierHedges, first: Replica, now: float) -> Replica | HedgeDenied:
        """The replica for a duplicate, or the reason against it. The cheapest checks come first."""
        pool = first.pool
        if self.of_pool(pool).is_suspended(now):
            return HedgeDenied.LOSING
        if pool.queue:
            return HedgeDenied.QUEUE
        if pool.headroom < 1.0 - BUSY:
            return HedgeDenied.BUSY
        if state.body_hash is not None and self._quarantine.knows(state.body_hash, now):
            return HedgeDenied.SUSPECT
        denied = tier.denies()
        if denied is not None:
            return denied
        replica = pool.pick(state.request, state.needs_tokens, self._random.random(), first)
        if replica is None:
            return HedgeDenied.NO_REPLICA
        capacity = replica.kv.capacity_tokens
        if capacity is not None and replica.total_held_tokens > BUSY * capacity:
            return HedgeDenied.KV
        if self._outlook.trusted(pool):
            forecast = self._outlook.forecast(offer_of(state).capped(state.max_tokens), replica, now)
            if forecast.breach > MAX_BREACH:
                return HedgeDenied.BREACH
        return replica if self._retry_budget.hedge() else HedgeDenied.SHARED

    # ---- reading

    def pool_views(self, now: float) -> tuple[HedgePoolView, ...]:
        """State of hedging in every pool, for the admin pages and metrics."""
        return tuple(pool.view(name, now, self._quantiles) for name, pool in self._pools.items())

    def tier_views(self) -> tuple[HedgeTierView, ...]:
        """Cost and gain of every tier's duplicates, for the admin pages and metrics."""
        return tuple(tier.view(name) for name, tier in self._tiers.items())

    def of_pool(self, pool: Pool) -> PoolHedges:
        """The hedging state of a pool; created if missing."""
        found = self._pools.get(pool.spec.name)
        if found is None:
            found = self._pools[pool.spec.name] = PoolHedges()
        return found

    def of_tier(self, tier: Tier) -> TierHedges:
        """The hedging state of a tier; created if missing."""
        found = self._tiers.get(tier.name)
        if found is None:
            found = self._tiers[tier.name] = TierHedges()
        return found
