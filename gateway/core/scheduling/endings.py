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

UNREACHED_ENDS: Final = (AttemptOutcome.UNREACHABLE, AttemptOutcome.CONNECT_TIMEOUT)
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

    def judge(self, attempt: Attempt, finish: AttemptResult) -> None:
        """Update health, quarantine and backoff of the replica after an attempt has ended."""
        live, replica = attempt.live, attempt.replica
        seen = seen_of(finish)
        live.body_hash = live.body_hash if finish.body_hash is None else finish.body_hash
        moved = self._fleet.ended(replica, finish, live.request, live.body_hash, self._call.now)
        if EVIDENCE[seen].says is Says.ODD and replica.pool.judge.answers.is_its_own(replica):
            replica.pool.imputed.add(attempt.slot, self._forecaster.costs(replica.pool).stay_s, self._call.now)
        if finish.body_hash is not None and may_kill(seen):
            for other in self._life.suspect(live, replica, finish.body_hash):
                if other.pool is not None and other.pool is not replica.pool:  # the caller serves that pool
                    self._scheduler.serve_behind(other, other.pool)
        for each in moved:
            self._changes.moved(each)
        self._back_off(replica, finish)

    def _back_off(self, replica: Replica, finish: AttemptResult) -> None:
        """Begin a backoff of a replica that answered that it is busy. A complete answer ends the backoff."""
        pool, now = replica.pool, self._call.now
        if finish.end is AttemptOutcome.COMPLETE and replica.refusals:
            pool.backoffs.accepted(replica)
        elif finish.end is AttemptOutcome.BUSY:
            replica.refusals += 1
            until = now + rest_s(replica.refusals, finish.retry_after_s)
            pool.back_off(replica, until)
            self._life.check_by(until)

    def conclude(self, attempt: Attempt, finish: AttemptResult) -> None:
        """Answer, retry or refuse the request of an attempt that has ended. Settles the request if it is over."""
        live = attempt.live
        self._accounting.attempted(live, attempt, finish)
        if live.outcome is None:
            end = AttemptOutcome.CANCELLED if attempt.cancelled else finish.end
            if live.committed is attempt:
                self._ended_after_commit(attempt, end, finish)
            elif live.committed is None:
                self._ended_before_commit(live, attempt, end, finish)
        self._life.settle(live)

    def _ended_after_commit(self, attempt: Attempt, end: AttemptOutcome, finish: AttemptResult) -> None:
        live = attempt.live
        if end is AttemptOutcome.REJECTED:  # inside a stream that had begun
            self._life.refuse(live, Outcome.INVALID, Reason.UPSTREAM_REJECTED)
        elif end is AttemptOutcome.COMPLETE:
            self._life.answered(live, attempt, end)
        else:
            self._life.give_up(attempt, end, finish)

    def _ended_before_commit(
        self, live: RequestState, attempt: Attempt, end: AttemptOutcome, finish: AttemptResult
    ) -> None:
        own_refusal = end is AttemptOutcome.REJECTED and finish.status in OWN_REFUSALS
        answer, replica = end is AttemptOutcome.COMPLETE or end is AttemptOutcome.REJECTED, attempt.replica
        if live.open and (own_refusal or not answer):
            self._life.arm(live)  # the other attempt may still be answered, and sets the deadline now
        elif own_refusal and replica.pool.judge.answers.differs(replica) and self._retry(live, attempt, in_pool=True):
            pass
        elif answer:
            self._life.answered(live, attempt, end)
        elif end in NOT_ITS_FAULT and (self._retry(live, attempt) or self._repeat(live, attempt)):
            pass
        elif not self._may_be_retried(live, end, finish) or not (self._retry(live, attempt) or self._hold(live, end)):
            self._life.give_up(attempt, end, finish)

    def _may_be_retried(self, live: RequestState, end: AttemptOutcome, finish: AttemptResult) -> bool:
        barred = live.body_hash is not None and self._quarantine.bars(live.body_hash, self._call.now)
        return not barred and is_retried(end, finish.status)

    def _retry(self, live: RequestState, failed: Attempt, in_pool: bool = False) -> bool:
        """Send the request to another replica, or end it if no time is left; False if no replica may take it."""
        replica = self._retries.elsewhere(live, failed, in_pool)
        if replica is None:
            return False
        if replica.pool is not live.pool:
            live.grant(offer_of(live).at(replica.pool))
            replica.pool.demand.arrived(offer_of(live).all_likely)
        self._send_again(live, replica)
        return True

    def _hold(self, live: RequestState, end: AttemptOutcome) -> bool:
        """Keep the request until its pool has a replica again, if it has none. A replica that cannot be reached may
        have gone a moment ago, so its pool may still seem to have it.
        """
        pool = live.pool
        if pool is None or pool.spec.hold is None:
            return False
        seems_alive = pool.serves(live.request)
        if seems_alive and (end not in UNREACHED_ENDS or live.attempts > pool.spec.health.failures):
            return False
        return self._scheduler.hold(live)

    def _repeat(self, live: RequestState, failed: Attempt) -> bool:
        """Send the request to the same replica once more, or end it if no time is left; False if it may not."""
        if not self._retries.again(live, failed):
            return False
        self._send_again(live, failed.replica)
        return True

    def _send_again(self, live: RequestState, replica: Replica) -> None:
        if not self._life.has_expired(live):
            self._scheduler.dispatch(live, replica)
