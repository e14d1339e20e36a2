"""Life cycle of requests and attempts: opens, commits, cancels and ends them, and sets timers."""

from __future__ import annotations

import math
from typing import Final

from gateway.core.admission.adapters import end_way
from gateway.core.admission.promises import is_lost
from gateway.core.commands import Cancel, Commit, Cut, Dispatch, Ended, Refuse
from gateway.core.deadlines import next_deadline
from gateway.core.fleet.health.evidence import EVIDENCE, seen_of
from gateway.core.fleet.health.replica_health import SWEEP_S
from gateway.core.fleet.pool import Pool, Replica
from gateway.core.fleet.slot import UNREAD
from gateway.core.policy import AdmissionMode
from gateway.core.redundancy.request_quarantine import doubt_s
from gateway.core.redundancy.retries import FAILURES, rest_s
from gateway.core.request_state import Attempt, RequestState, offer_of
from gateway.core.results import AttemptOutcome, AttemptResult, Outcome, Reason, RunningAttempt
from gateway.core.scheduling.histories import attempt_history
from gateway.core.scheduling.state import BREAKERS, State
from gateway.core.scheduling.usage import believed, compare_cached
from gateway.core.snapshot import ReplicaState

COUNTED: Final = frozenset(outcome for outcome in Outcome if outcome.counts)
SPARE: Final = 0.2
"""An overlong answer is cut if less than this share (0-1) of its pool's slots is free."""
WAITED: Final = {
    Reason.PREDICTED: "no replica became free within its objective",
    Reason.QUEUE_TIMEOUT: "no replica became free within its timeout",
}
"""Text on why the wait of a request ended, by reason."""


class Lifecycle:
    """Changes the state of requests and attempts, and issues the commands that follow."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._call = state.call
        self._requests = state.requests
        self._attempts = state.attempts
        self._timers = state.timers
        self._fleet = state.fleet
        self._forecaster = state.forecaster
        self._accounting = state.accounting
        self._extra = state.extra
        self._hedges = state.hedges
        self._quarantine = state.quarantine
        self._learners = state.learners
        self._retry_after = state.retry_after
        self._last_attempt = 0

    # ---- an attempt

    def open(self, live: RequestState, replica: Replica, hedge: bool) -> None:
        """Take a slot of `replica` and dispatch an attempt there. `hedge`: whether the attempt is a duplicate of a late
        one.
        """
        self._last_attempt += 1
        attempt = self._open(live, replica, hedge, self._last_attempt)
        max_tokens = live.max_tokens if live.is_capped else 0
        model = live.request.model.name if live.request.fallback_of else ""
        self._call.commands.append(
            Dispatch(live.request.id, attempt.id, replica.spec.name, max_tokens, live.degraded, model)
        )

    def adopt(self, live: RequestState, replica: Replica, running: RunningAttempt) -> None:
        """Take a slot of `replica` for an attempt that another controller opened."""
        now = self._call.now
        attempt = self._open(live, replica, bool(live.open), running.attempt)
        if attempt.facts is not None:
            attempt.facts.teach_nothing()
        attempt.sent_at, attempt.first_at = running.sent_at, running.first_at
        live.reached = live.reached or running.sent_at is not None
        if running.first_at is not None or running.committed:
            attempt.slot.prompt_read(now)
        if running.committed:
            live.committed, live.replica = attempt, replica
            if live.request.stream:
                live.first_at = running.first_at
        self.arm(live)

    def number_from(self, attempt_id: int) -> None:
        """Give later attempts ids above this one."""
        self._last_attempt = max(self._last_attempt, attempt_id)

    def _open(self, live: RequestState, replica: Replica, hedge: bool, attempt_id: int) -> Attempt:
        now = self._call.now
        pool = replica.pool
        prompt = live.prompt_tokens
        indexed = replica.indexed_of(prompt, live.request)
        cached = replica.expected_of(prompt, indexed) if indexed else 0
        if live.request.tier.admission.mode is not AdmissionMode.ENFORCE:
            replica.budget.overfill(replica.bound, now)
        slot = pool.acquire(replica, live.request.tier.name, prompt, prompt - cached, live.visible, now)
        pool.router.sent(replica)
        if live.request.adapter:
            replica.adapters.opened(live.request.adapter)
        attempt = Attempt(attempt_id, live, slot, hedge)
        if pool.spec.affinity:
            attempt.indexed_tokens, attempt.predicted_tokens = indexed, cached
            replica.cache.evidence.sent(prompt, indexed)
            attempt.new_blocks = replica.cache.sent(live.request.prefix)
        self._attempts[attempt.id] = attempt
        live.open.append(attempt)
        live.attempts += 1
        live.replica = replica
        if pool.in_flight == 1 and pool.spec.health.ejection is not None:
            self.check_by(now + SWEEP_S)
        if live.dispatched_at is None:
            self._dispatched(live, pool)
        context = replica.context_tokens or pool.contexts.least_tokens
        if context is not None and live.request.max_tokens is None:
            # Prompt and cap together must fit the engine's context. Our default cap must not make the engine refuse the
            # request.
            live.max_tokens = min(live.max_tokens, max(1, context - offer_of(live).prompt_likely))
        for learner in self._learners:
            learner.opened(attempt, now)
        slot.prediction = attempt.facts
        self.arm(live)
        if not live.visible and not replica.is_free and attempt.facts is not None:
            # No first token will be seen. So a timer serves the queue at the time when this prompt is expected to be
            # read.
            self._timers.advance(live.request.id, now + attempt.facts.ttft_s)
        return attempt

    def _dispatched(self, live: RequestState, pool: Pool) -> None:
        """Charge the tier and the tenant of a request for its first attempt."""
        now = live.dispatched_at = self._call.now
        self._accounting.dispatched(live, now)
        live.booked_tokens = live.prompt_tokens + live.expected_output
        pool.queue.served(live.request.tier, live.booked_tokens)
        self._extra.deposit(live.request.tier)

    def first_token(self, attempt: Attempt) -> None:
        """Record the first token of an attempt. Its answer is committed, unless the answer of another attempt is
        committed already.
        """
        live, now = attempt.live, self._call.now
        attempt.replica.health.silence.heard(now)
        if attempt.first_at is None:
            attempt.first_at = attempt.last_at = now
            pool = attempt.replica.pool
            attempt.slot.prompt_read(now)
            if attempt.replica.refusals:
                pool.backoffs.accepted(attempt.replica)
            for learner in self._learners:
                learner.first_token(attempt, now)
        if live.outcome is not None:
            return
        if not attempt.cancelled and live.committed in (None, attempt):
            if live.request.stream and live.first_at is None:
                live.first_at = now
                self._accounting.first_token(live, now)
            if live.committed is None:
                self.commit(attempt)
        self.arm(live)

    def progress(self, attempt: Attempt, tokens: int) -> None:
        """Record that the answer has `tokens` so far. An overlong answer may be cut."""
        now = self._call.now
        attempt.slot.progress(tokens, now - attempt.last_at, now)
        attempt.tokens = tokens
        attempt.replica.health.silence.heard(now)
        for learner in self._learners:
            learner.progress(attempt, tokens, now)
        attempt.last_at = now
        if attempt.watched:
            self._watch(attempt, tokens)

    def stirred(self, attempt: Attempt) -> None:
        """Record that a part of an answer has come whose tokens cannot be seen. The rest must follow in time."""
        now = self._call.now
        attempt.replica.health.silence.heard(now)
        attempt.has_begun = True
        attempt.last_at = now
        if attempt.live.outcome is None:
            self.arm(attempt.live)

    def _watch(self, attempt: Attempt, tokens: int) -> None:
        """Cut an overlong answer if requests wait or slots are short. Answers with several choices are never cut."""
        live, pool = attempt.live, attempt.replica.pool
        needed = bool(pool.queue) or pool.headroom < SPARE
        if needed and live.request.choices == 1 and live.can_be_cut and self._forecaster.is_overlong(attempt, tokens):
            self.cut(live, Reason.OUTPUT_LENGTH)

    def close(self, attempt_id: int, finish: AttemptResult) -> AttemptResult:
        """Free the slot of an attempt and learn from its end. Returns `finish` without impossible token counts."""
        now = self._call.now
        attempt = self._attempts[attempt_id]
        told, finish = finish, believed(attempt, finish)
        del self._attempts[attempt_id]
        replica = attempt.replica
        pool = replica.pool
        if finish is not told:
            where = pool.spec.name, replica.spec.name
            self._state.disbelieved[where] = self._state.disbelieved.get(where, 0) + 1
        attempt.live.open.remove(attempt)
        attempt.live.tried.append(attempt_history(attempt, finish, now))
        full = pool.headroom <= 0.0
        if EVIDENCE[seen_of(finish)].is_answer:
            replica.health.silence.heard(now)
        left_tokens = attempt.left_tokens(finish.end, now)
        attempt.slot.release(finish.end, left_tokens, now)
        if finish.end not in UNREAD:
            attempt.live.is_read = True
        elif pool.spec.affinity:
            replica.cache.take_back(attempt.live.request.prefix, attempt.new_blocks)
            replica.cache.evidence.sent(-attempt.prompt_tokens, -attempt.indexed_tokens)
        if attempt.live.request.adapter:
            replica.adapters.closed(attempt.live.request.adapter)
        if attempt.live.request.batch == 1:
            self._fleet.learn_context(replica, finish, now)
            if finish.end is AttemptOutcome.COMPLETE:
                compare_cached(attempt, finish)
        for learner in self._learners:
            learner.closed(attempt, finish, now)
        if not replica.in_flight and replica.spec.name not in pool.replicas:
            self._forecaster.keep(self._state.policy, self._attempts.values())
        if finish.end not in UNREAD:
            pool.drain.ended(full, now)
        return finish

    def back_off(self, replica: Replica, finish: AttemptResult) -> None:
        """Begin a backoff of a replica that answered that it is busy. A complete answer ends the backoff."""
        pool, now = replica.pool, self._call.now
        if finish.end is AttemptOutcome.COMPLETE and replica.refusals:
            pool.backoffs.accepted(replica)
        elif finish.end is AttemptOutcome.BUSY:
            replica.refusals += 1
            until = now + rest_s(replica.refusals, finish.retry_after_s)
            pool.back_off(replica, until)
            self.check_by(until)

    # ---- whose answer the client gets

    def commit(self, winner: Attempt) -> None:
        """Forward the answer of `winner` to the client from now on. Other attempts are cancelled."""
        live = winner.live
        live.committed = winner
        live.replica = winner.replica
        if live.hedged is not None:
            self._hedges.committed(winner)
        self._call.commands.append(Commit(live.request.id, winner.id, live.hedged))
        self.cancel(live)

    def cancel(self, live: RequestState) -> None:
        """Cancel every open attempt whose answer is no longer needed."""
        for attempt in live.open:
            if not attempt.cancelled and (live.outcome is not None or attempt is not live.committed):
                self.cancel_attempt(attempt)

    def cancel_attempt(self, attempt: Attempt) -> None:
        """Ask the caller to close one attempt. The attempt holds its slot until the caller reports `finish`."""
        attempt.cancelled = True
        self._call.commands.append(Cancel(attempt.live.request.id, attempt.id))

    def cancel_unanswered(self, replica: Replica) -> None:
        """Cancel all attempts without a first token at a replica that is down, since they may hang for ever.

        Their requests are then retried elsewhere, or refused.
        """
        for attempt in self._attempts.values():
            if attempt.replica is replica and attempt.first_at is None and not attempt.cancelled:
                self.cancel_attempt(attempt)

    def answered(self, live: RequestState, attempt: Attempt, end: AttemptOutcome) -> None:
        """Give the client the engine's whole answer, or its rejection, and decide the outcome."""
        if live.committed is None:
            self.commit(attempt)
        ok = end is AttemptOutcome.COMPLETE
        live.decide(Outcome.OK if ok else Outcome.INVALID, None if ok else Reason.UPSTREAM_REJECTED, self._call.now)

    def suspect(self, live: RequestState, replica: Replica, body_hash: int) -> list[RequestState]:
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
        self, live: RequestState, outcome: Outcome, why: Reason, retry_after_s: float | None = None, detail: str = ""
    ) -> None:
        """End a request with an error. It must have no attempt under way."""
        self.unqueue(live)
        live.decide(outcome, why, self._call.now)
        self._tell(live, why, retry_after_s, detail)
        self.settle(live)

    def _tell(self, live: RequestState, why: Reason, retry_after_s: float | None, detail: str) -> None:
        """Send the client an error."""
        live.detail, live.retry_after_s = detail, retry_after_s
        self._call.commands.append(Refuse(live.request.id, why, retry_after_s, detail))

    def give_up(self, attempt: Attempt, end: AttemptOutcome, finish: AttemptResult) -> None:
        """End a request whose attempt failed, because no other is made. Its client hears when a replica wants it."""
        wait_s = self._retry_after.told(finish.retry_after_s, attempt.replica.pool, self._call.now)
        self.refuse(attempt.live, Outcome.ERROR, FAILURES[end], wait_s)

    def leave(self, live: RequestState, why: Reason) -> None:
        """End a request in any state, because its client has left or stopped reading. Nothing is sent to the client."""
        self.end(live, Outcome.ABANDONED, why)

    def end(self, live: RequestState, outcome: Outcome, why: Reason) -> None:
        """End a request in any state: its attempts are cancelled first."""
        if live.outcome is not None:
            return
        now = self._call.now
        detail = f"It waited for {now - live.request.body_at:.3g} s: {WAITED[why]}." if why in WAITED else ""
        self.unqueue(live)
        live.decide(outcome, why, now)
        if outcome is not Outcome.ABANDONED:
            wait_s = None if live.pool is None else self._retry_after.for_slot(live, live.pool, now)
            self._tell(live, why, wait_s, detail)
        self.cancel(live)
        self.settle(live)

    def fail(self, live: RequestState) -> None:
        """End a request with an internal error, whatever its state."""
        self.unqueue(live)
        live.decide(Outcome.ERROR, Reason.INTERNAL, self._call.now)
        self._call.commands.append(Refuse(live.request.id, Reason.INTERNAL))
        self.cancel(live)
        self.settle(live)

    def cut(self, live: RequestState, why: Reason) -> None:
        """End an answer that has begun as an incomplete answer."""
        live.decide(Outcome.CUT, why, self._call.now)
        self._call.commands.append(Cut(live.request.id, why, offer_of(live).all_likely))
        self.cancel(live)
        self.settle(live)

    def expire(self, live: RequestState, why: Reason) -> None:
        """End a request whose deadline has passed."""
        self.end(live, Outcome.REFUSED if why is Reason.PREDICTED else Outcome.TIMEOUT, why)

    def has_expired(self, live: RequestState) -> bool:
        """Whether the deadline of a request has passed. If so, the request is ended. It must have no attempt under
        way.
        """
        at, why = next_deadline(live)
        if at <= self._call.now:
            self.expire(live, why)
        return at <= self._call.now

    def settle(self, live: RequestState) -> None:
        """If a request has an outcome and no attempt under way, close its accounts and report `Ended`."""
        if live.outcome is None or live.open or live.request.id not in self._requests:
            return
        del self._requests[live.request.id]
        self._timers.clear(live.request.id)
        if live.body_hash is not None and live.outcome is Outcome.OK:
            self._quarantine.served(live.body_hash)
        self._hedges.ended(live)
        use = live.use
        served = -math.inf if use is None else use.served
        record = self._accounting.close(live, self._call.now)
        if use is not None and use.served < served:
            self._fleet.returned(live.request.tier, live.request.tenant)
        if live.pool is not None and live.dispatched_at is not None and not live.is_worked_on:
            self._take_back(live, live.pool, live.dispatched_at)
        if live.pool is not None:
            live.pool.demand.ended(record.outcome in COUNTED, record.good, record.output_tokens)
            if is_lost(record):
                live.pool.queue.lost(live.request.tier, self._call.now)
        self._call.commands.append(Ended(record))
        # breaks a reference cycle with the attempt, because garbage collection of such cycles would dominate the cost
        live.committed = None

    def _take_back(self, live: RequestState, pool: Pool, sent_at: float) -> None:
        """Take back all that was counted when a request was sent, because no engine worked on it. If an engine refused
        it, its arrival was no demand either.
        """
        tier, now = live.request.tier, self._call.now
        pool.queue.served(tier, -live.booked_tokens)
        if live.waited:
            pool.drain.take_back(sent_at)
            pool.queue.of_tier(tier).turns.take_back(sent_at)
        if live.outcome is Outcome.INVALID:
            came_at = live.request.body_at
            pool.demand.take_back(offer_of(live).all_likely)
            pool.asked.take_back(tier, came_at, now)
            pool.queue.of_tier(tier).arrivals.take_back(came_at, now)

    def unqueue(self, live: RequestState) -> None:
        """Take a request out of its queue, if it is queued."""
        if live.waiting:
            assert live.pool is not None
            live.waiting = False
            live.pool.queue.remove(live, self._call.now)
            if live.request.adapter:
                end_way(live.request.adapter, live.pool)

    # ---- timers

    def arm(self, live: RequestState) -> None:
        """Set the timer of a request to its next deadline. An earlier timer is kept: when it fires, it is set again."""
        at, _ = next_deadline(live)
        self._timers.advance(live.request.id, at)

    def check_by(self, at: float) -> None:
        """Schedule a check of all replicas and breakers (`Scheduler.check`) for `at`, unless an earlier one is
        scheduled.
        """
        self._timers.advance(BREAKERS, at)
