"""Retries: whether a failed attempt is tried once more, at another replica."""

from __future__ import annotations

from typing import Final

from gateway.core.fleet.fleet import Fleet
from gateway.core.fleet.pool import Replica
from gateway.core.redundancy.retry_budget import RetryBudget
from gateway.core.request import AttemptOutcome, Random
from gateway.core.request_state import Attempt, RequestState

# Attempts that never ran, or broke off before a byte of the answer. The request itself may have killed its replica.
# Then it reaches one more replica, but no third (fleet/quarantine.py).
RETRYABLE: Final = (
    AttemptOutcome.UNREACHABLE,
    AttemptOutcome.CONNECT_TIMEOUT,
    AttemptOutcome.BUSY,
    AttemptOutcome.CLOSING,
    AttemptOutcome.RESET,
    AttemptOutcome.CANCELLED,
)

# From an intermediary that could not reach the engine.
BAD_GATEWAY: Final = 502

# Refusals that may be the replica's fault: it lacks the model, or may not serve it. Another replica is tried if it
# refuses less often (fleet/odd_answers.py).
OWN_REFUSALS: Final = (403, 404)

# Backoff of a replica that refuses, doubled with each refusal in a row. A replica that refuses at once looks idle, and
# would get every request. It lasts at least until the replica's `Retry-After`.
FIRST_BACKOFF_S: Final = 0.25
MAX_BACKOFF_S: Final = 8.0
MAX_TOLD_BACKOFF_S: Final = 60.0


def rest_s(refusals: int, retry_after_s: float | None) -> float:
    """Seconds of backoff for a replica that has refused this many requests (>= 1) in a row."""
    own_s = min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** min(refusals - 1, 10))
    return max(own_s, min(retry_after_s or 0.0, MAX_TOLD_BACKOFF_S))


def is_retried(end: AttemptOutcome, status: int | None) -> bool:
    """Whether an attempt with this outcome, before its answer began, may be retried."""
    return end in RETRYABLE or status == BAD_GATEWAY


class Retries:
    """Finds the replica for a retry. A request is retried at most once, within the budget."""

    def __init__(self, fleet: Fleet, extra: RetryBudget, random: Random) -> None:
        self._fleet = fleet
        self._extra = extra
        self._random = random

    def elsewhere(self, live: RequestState, failed: Attempt, in_pool: bool = False) -> Replica | None:
        """The replica that retries a request after `failed`: another of its pool, or of the request's route; None
        without one.

        `in_pool`: of its pool alone.
        """
        if live.attempts > 1:
            return None
        replica = failed.replica.pool.pick(live.request, failed.replica, self._random.random())
        if replica is None and not in_pool and not failed.replica.pool.is_bound(live.request):
            replica = self._other_pool(live, failed)
        return (
            replica
            if replica is not None and self._extra.retry(live.request.tier, failed.sent_at is not None)
            else None
        )

    def may_be_made(self, live: RequestState, replica: Replica, others: int) -> bool:
        """Whether a request at `replica` could be retried in its pool, in addition to the retries of `others`."""
        tier = live.request.tier
        return (
            live.attempts == 1
            and not replica.pool.is_bound(live.request)
            and tier.retry.budget > 0.0
            and self._extra.left >= others + 1.0
            and bool(replica.pool.candidates(tier))
        )

    def _other_pool(self, live: RequestState, failed: Attempt) -> Replica | None:
        """A free replica of another pool of the route, in the policy's order, that takes the prompt."""
        request = live.request
        for spec in request.policy.route(request.model, request.tier):
            pool = self._fleet.pool(spec.name)
            if pool is not None and pool is not failed.replica.pool and spec.takes(live.prompt_tokens, request.batch):
                replica = pool.pick(request, failed.replica, self._random.random())
                if replica is not None:
                    return replica
        return None
