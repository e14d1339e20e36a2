"""Whether a failed attempt is tried once more, elsewhere."""

from __future__ import annotations

from typing import Final

from gateway.core.fleet.fleet import Fleet
from gateway.core.fleet.pool import Replica
from gateway.core.redundancy.retry_budget import RetryBudget
from gateway.core.request import AttemptOutcome, Random
from gateway.core.request_state import Attempt, RequestState

# What never ran, and what broke off before a byte of the answer. It may have been the request itself that killed its
# replica: then one more sees it, and no third (quarantine.py).
RETRYABLE: Final = (
    AttemptOutcome.UNREACHABLE,
    AttemptOutcome.CONNECT_TIMEOUT,
    AttemptOutcome.BUSY,
    AttemptOutcome.CLOSING,
    AttemptOutcome.RESET,
    AttemptOutcome.CANCELLED,
)

# Of something between us and the engine, which did not get the request to it.
BAD_GATEWAY: Final = 502

# Refusals that may be the replica's own: it has not the model, or is not meant to serve it. Another one is asked if it
# refuses less (answers.py).
OWN_REFUSALS: Final = (403, 404)

# A replica that refuses is passed over for a while, each time in a row for twice as long: what refuses at once looks
# idle, and would get everything. If it says when to come back (`Retry-After`), until then at least.
FIRST_REST_S: Final = 0.25
MAX_BACKOFF_S: Final = 8.0
MAX_REST_S: Final = 60.0


def rest_s(refusals: int, retry_after_s: float | None) -> float:
    """How long a replica is passed over that has refused so many requests (>= 1) in a row."""
    own_s = min(MAX_BACKOFF_S, FIRST_REST_S * 2.0 ** min(refusals - 1, 10))
    return max(own_s, min(retry_after_s or 0.0, MAX_REST_S))


def is_retried(end: AttemptOutcome, status: int | None) -> bool:
    """Whether an attempt that ended so, before its answer began, may be made once more."""
    return end in RETRYABLE or status == BAD_GATEWAY


class Retries:
    """Finds who tries again. At most one further attempt is made for a request, within the budget."""

    def __init__(self, fleet: Fleet, extra: RetryBudget, random: Random) -> None:
        self._fleet = fleet
        self._extra = extra
        self._random = random

    def elsewhere(self, live: RequestState, failed: Attempt, in_pool: bool = False) -> Replica | None:
        """The replica that tries after `failed`: another of its pool, or else of the request's route; None: nobody.

        `in_pool`: of its pool alone.
        """
        if live.attempts > 1:
            return None
        replica = failed.replica.pool.pick(live.ask.tier, failed.replica, self._random.random())
        if replica is None and not in_pool:
            replica = self._other_pool(live, failed)
        return replica if replica is not None and self._extra.retry(live.ask.tier, failed.sent_at is not None) else None

    def may_be_made(self, live: RequestState, replica: Replica, others: int) -> bool:
        """Whether a request that is at `replica` would be tried again in its pool, beside so many others."""
        tier = live.ask.tier
        return (
            live.attempts == 1
            and tier.retry.budget > 0.0
            and self._extra.left >= others + 1.0
            and bool(replica.pool.candidates(tier))
        )

    def _other_pool(self, live: RequestState, failed: Attempt) -> Replica | None:
        """A free replica of another pool of the route, in the policy's order, that takes the prompt."""
        ask = live.ask
        for spec in ask.policy.route(ask.model, ask.tier):
            pool = self._fleet.pool(spec.name)
            if pool is not None and pool is not failed.replica.pool and spec.takes(live.prompt_tokens, ask.batch):
                replica = pool.pick(ask.tier, failed.replica, self._random.random())
                if replica is not None:
                    return replica
        return None
