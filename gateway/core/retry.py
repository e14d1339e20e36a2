"""Whether a failed attempt is tried once more, elsewhere."""

from __future__ import annotations

from typing import Final

from gateway.core.fleet import Fleet
from gateway.core.ledger import Attempt, Live
from gateway.core.model import End, Random
from gateway.core.pools import Replica

# Only what provably never ran: it cannot have been the request that killed the replica, and no work was done for it.
RETRYABLE: Final = (End.UNREACHABLE, End.CONNECT_TIMEOUT, End.BUSY, End.CLOSING)

# A replica that says when to come back (`Retry-After`) is passed over until then, but for no longer than this.
MAX_REST_S: Final = 60.0

BURST: Final = 10.0


class RetryBudget:
    """Retries as a share of requests: each request deposits the tier's share, each retry costs one."""

    __slots__ = ("_tokens",)

    def __init__(self) -> None:
        self._tokens = BURST

    def deposit(self, share: float) -> None:
        """A request was dispatched for the first time."""
        self._tokens = min(BURST, self._tokens + share)

    def withdraw(self, share: float) -> bool:
        """Take what one retry costs; False if there is not enough, or `share` says that there shall be none."""
        if share <= 0.0 or self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True


class Retries:
    """Finds who tries again. At most one further attempt is made for a request, within the budget of its tier."""

    def __init__(self, fleet: Fleet, random: Random) -> None:
        self._fleet = fleet
        self._random = random
        self._budget = RetryBudget()

    def deposit(self, share: float) -> None:
        """A request was dispatched for the first time; `share` (0-1) of one retry is earned by it."""
        self._budget.deposit(share)

    def elsewhere(self, live: Live, failed: Attempt) -> Replica | None:
        """The replica that tries after `failed`: another of its pool, or else of the request's route; None: nobody."""
        if live.attempts > 1:
            return None
        replica = failed.replica.pool.pick(live.ask.tier, failed.replica, self._random.random())
        if replica is None:
            replica = self._other_pool(live, failed)
        if replica is None or not self._budget.withdraw(live.ask.tier.retry.budget):
            return None
        return replica

    def _other_pool(self, live: Live, failed: Attempt) -> Replica | None:
        """A free replica of another pool of the route, in the policy's order, that takes the prompt."""
        ask = live.ask
        for spec in ask.policy.route(ask.model, ask.tier):
            pool = self._fleet.pool(spec.name)
            fits = spec.max_prompt_tokens is None or live.prompt_tokens <= spec.max_prompt_tokens * ask.batch
            if pool is not None and pool is not failed.replica.pool and fits:
                replica = pool.pick(ask.tier, None, self._random.random())
                if replica is not None:
                    return replica
        return None
