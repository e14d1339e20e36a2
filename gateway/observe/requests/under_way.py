"""The document of a request under way: the same fields as of one that is over, as far as they are known."""

from __future__ import annotations

from typing import Final

from gateway.core.history import AttemptHistory
from gateway.core.request_state import Attempt, RequestState
from gateway.core.results import Outcome, Record
from gateway.core.scheduling.histories import history_of
from gateway.observe.requests.document import document_of
from gateway.observe.requests.row import RequestRow

UNDER_WAY: Final = "under-way"
"""Its outcome, and the end of attempts that have not ended."""


def under_way_document(state: RequestState, now: float, wall_s: float) -> dict[str, object]:
    """The document. Its latencies are those so far. `wall_s`: Unix time at the zero of the monotonic clock, as `now`
    is.
    """
    told = document_of(RequestRow(_record(state, now)), wall_s)
    unknown = {"ended": None, "status": None, "good": None}
    return {**told, **unknown, "outcome": UNDER_WAY, "missed": [], "state": _state(state)}


def _record(state: RequestState, now: float) -> Record:
    """The record that it would have if it was answered now."""
    started, replica = state.request.body_at, state.replica
    history = history_of(state)
    history.attempts = [*history.attempts, *(_attempt(each, now) for each in state.open)]
    return Record(
        request=state.request,
        outcome=Outcome.OK,
        why=None,
        pool=None if state.pool is None else state.pool.spec.name,
        replica=None if replica is None else replica.spec.name,
        queue_s=(now if state.dispatched_at is None else state.dispatched_at) - started,
        ttft_s=None if state.first_at is None else state.first_at - started,
        tpot_s=None,
        e2e_s=now - started,
        prompt_tokens=state.prompt_tokens,
        output_tokens=0 if state.committed is None else state.committed.tokens,
        tokens_exact=False,
        good=False,
        attempts=state.attempts,
        breach=None if state.forecast is None else state.forecast.breach,
        degraded=state.degraded,
        hedged=state.hedged,
        waited=state.waited,
        history=history,
    )


def _attempt(attempt: Attempt, now: float) -> AttemptHistory:
    told = AttemptHistory(
        attempt.replica.pool.spec.name, attempt.replica.spec.name, attempt.hedge, UNDER_WAY, attempt.opened_at, now
    )
    told.id, told.sent_at, told.first_at = attempt.id, attempt.sent_at, attempt.first_at
    if attempt.prediction is not None:
        told.expected_ttft_s = attempt.prediction.ttft_s
    return told


def _state(state: RequestState) -> str:
    """The event that it waits for, in words."""
    if state.held_by is not None:
        return f"on hold, until pool {state.held_by.spec.name} has a replica"
    if state.waiting:
        return "waiting in the queue of its pool"
    if state.committed is not None:
        return f"answered by {state.committed.replica.spec.name}"
    if state.open:
        return f"sent to {' and '.join(each.replica.spec.name for each in state.open)}, no token yet"
    return "between two attempts"
