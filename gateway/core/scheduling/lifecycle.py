"""Life cycle of requests: commits, cancels and ends their answers, and sets timers."""

from __future__ import annotations

import math
from typing import Final

from gateway.core.admission.adapters import end_way
from gateway.core.admission.promises import is_lost
from gateway.core.commands import Cancel, Commit, Cut, Ended, Refuse
from gateway.core.deadlines import next_deadline
from gateway.core.fleet.pool import Pool, Replica
from gateway.core.redundancy.request_quarantine import doubt_s
from gateway.core.redundancy.retries import FAILURES
from gateway.core.request_state import Attempt, RequestState, offer_of
from gateway.core.results import AttemptOutcome, AttemptResult, Outcome, Reason
from gateway.core.scheduling.placement import kept_at
from gateway.core.scheduling.state import BREAKERS, State
from gateway.core.snapshot import ReplicaState

COUNTED: Final = frozenset(outcome for outcome in Outcome if outcome.counts)
WAITED: Final = {
    Reason.PREDICTED: "no replica became free within its objective",
    Reason.NO_REPLICAS: "its pool had no replica in that time",
    Reason.QUEUE_TIMEOUT: "no replica became free within its timeout",
}
"""Text on why the wait of a request ended, by reason."""
REFUSALS: Final = (Reason.PREDICTED, Reason.NO_REPLICAS)
"""Reasons of deadlines that are refusals for lack of capacity, not timeouts."""


class Lifecycle:
    """Changes the state of requests, and issues the commands that follow."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._call = state.call
        self._requests = state.requests
        self._attempts = state.attempts
        self._timers = state.timers
        self._fleet = state.fleet
        self._accounting = state.accounting
        self._hedges = state.hedges
        self._quarantine = state.quarantine
        self._retry_after = state.retry_after

    # ---- whose answer the client gets

    def commit(self, winner: Attempt) -> None:
        """Forward the answer of `winner` to the client from now on. Other attempts are cancelled."""
        state = winner.state
        state.committed = winner
        state.replica = winner.replica
        if state.hedged is not None:
            self._hedges.committed(winner)
        self._call.commands.append(Commit(state.request.id, winner.id, state.hedged))
        self.cancel(state)

    def cancel(self, state: RequestState) -> None:
        """Cancel every open attempt whose answer is no longer needed."""
        for attempt in state.open:
            if not attempt.cancelled and (state.outcome is not None or attempt is not state.committed):
                self.cancel_attempt(attempt)

    def cancel_attempt(self, attempt: Attempt) -> None:
        """Ask the caller to close one attempt. The attempt holds its slot until the caller reports `result`."""
        attempt.cancelled = True
        self._call.commands.append(Cancel(attempt.state.request.id, attempt.id))

    def cancel_unanswered(self, replica: Replica) -> None:
        """Cancel all attempts without a first token at a replica that is down, since they may hang for ever.

        Their requests are then retried elsewhere, or refused.
        """
        for attempt in self._attempts.values():
            if attempt.replica is replica and attempt.first_at is None and not attempt.cancelled:
                self.cancel_attempt(attempt)

    def answered(self, state: RequestState, attempt: Attempt, end: AttemptOutcome) -> None:
        """Give the client the engine's whole answer, or its rejection, and decide the outcome."""
        if state.committed is None:
            self.commit(attempt)
        ok = end is AttemptOutcome.COMPLETE
        state.decide(Outcome.OK if ok else Outcome.INVALID, None if ok else Reason.UPSTREAM_REJECTED, self._call.now)

    def suspect(self, state: RequestState, replica: Replica, body_hash: int) -> list[RequestState]:
        """Record that a replica's connection broke while it had this request. If it was the second replica, queued
        requests with the same body must be refused. Returns those.
        """
        now = self._call.now
        is_down = replica.health.state is ReplicaState.DOWN
        self._quarantine.broke(body_hash, replica.spec.server, is_down, doubt_s(replica.pool.spec.health), now)
        if not self._quarantine.bars(body_hash, now):
            return []
        waiting = [other for pool in self._fleet for other in self._state.waiting(pool)]
        refused = [other for other in waiting if other.body_hash == body_hash]
        for other in refused:
            self._quarantine.refuses(body_hash, now)
            self.refuse(other, Outcome.INVALID, Reason.QUARANTINED)
        return refused

    # ---- the end of a request

    def refuse(
        self, state: RequestState, outcome: Outcome, why: Reason, retry_after_s: float | None = None, detail: str = ""
    ) -> None:
        """End a request with an error. It must have no attempt under way."""
        self.unqueue(state)
        state.decide(outcome, why, self._call.now)
        self._tell(state, why, retry_after_s, detail)
        self.settle(state)

    def _tell(self, state: RequestState, why: Reason, retry_after_s: float | None, detail: str) -> None:
        """Send the client an error."""
        state.detail, state.retry_after_s = detail, retry_after_s
        self._call.commands.append(Refuse(state.request.id, why, retry_after_s, detail))

    def give_up(self, attempt: Attempt, end: AttemptOutcome, result: AttemptResult) -> None:
        """End a request whose attempt failed, because no other is made. Its client hears when a replica wants it."""
        request, replica = attempt.state.request, attempt.replica
        wait_s = self._retry_after.told(result.retry_after_s, replica.pool, self._call.now)
        detail = kept_at(request, replica) if replica.pool.is_pinned(request) and not replica.keeps_state else ""
        self.refuse(attempt.state, Outcome.ERROR, FAILURES[end], wait_s, detail)

    def end(self, state: RequestState, outcome: Outcome, why: Reason) -> None:
        """End a request in any state: its attempts are cancelled. A client that has left is sent nothing."""
        if state.outcome is not None:
            return
        now = self._call.now
        detail = f"It waited for {now - state.request.body_at:.3g} s: {WAITED[why]}." if why in WAITED else ""
        self.unqueue(state)
        state.decide(outcome, why, now)
        if outcome is not Outcome.ABANDONED:
            wait_s = None if state.pool is None else self._retry_after.for_slot(state, state.pool, now)
            self._tell(state, why, wait_s, detail)
        self.cancel(state)
        self.settle(state)

    def fail(self, state: RequestState) -> None:
        """End a request with an internal error, whatever its state."""
        self.unqueue(state)
        state.decide(Outcome.ERROR, Reason.INTERNAL, self._call.now)
        self._call.commands.append(Refuse(state.request.id, Reason.INTERNAL))
        self.cancel(state)
        self.settle(state)

    def cut(self, state: RequestState, why: Reason) -> None:
        """End an answer that has begun as an incomplete answer."""
        state.decide(Outcome.CUT, why, self._call.now)
        self._call.commands.append(Cut(state.request.id, why, offer_of(state).all_likely))
        self.cancel(state)
        self.settle(state)

    def expire(self, state: RequestState, why: Reason) -> None:
        """End a request whose deadline has passed."""
        self.end(state, Outcome.REFUSED if why in REFUSALS else Outcome.TIMEOUT, why)

    def has_expired(self, state: RequestState) -> bool:
        """Whether the deadline of a request has passed. If so, the request is ended. It must have no attempt under
        way.
        """
        at, why = next_deadline(state)
        if at <= self._call.now:
            self.expire(state, why)
        return at <= self._call.now

    def settle(self, state: RequestState) -> None:
        """If a request has an outcome and no attempt under way, close its accounts and report `Ended`."""
        if state.outcome is None or state.open or state.request.id not in self._requests:
            return
        del self._requests[state.request.id]
        self._timers.clear(state.request.id)
        if state.body_hash is not None and state.outcome is Outcome.OK:
            self._quarantine.served(state.body_hash)
        self._hedges.ended(state)
        use = state.use
        served = -math.inf if use is None else use.served
        record = self._accounting.close(state, self._call.now)
        if use is not None and use.served < served:
            self._fleet.returned(state.request.tier, state.request.tenant)
        if state.charged_in is not None and not state.is_worked_on:
            self._take_back(state, *state.charged_in)
        if state.pool is not None:
            state.pool.demand.ended(record.outcome in COUNTED, record.output_tokens)
            if is_lost(record):
                state.pool.queue.lost(state.request.tier, self._call.now)
        self._call.commands.append(Ended(record))
        # breaks a reference cycle with the attempt, because garbage collection of such cycles would dominate the cost
        state.committed = None

    def _take_back(self, state: RequestState, pool: Pool, charged_at: float) -> None:
        """Take back all that was counted when a request was sent, because no engine worked on it. If an engine refused
        it, its arrival was no demand either.
        """
        tier, now = state.request.tier, self._call.now
        pool.queue.served(tier, -state.booked_tokens)
        if state.took_room:
            pool.drain.take_back(charged_at)
        if state.took_turn:
            pool.queue.of_tier(tier).turns.take_back(charged_at)
        if state.outcome is Outcome.INVALID:
            came_at = state.request.body_at
            pool.demand.take_back(offer_of(state).all_likely)
            pool.asked.take_back(tier, came_at, now)
            pool.queue.of_tier(tier).arrivals.take_back(came_at, now)

    def unqueue(self, state: RequestState) -> None:
        """Take a request out of its queue, if it is queued, or off hold."""
        if state.held_by is not None:
            state.held_by.held.remove(state)
            state.held_by = None
            self._state.on_hold -= 1
        if state.waiting:
            assert state.pool is not None
            state.waiting = False
            state.pool.queue.remove(state, self._call.now)
            if state.request.affinity.adapter:
                end_way(state.request.affinity.adapter, state.pool)

    # ---- timers

    def arm(self, state: RequestState) -> None:
        """Set the timer of a request to its next deadline. An earlier timer is kept: when it fires, it is set again."""
        at, _ = next_deadline(state)
        self._timers.advance(state.request.id, at)

    def check_by(self, at: float) -> None:
        """Schedule a check of all replicas and breakers (`Scheduler.check`) for `at`, unless an earlier one is
        scheduled.
        """
        self._timers.advance(BREAKERS, at)
