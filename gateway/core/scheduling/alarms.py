"""Acts on deadlines and other times that have come."""

from __future__ import annotations

from gateway.core.deadlines import next_deadline
from gateway.core.fleet.health.replica_health import SWEEP_S
from gateway.core.fleet.pool import Pool
from gateway.core.policy import OnTotal
from gateway.core.request_state import RequestState
from gateway.core.results import Reason
from gateway.core.scheduling.lifecycle import Lifecycle
from gateway.core.scheduling.replica_changes import ReplicaChanges
from gateway.core.scheduling.scheduler import Scheduler
from gateway.core.scheduling.state import BREAKERS, OTHERS, State


class Alarms:
    """Acts on every timer that has fired."""

    def __init__(self, state: State, life: Lifecycle, scheduler: Scheduler, changes: ReplicaChanges) -> None:
        self._state = state
        self._life = life
        self._call = state.call
        self._requests = state.requests
        self._timers = state.timers
        self._hedges = state.hedges
        self._scheduler = scheduler
        self._changes = changes
        self._left: dict[Pool, None] = {}
        """Pools whose queues are served at the end of `ring`, because queued requests have timed out."""

    def ring(self) -> None:
        """Act on every timer that has fired."""
        now, due = self._call.now, self._state.due
        due.extend(self._timers.due(now))
        while due:
            key = self._state.woken = due.popleft()
            if key == BREAKERS:
                self._life.check_by(now + SWEEP_S)  # set first, so that a check that raises an exception is repeated
                self._changes.check()
            elif key == OTHERS:
                self._changes.forget_silent()
            elif (state := self._requests.get(key)) is not None:
                self._rang(state)  # None: serving the queue at an earlier timer has ended this request
        while self._left:  # after all timers, since a whole queue may time out at once
            self._scheduler.pump(self._left.popitem()[0])
        if self._hedges.on:
            self._hedge()

    def _rang(self, state: RequestState) -> None:
        """Handle the timer of a request. It fires at the request's deadline or before."""
        at, why = next_deadline(state)
        if at > self._call.now:
            self._timers.set(state.request.id, at)
            self._prompt_due(state)
            if state.waiting and state.pool is not None:
                self._scheduler.pump(state.pool)
            return
        left = state.pool if state.waiting else None
        if why is Reason.QUEUE_TIMEOUT and state.waiting and self._scheduler.fall_back(state):
            pass
        elif why is Reason.TOTAL_TIMEOUT and state.request.tier.on_total is OnTotal.CUT and state.can_be_cut:
            self._life.cut(state, why)
        else:
            self._life.expire(state, why)
        if left is not None:
            self._left[left] = None

    def _prompt_due(self, state: RequestState) -> None:
        """Count the prompt of an unstreamed answer as read, because its predicted TTFT has passed. Serve the queue."""
        if state.visible:
            return
        for attempt in state.open:
            pool = attempt.replica.pool
            saturated = pool.saturated
            attempt.replica.expire_unread(self._call.now)
            pool.sync(attempt.replica, self._call.now)
            self._scheduler.offer(pool, saturated)

    def _hedge(self) -> None:
        """Send a duplicate of each request whose first token is late, if the hedging rules allow it."""
        for key in self._hedges.timers.due(self._call.now):
            self._state.woken = key
            state = self._requests.get(key)
            replica = None if state is None else self._hedges.replica_for_duplicate(state, self._call.now)
            if state is not None and replica is not None:
                self._scheduler.dispatch(state, replica, hedge=True)
