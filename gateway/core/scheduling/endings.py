"""Judges attempts that have ended, and answers, retries or refuses their requests."""

from __future__ import annotations

from typing import Final

from gateway.core.fleet.health.evidence import EVIDENCE, Says, may_kill, seen_of
from gateway.core.fleet.pool import Replica
from gateway.core.redundancy.retries import NOT_ITS_FAULT, OWN_REFUSALS, is_retried, rest_s
from gateway.core.request_state import Attempt, RequestState, offer_of
from gateway.core.results import AttemptOutcome, AttemptResult, Outcome, Reason
from gateway.core.scheduling.lifecycle import Lifecycle
from gateway.core.scheduling.replica_changes import ReplicaChanges
from gateway.core.scheduling.scheduler import Scheduler
from gateway.core.scheduling.state import State

UNREACHED: Final = frozenset({AttemptOutcome.UNREACHABLE, AttemptOutcome.CONNECT_TIMEOUT})
"""Ends of attempts whose requests no engine has got."""


class Endings:
    """Decides what follows from the end of an attempt."""

    def __init__(self, state: State, life: Lifecycle, scheduler: Scheduler, changes: ReplicaChanges) -> None:
        self._life = life
        self._call = state.call
        self._fleet = state.fleet
        self._forecaster = state.forecaster
        self._accounting = state.accounting
        self._retries = state.retries
        self._quarantine = state.quarantine
        self._scheduler = scheduler
        self._changes = changes

    def judge(self, attempt: Attempt, result: AttemptResult) -> None:
        """Update health, quarantine and backoff of the replica: busy begins a backoff, a complete answer ends it."""
        state, replica = attempt.state, attempt.replica
        seen = seen_of(result)
        state.body_hash = state.body_hash if result.body_hash is None else result.body_hash
        moved = self._fleet.ended(replica, result, state.request, state.body_hash, self._call.now)
        if EVIDENCE[seen].says is Says.ODD and replica.pool.judge.answers.is_its_own(replica):
            replica.pool.imputed.add(attempt.slot, self._forecaster.costs(replica.pool).stay_s, self._call.now)
        if result.body_hash is not None and may_kill(seen):
            for other in self._life.suspect(state, replica, result.body_hash):
                if other.pool is not None and other.pool is not replica.pool:  # the caller serves that pool
                    self._scheduler.serve_behind(other, other.pool)
        for each in moved:
            self._changes.moved(each)
        pool, now = replica.pool, self._call.now
        if result.end is AttemptOutcome.COMPLETE and replica.refusals:
            pool.backoffs.accepted(replica)
        elif result.end is AttemptOutcome.BUSY:
            replica.refusals += 1
            until = now + rest_s(replica.refusals, result.retry_after_s)
            pool.back_off(replica, until)
            self._life.check_by(until)

    def conclude(self, attempt: Attempt, result: AttemptResult) -> None:
        """Answer, retry or refuse the request of an attempt that has ended. Settles the request if it is over."""
        state = attempt.state
        self._accounting.attempted(state, attempt, result)
        if state.outcome is None:
            end = AttemptOutcome.CANCELLED if attempt.cancelled else result.end
            if state.committed is attempt:
                self._ended_after_commit(attempt, end, result)
            elif state.committed is None:
                self._ended_before_commit(attempt, end, result)
        self._life.settle(state)

    def _ended_after_commit(self, attempt: Attempt, end: AttemptOutcome, result: AttemptResult) -> None:
        state = attempt.state
        if end is AttemptOutcome.REJECTED:  # inside a stream that had begun
            self._life.refuse(state, Outcome.INVALID, Reason.UPSTREAM_REJECTED)
        elif end is AttemptOutcome.COMPLETE:
            self._life.answered(state, attempt, end)
        else:
            self._life.give_up(attempt, end, result)

    def _ended_before_commit(self, attempt: Attempt, end: AttemptOutcome, result: AttemptResult) -> None:
        state, replica = attempt.state, attempt.replica
        own_refusal = end is AttemptOutcome.REJECTED and result.status in OWN_REFUSALS
        answer = end is AttemptOutcome.COMPLETE or end is AttemptOutcome.REJECTED
        if state.open and (own_refusal or not answer):
            self._life.arm(state)  # the other attempt may still be answered, and sets the deadline now
        elif own_refusal and replica.pool.judge.answers.differs(replica) and self._retry(state, attempt, in_pool=True):
            pass
        elif answer:
            self._life.answered(state, attempt, end)
        elif not self._goes_on(attempt, end, result):
            self._life.give_up(attempt, end, result)

    def _goes_on(self, attempt: Attempt, end: AttemptOutcome, result: AttemptResult) -> bool:
        """Send the request again, or hold it, if it may be retried. Returns whether it was."""
        state = attempt.state
        if end in NOT_ITS_FAULT and (self._retry(state, attempt) or self._repeat(state, attempt)):
            return True
        if state.body_hash is None or not self._quarantine.bars(state.body_hash, self._call.now):
            return is_retried(end, result.status) and (self._retry(state, attempt) or self._hold(state, end))
        return False

    def _retry(self, state: RequestState, failed: Attempt, in_pool: bool = False) -> bool:
        """Send the request to another replica, or end it if no time is left; False if no replica may take it."""
        replica = self._retries.elsewhere(state, failed, in_pool)
        if replica is None:
            return False
        if replica.pool is not state.pool:
            state.grant(offer_of(state).at(replica.pool))
            replica.pool.demand.arrived(offer_of(state).all_likely)
        self._send_again(state, replica)
        return True

    def _hold(self, state: RequestState, end: AttemptOutcome) -> bool:
        """Keep the request until its pool has a replica again, if it has none. Replicas that cannot be reached may
        have gone a moment ago, so the pool may still seem to have them.
        """
        pool = state.pool
        if pool is None or pool.spec.hold is None:
            return False
        tries = pool.spec.health.failures * len(pool.replicas)
        if pool.serves(state.request) and (end not in UNREACHED or state.attempts > tries):
            return False
        return self._scheduler.hold(state)

    def _repeat(self, state: RequestState, failed: Attempt) -> bool:
        """Send the request to the same replica once more, or end it if no time is left; False if it may not."""
        if not self._retries.again(state, failed):
            return False
        self._send_again(state, failed.replica)
        return True

    def _send_again(self, state: RequestState, replica: Replica) -> None:
        if not self._life.has_expired(state):
            self._scheduler.dispatch(state, replica)
