"""Whether a failed attempt is tried once more, elsewhere."""

from __future__ import annotations

from typing import Final

from gateway.core.extra import ExtraBudget
from gateway.core.fleet import Fleet
from gateway.core.ledger import Attempt, Live
from gateway.core.model import End, Random
from gateway.core.pools import Replica

# Only what provably never ran: it cannot have been the request that killed the replica, and no work was done for it.
RETRYABLE: Final = (End.UNREACHABLE, End.CONNECT_TIMEOUT, End.BUSY, End.CLOSING)

# A replica that says when to come back (`Retry-After`) is passed over until then, but for no longer than this.
MAX_REST_S: Final = 60.0


class Retries:
    """Finds who tries again. At most one further attempt is made for a request, within the budget."""

    def __init__(self, fleet: Fleet, extra: ExtraBudget, random: Random) -> None:
        self._fleet = fleet
        self._extra = extra
        self._random = random

    def elsewhere(self, live: Live, failed: Attempt) -> Replica | None:
        """The replica that tries after `failed`: another of its pool, or else of the request's route; None: nobody."""
        if live.attempts > 1:
            return None
        replica = failed.replica.pool.pick(live.ask.tier, failed.replica, self._random.random())
        if replica is None:
            replica = self._other_pool(live, failed)
        return replica if replica is not None and self._extra.retry(live.ask.tier) else None

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
