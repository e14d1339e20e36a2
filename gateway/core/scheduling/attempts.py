"""Life cycle of attempts: takes their slots, follows their answers, learns from them, and frees the slots."""

from __future__ import annotations

from typing import Final

from gateway.core.commands import Dispatch
from gateway.core.fleet.health.evidence import EVIDENCE, seen_of
from gateway.core.fleet.health.replica_health import SWEEP_S
from gateway.core.fleet.pool import Pool, Replica
from gateway.core.fleet.slot import UNREAD
from gateway.core.policy import AdmissionMode
from gateway.core.request_state import Attempt, RequestState, offer_of
from gateway.core.results import AttemptOutcome, AttemptResult, Reason, RunningAttempt
from gateway.core.scheduling.histories import attempt_history
from gateway.core.scheduling.lifecycle import Lifecycle
from gateway.core.scheduling.state import State
from gateway.core.scheduling.usage import believed, compare_cached

SPARE: Final = 0.2
"""An overlong answer is cut if less than this share (0-1) of its pool's slots is free."""


class AttemptLifecycle:
    """Opens and closes attempts, and notes what happens in between."""

    def __init__(self, state: State, life: Lifecycle) -> None:
        self._state = state
        self._life = life
        self._call = state.call
        self._attempts = state.attempts
        self._timers = state.timers
        self._fleet = state.fleet
        self._forecaster = state.forecaster
        self._accounting = state.accounting
        self._retry_budget = state.retry_budget
        self._learners = state.learners
        self._last_attempt = 0

    def open(self, state: RequestState, replica: Replica, hedge: bool) -> None:
        """Take a slot of `replica` and dispatch an attempt there. `hedge`: whether the attempt is a duplicate of a late
        one.
        """
        self._last_attempt += 1
        attempt = self._open(state, replica, hedge, self._last_attempt, None)
        max_tokens = state.max_tokens if state.is_capped else 0
        model = state.request.model.name if state.request.fallback_of else ""
        self._call.commands.append(
            Dispatch(state.request.id, attempt.id, replica.spec.name, max_tokens, state.degraded, model)
        )

    def adopt(self, state: RequestState, replica: Replica, running: RunningAttempt) -> None:
        """Take a slot of `replica` for an attempt that another controller opened."""
        now = self._call.now
        attempt = self._open(state, replica, bool(state.open), running.attempt, running)
        attempt.slot.was_sent_before(now)
        attempt.first_at = running.first_at
        state.reached = state.reached or running.sent_at is not None
        is_read = running.first_at is not None or running.committed
        if is_read:
            attempt.slot.prompt_read(now)
        if attempt.prediction is not None:
            attempt.prediction.teach_nothing()
            if is_read:
                attempt.prediction.engine.forget(attempt.id, now)
        if running.committed:
            state.committed, state.replica = attempt, replica
            if state.request.stream:
                state.first_at = running.first_at
        self._life.arm(state)

    def number_from(self, attempt_id: int) -> None:
        """Give later attempts ids above this one."""
        self._last_attempt = max(self._last_attempt, attempt_id)

    def _open(
        self, state: RequestState, replica: Replica, hedge: bool, attempt_id: int, running: RunningAttempt | None
    ) -> Attempt:
        now = self._call.now
        pool = replica.pool
        prompt = state.prompt_tokens
        indexed = replica.indexed_of(prompt, state.request)
        cached = replica.expected_of(prompt, indexed) if indexed else 0
        if state.request.tier.admission.mode is not AdmissionMode.ENFORCE:
            replica.budget.overfill(replica.bound, now)
        slot = pool.acquire(replica, state.request.tier.name, prompt, prompt - cached, state.visible, now)
        pool.router.sent(replica)
        affinity = state.request.affinity
        if affinity.adapter:
            replica.adapters.opened(affinity.adapter)
        attempt = Attempt(attempt_id, state, slot, hedge)
        if running is not None:
            attempt.sent_at = running.sent_at
        if pool.spec.affinity:
            attempt.indexed_tokens, attempt.predicted_tokens = indexed, cached
            replica.cache.evidence.sent(prompt, indexed)
            attempt.new_blocks = replica.cache.sent(affinity.prefix)
        self._attempts[attempt.id] = attempt
        state.open.append(attempt)
        state.attempts += 1
        state.replica = replica
        if pool.in_flight == 1 and pool.spec.health.ejection is not None:
            self._life.check_by(now + SWEEP_S)
        if state.dispatched_at is None:
            state.dispatched_at = now
            if state.charged_in is None:
                self._charge(state, pool)
        context = replica.context_tokens or pool.contexts.least_tokens
        if context is not None and state.request.max_tokens is None:
            # Prompt and cap together must fit the engine's context. Our default cap must not make the engine refuse the
            # request.
            state.max_tokens = min(state.max_tokens, max(1, context - offer_of(state).prompt_likely))
        for learner in self._learners:
            learner.opened(attempt, now)
        slot.prediction = attempt.prediction
        self._life.arm(state)
        if not state.visible and not replica.is_free and attempt.prediction is not None:
            # No first token will be seen. So a timer serves the queue at the time when this prompt is expected to be
            # read.
            self._timers.advance(state.request.id, now + attempt.prediction.ttft_s)
        return attempt

    def _charge(self, state: RequestState, pool: Pool) -> None:
        """Charge the tier and the tenant of a request for its first attempt."""
        now = self._call.now
        state.charged_in = pool, now
        self._accounting.dispatched(state, now)
        state.booked_tokens = state.prompt_tokens + state.expected_output
        pool.queue.served(state.request.tier, state.booked_tokens)
        self._retry_budget.deposit(state.request.tier)

    def first_token(self, attempt: Attempt) -> None:
        """Record the first token of an attempt. Its answer is committed, unless the answer of another attempt is
        committed already.
        """
        state, now = attempt.state, self._call.now
        attempt.replica.health.silence.heard(now)
        if attempt.first_at is None:
            attempt.first_at = attempt.last_at = now
            pool = attempt.replica.pool
            attempt.slot.prompt_read(now)
            if attempt.replica.refusals:
                pool.backoffs.accepted(attempt.replica)
            for learner in self._learners:
                learner.first_token(attempt, now)
        if state.outcome is not None:
            return
        if not attempt.cancelled and state.committed in (None, attempt):
            if state.request.stream and state.first_at is None:
                state.first_at = now
                self._accounting.first_token(state, now)
            if state.committed is None:
                self._life.commit(attempt)
        self._life.arm(state)

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
        if attempt.state.outcome is None:
            self._life.arm(attempt.state)

    def _watch(self, attempt: Attempt, tokens: int) -> None:
        """Cut an answer that is longer than nearly all of its route, if requests wait or slots are short. Answers with
        several choices are never cut.
        """
        state, pool, prediction = attempt.state, attempt.replica.pool, attempt.prediction
        needed = bool(pool.queue) or pool.headroom < SPARE
        if not needed or prediction is None or state.request.choices > 1 or not state.can_be_cut:
            return
        if prediction.bucket.is_long(tokens):
            self._life.cut(state, Reason.OUTPUT_LENGTH)

    def close(self, attempt_id: int, result: AttemptResult) -> AttemptResult:
        """Free the slot of an attempt and learn from its end. Returns `result` without impossible token counts."""
        now = self._call.now
        attempt = self._attempts[attempt_id]
        told, result = result, believed(attempt, result)
        del self._attempts[attempt_id]
        replica = attempt.replica
        pool = replica.pool
        if result is not told:
            where = pool.spec.name, replica.spec.name
            self._state.disbelieved[where] = self._state.disbelieved.get(where, 0) + 1
        state = attempt.state
        state.open.remove(attempt)
        state.tried.append(attempt_history(attempt, result, now))
        if not state.open and state.outcome is None and all(each.sent_at is None for each in state.tried):
            state.dispatched_at = None
        full = pool.headroom <= 0.0
        if EVIDENCE[seen_of(result)].is_answer:
            replica.health.silence.heard(now)
        left_tokens = attempt.left_tokens(result.end, now)
        attempt.slot.release(result.end, left_tokens, now)
        if result.end not in UNREAD:
            state.is_read = True
        elif pool.spec.affinity:
            replica.cache.take_back(state.request.affinity.prefix, attempt.new_blocks)
            replica.cache.evidence.sent(-attempt.prompt_tokens, -attempt.indexed_tokens)
        if state.request.affinity.adapter:
            replica.adapters.closed(state.request.affinity.adapter)
        if state.request.batch == 1:
            self._fleet.learn_context(replica, result)
            if result.end is AttemptOutcome.COMPLETE:
                compare_cached(attempt, result)
        for learner in self._learners:
            learner.closed(attempt, result, now)
        if not replica.in_flight and replica.spec.name not in pool.replicas:
            self._forecaster.keep(self._state.policy, self._attempts.values())
        if result.end not in UNREAD:
            pool.drain.ended(full, now)
        return result
