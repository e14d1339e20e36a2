"""Retries: decides whether a request whose attempt failed is sent once more, to another replica."""

from __future__ import annotations

from typing import Final

from gateway.core.fleet.fleet import Fleet
from gateway.core.fleet.pool import Replica
from gateway.core.redundancy.retry_budget import RetryBudget
from gateway.core.request import Random
from gateway.core.request_state import Attempt, RequestState
from gateway.core.results import AttemptOutcome, Reason
from gateway.core.snapshot import ReplicaState

# Outcomes of attempts that never ran, or that broke off before the first byte of the answer. If the request itself
# kills replicas, a retry may kill a second one, but quarantine prevents a third (redundancy/request_quarantine.py).
RETRYABLE: Final = (
    AttemptOutcome.UNREACHABLE,
    AttemptOutcome.CONNECT_TIMEOUT,
    AttemptOutcome.BUSY,
    AttemptOutcome.CLOSING,
    AttemptOutcome.GATEWAY_LATE,
    AttemptOutcome.IDLE_CLOSED,
    AttemptOutcome.RESET,
    AttemptOutcome.CANCELLED,
)

# Outcomes that say nothing about the replica, so it is asked again.
NOT_ITS_FAULT: Final = (AttemptOutcome.GATEWAY_LATE, AttemptOutcome.IDLE_CLOSED)

# Reason of the error if no further attempt is made, by the outcome of the last attempt.
FAILURES: Final[dict[AttemptOutcome, Reason]] = {
    AttemptOutcome.BUSY: Reason.UPSTREAM_BUSY,
    AttemptOutcome.CLOSING: Reason.UPSTREAM_ERROR,
    AttemptOutcome.FAILED: Reason.UPSTREAM_ERROR,
    AttemptOutcome.UNREACHABLE: Reason.UPSTREAM_UNREACHABLE,
    AttemptOutcome.CONNECT_TIMEOUT: Reason.CONNECT_TIMEOUT,
    AttemptOutcome.GATEWAY_LATE: Reason.CONNECT_TIMEOUT,
    AttemptOutcome.IDLE_CLOSED: Reason.UPSTREAM_ERROR,
    AttemptOutcome.RESET: Reason.UPSTREAM_ERROR,
    AttemptOutcome.TRUNCATED: Reason.UPSTREAM_TRUNCATED,
    AttemptOutcome.UNREADABLE: Reason.UPSTREAM_UNREADABLE,
    AttemptOutcome.CANCELLED: Reason.UPSTREAM_UNREACHABLE,  # we cancelled it, because its replica is down
}

# An intermediary that could not reach the engine sends this status, so it is retried.
BAD_GATEWAY: Final = 502

# Statuses of refusals that may be the replica's fault, e.g. because it lacks the model. The request is retried if the
# other replicas refuse less often (fleet/judging/judge.py).
OWN_REFUSALS: Final = (403, 404)

# Backoff of a replica that answers 429 or 503, doubled with each such answer in a row. Without a backoff, a replica
# that refuses at once would look idle and get every request. The backoff lasts at least as long as the replica's
# `Retry-After`.
FIRST_BACKOFF_S: Final = 0.25
MAX_BACKOFF_S: Final = 8.0
MAX_TOLD_BACKOFF_S: Final = 60.0


def rest_s(refusals: int, retry_after_s: float | None) -> float:
    """Seconds of backoff for a replica after `refusals` (>= 1) answers of 429 or 503 in a row."""
    own_s = min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** min(refusals - 1, 10))
    return max(own_s, min(retry_after_s or 0.0, MAX_TOLD_BACKOFF_S))


def is_retried(end: AttemptOutcome, status: int | None) -> bool:
    """Whether an attempt may be retried if it ended with this outcome, or this HTTP status, before its answer began."""
    return end in RETRYABLE or status == BAD_GATEWAY


class Retries:
    """Finds the replica for a retry. A request is retried at most once, within the budget."""

    def __init__(self, fleet: Fleet, budget: RetryBudget, random: Random) -> None:
        self._fleet = fleet
        self._budget = budget
        self._random = random

    def elsewhere(self, state: RequestState, failed: Attempt, in_pool: bool = False) -> Replica | None:
        """The replica for a retry after the attempt `failed`; None if there is none. It belongs to the same pool or to
        another pool on the request's route.

        `in_pool`: only replicas of the same pool are tried. A retry is taken out of the budget.
        """
        if state.attempts > 1:
            return None
        replica = failed.replica.pool.pick(state.request, state.needs_tokens, self._random.random(), failed.replica)
        if replica is None and not in_pool and not failed.replica.pool.is_pinned(state.request):
            replica = self._other_pool(state, failed)
        return (
            replica
            if replica is not None and self._budget.retry(state.request.tier, failed.sent_at is not None)
            else None
        )

    def again(self, state: RequestState, failed: Attempt) -> bool:
        """Whether the request is sent to the same replica once more, because the attempt `failed` says nothing about
        it. This counts as a retry.
        """
        replica = failed.replica
        if state.attempts > 1 or replica.drained or replica.health.state is not ReplicaState.UP:
            return False
        return self._budget.retry(state.request.tier, failed.sent_at is not None)

    def may_be_made(self, state: RequestState, replica: Replica, others: int) -> bool:
        """Whether the request at `replica` could be retried in its pool if `others` more requests were retried as
        well.
        """
        tier = state.request.tier
        return (
            state.attempts == 1
            and not replica.pool.is_pinned(state.request)
            and tier.retry.budget > 0.0
            and self._budget.left >= others + 1.0
            and bool(replica.pool.candidates(state.request))
        )

    def _other_pool(self, state: RequestState, failed: Attempt) -> Replica | None:
        """A free replica of the first other pool on the route that takes the prompt; None if there is none."""
        request, needs_tokens = state.request, state.needs_tokens
        for spec in request.policy.route(request.model, request.tier):
            pool = self._fleet.pool(spec.name)
            if pool is not None and pool is not failed.replica.pool and spec.takes(state.prompt_tokens, request.batch):
                replica = pool.pick(request, needs_tokens, self._random.random(), failed.replica)
                if replica is not None:
                    return replica
        return None
