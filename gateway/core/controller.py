"""The controller: a state machine that takes every decision about every request.

Rules

1. A request (`RequestState`) is waiting, in a queue or on hold, or running, or over. It is over when it has an outcome
   and no open attempt. `Ended` is then returned for it, exactly once.
2. An attempt is opened by `Dispatch` and closed by exactly one `result`. In between it holds a slot of its replica,
   whatever happens to the request. `Cancel` asks the caller to close it; `result` frees the slot.
3. Before `Commit` the client has seen nothing, so another attempt may still be made. After `Commit` nothing is retried:
   a failure is a `Refuse`, which the caller turns into an error event.
4. A client gets at most one answer. Its answer begins with a `Commit`, or is one `Refuse`. After a `Commit` there may
   be one `Refuse` or one `Cut`. A `Cut` ends a visible answer as an incomplete one.
5. Each freed slot and each read prompt is offered to the queue before the call returns. If a queued request leaves, the
   requests behind it are considered again. The most urgent tier goes first, unless a floor says otherwise. A request
   whose turn in the queue comes too late for its objective is refused, never sent.
6. A request has four deadlines. `queue` counts from body complete while it waits. `total` counts from head received,
   always. `ttft` counts from sent until the first content token, where that can be seen. `idle` counts from the last
   progress after that, except while `paused`; where no token can be seen, from the last bytes of the body.

    arrive ──> refuse | wait | run
    wait   ──> run (a slot) | refuse (its turn in the queue comes too late, a deadline passes, evicted) | over (left)
    run    ──> first token ──> commit;  finish ──> over | run again elsewhere (before commit);  deadline ──> refuse

A controller opens no socket, reads no clock and draws no randomness of its own. The caller passes `now` (seconds of one
monotonic clock) and the random source. Each call returns a list of commands for requests. The caller carries them out
after the call has returned, so no call is made during another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from gateway.core.commands import Command
from gateway.core.policy import Policy
from gateway.core.request import Random, Request
from gateway.core.request_state import RequestState
from gateway.core.results import AttemptResult, Outcome, Reason, RunningAttempt
from gateway.core.sample import GatewayLoad, LimitLease, QuotaWindow, Sample
from gateway.core.scheduling.alarms import Alarms
from gateway.core.scheduling.attempts import AttemptLifecycle
from gateway.core.scheduling.endings import Endings
from gateway.core.scheduling.inspect import Inspector
from gateway.core.scheduling.lifecycle import Lifecycle
from gateway.core.scheduling.remembered import recall
from gateway.core.scheduling.replica_changes import ReplicaChanges
from gateway.core.scheduling.scheduler import Scheduler
from gateway.core.scheduling.state import State


class Controller(Inspector):
    """Decides about all requests of one gateway. Its methods are the calls that change state; `Inspector` has the
    reads.
    """

    def __init__(self, policy: Policy, random: Random) -> None:
        state = State(policy, random)
        super().__init__(state)
        self.lifecycle = Lifecycle(state)
        self._attempt_life = AttemptLifecycle(state, self.lifecycle)
        self.scheduler = Scheduler(state, self.lifecycle, self._attempt_life)
        self.changes = ReplicaChanges(state, self.lifecycle, self.scheduler)
        self._endings = Endings(state, self.lifecycle, self.scheduler, self.changes)
        self._alarms = Alarms(state, self.lifecycle, self.scheduler, self.changes)
        self._timers = state.timers
        self._hedges = state.hedges

    # ---- what happens to requests

    def arrive(self, request: Request, now: float) -> list[Command]:
        """A request has arrived completely and needs a replica."""
        commands = self._call.begin(now)
        state = RequestState(request)
        self._requests[request.id] = state
        if request.body_hash is not None and self.state.quarantine.refuses(request.body_hash, now):
            self.lifecycle.refuse(state, Outcome.INVALID, Reason.QUARANTINED)
            return commands
        self.scheduler.enter_anywhere(state)
        return commands

    def adopt(self, request: Request, running: Sequence[RunningAttempt], now: float) -> list[Command]:
        """Take over a request of a controller that is gone. Its attempts go on. Nothing is learned from them, since
        this controller has not seen their load. Their ids are new here: see `number_from`.
        """
        commands = self._call.begin(now)
        state = RequestState(request)
        self._requests[request.id] = state
        self.scheduler.adopt(state, running)
        return commands

    def number_from(self, attempt_id: int, now: float) -> list[Command]:
        """Give later attempts ids above this one. Ids of the controller before were below it."""
        commands = self._call.begin(now)
        self._attempt_life.number_from(attempt_id)
        return commands

    def sent(self, attempt_id: int, now: float) -> list[Command]:
        """The request was written completely to a connection of this attempt. Returns no commands."""
        attempt = self._attempts[attempt_id]
        state = attempt.state
        again = attempt.sent_at is not None  # the replica refused a field that the gateway had added
        attempt.sent_at = attempt.last_at = now
        state.reached = True
        if state.outcome is None and state.visible:
            self.lifecycle.arm(state)
            if self._hedges.on and not again:
                self._hedges.sent(attempt, now)
        return []

    def first_token(self, attempt_id: int, now: float) -> list[Command]:
        """The first content, reasoning or tool-call token of a streamed answer has come."""
        commands = self._call.begin(now)
        attempt = self._attempts[attempt_id]
        pool = attempt.replica.pool
        saturated = pool.saturated
        self._attempt_life.first_token(attempt)
        if saturated:
            self.scheduler.offer(pool, saturated)
        return commands

    def full(self, attempt_id: int, now: float) -> list[Command]:
        """The bytes before the first token exceed what the caller can hold back.

        So the answer is committed without a first token, and no TTFT is learned from it.
        """
        commands = self._call.begin(now)
        attempt = self._attempts[attempt_id]
        state = attempt.state
        attempt.replica.health.silence.heard(now)
        if state.committed is None and state.outcome is None and not attempt.cancelled:
            self.lifecycle.commit(attempt)
            self.lifecycle.arm(state)
        return commands

    def progress(self, attempt_id: int, tokens: int, now: float) -> list[Command]:
        """The answer has `tokens` so far; 0 if they cannot be seen, but bytes of the body have come.

        Called at most once per attempt in `deadlines.PROGRESS_EVERY_S`.
        """
        commands = self._call.begin(now)
        attempt = self._attempts[attempt_id]
        if not tokens:
            self._attempt_life.stirred(attempt)
            return commands
        was_free = attempt.replica.is_free
        self._attempt_life.progress(attempt, tokens)
        if attempt.replica.is_free and not was_free:
            self.scheduler.offer(attempt.replica.pool, True)
        return commands

    def repeats(self, attempt_id: int, now: float) -> list[Command]:
        """The answer of this attempt has begun to repeat itself without end."""
        commands = self._call.begin(now)
        attempt = self._attempts[attempt_id]
        state = attempt.state
        if state.can_be_cut and state.committed is attempt:
            self.lifecycle.cut(state, Reason.REPETITION)
        return commands

    def paused(self, attempt_id: int, now: float) -> list[Command]:
        """The answer of this attempt is not being read, because its client is too slow. So its silence is not the
        replica's fault.
        """
        commands = self._call.begin(now)
        self._attempts[attempt_id].slot.pause(now)
        return commands

    def resumed(self, attempt_id: int, now: float) -> list[Command]:
        """The answer of this attempt is read again."""
        commands = self._call.begin(now)
        attempt = self._attempts[attempt_id]
        attempt.slot.resume(now)
        attempt.last_at = now
        if attempt.state.outcome is None:
            self.lifecycle.arm(attempt.state)
        return commands

    def finish(self, attempt_id: int, result: AttemptResult, now: float) -> list[Command]:
        """The attempt has ended: its connection is idle again or closed."""
        commands = self._call.begin(now)
        attempt = self._attempts[attempt_id]
        pool = attempt.replica.pool
        saturated = pool.saturated
        result = self._attempt_life.close(attempt_id, result)
        self._endings.judge(attempt, result)
        self._endings.conclude(attempt, result)
        self.scheduler.offer(pool, saturated)
        return commands

    def leave(self, request_id: int, now: float, why: Reason = Reason.CLIENT_GONE) -> list[Command]:
        """The client has left, or has not read for too long. Nothing more can be sent to it. Or the process that serves
        it is shutting down: it is sent an error.
        """
        commands = self._call.begin(now)
        state = self._requests.get(request_id)
        if state is not None:
            left = state.pool if state.waiting else None
            self.lifecycle.end(state, Outcome.REFUSED if why is Reason.SHUTTING_DOWN else Outcome.ABANDONED, why)
            if left is not None:
                self.scheduler.serve_behind(state, left)
        return commands

    def shut(self, now: float) -> list[Command]:
        """End every request that is still under way, because the time for draining is over."""
        commands = self._call.begin(now)
        for state in list(self._requests.values()):
            self.lifecycle.end(state, Outcome.REFUSED, Reason.SHUTTING_DOWN)
        return commands

    def fail(self, request_id: int, now: float) -> list[Command]:
        """End a request with an internal error, whatever its state, because an exception (a bug) was raised while it
        was handled.

        The caller ignores the `Refuse` if the client already has its answer.
        """
        commands = self._call.begin(now)
        state = self._requests.get(request_id)
        if state is not None:
            self.lifecycle.fail(state)
            if state.pool is not None and state.pool.queue:
                # the call that raised may have freed a slot without offering it to the queue
                self.scheduler.pump(state.pool)
        return commands

    # ---- what happens to replicas and to the policy

    def observe(self, replica_name: str, sample: Sample, now: float) -> list[Command]:
        """A health check, scrape or model list of a replica was answered, or failed."""
        commands = self._call.begin(now)
        replica = self.state.fleet.replica(replica_name)
        if replica is not None:
            self.changes.observed(replica, sample)
        return commands

    def drain(self, replica_name: str, on: bool, now: float) -> list[Command]:
        """Stop new requests to a replica (`on`), or let it serve again. Requests under way there go on."""
        commands = self._call.begin(now)
        replica = self.state.fleet.replica(replica_name)
        if replica is not None and replica.drained is not on:
            self.state.fleet.drain(replica, on, now)
            self.changes.moved(replica)
            self.scheduler.pump(replica.pool)
        return commands

    def told(self, source: str, load: GatewayLoad, now: float) -> list[Command]:
        """Another gateway in front of the same replicas, `source`, told its load. It counts beside the own one until
        the source tells another, or is silent for three intervals. A gateway that stops tells an empty load.
        """
        commands = self._call.begin(now)
        self.changes.told(source, load)
        return commands

    def share_limits(self, gateways: int, leases: Sequence[LimitLease], now: float) -> list[Command]:
        """So many gateways, this one included, share strict slots and limits; 0 if it is unknown: one strict slot then.
        Each has an equal part, or as much of a limit as its lease gives.
        """
        commands = self._call.begin(now)
        self.state.accounting.share(gateways or 1, leases, self.policy.tiers, now)
        for pool in self.state.fleet.share(gateways, now):
            self.scheduler.pump(pool)
        return commands

    def open_windows(self, windows: Sequence[QuotaWindow], now: float) -> list[Command]:
        """These days and months of quotas have begun. Called before the first request, too. Returns no commands."""
        commands = self._call.begin(now)
        self.state.accounting.tenants.open_windows(windows, self.policy.tiers, now)
        return commands

    def configure(self, policy: Policy, now: float) -> list[Command]:
        """Apply a policy. Learned facts stay, and requests under way keep the policy under which they arrived.

        Requests that wait for a removed pool go to another pool of their model.
        """
        commands = self._call.begin(now)
        gone = self.state.configure(policy)
        self.changes.check()
        self.changes.replace_waiting(gone)
        return commands

    def recall(self, memory: Mapping[str, object], away_s: float, now: float) -> list[Command]:
        """Take over what a predecessor had learned when it ended, `away_s` seconds (>= 0) ago.

        `memory`: that of its `memory` and `memory_of`, with tuples for lists. Called before its replicas get requests.
        """
        commands = self._call.begin(now)
        recall(self.state, memory, away_s)
        self.changes.check()
        return commands

    # ---- time

    def lagged(self, late_s: float, now: float) -> list[Command]:
        """The caller stood still for `late_s` and heard nobody: that time is not the silence of a replica, and first
        tokens that are awaited teach nothing.
        """
        commands = self._call.begin(now)
        for attempt in self._attempts.values():
            if attempt.prediction is not None and attempt.first_at is None:
                attempt.prediction.teach_nothing()
        for pool in self.state.fleet:
            for replica in pool.replicas.values():
                replica.health.silence.forgive(late_s, now)
        return commands

    def wake_at(self) -> float:
        """Time at which `wake` must be called next; inf if there is nothing to wait for."""
        if self.state.due:
            return -math.inf
        return min(self._timers.next_at(), self._hedges.timers.next_at()) if self._hedges.on else self._timers.next_at()

    def wake(self, now: float) -> list[Command]:
        """Act on every deadline that has passed."""
        commands = self._call.begin(now)
        self._alarms.ring()
        return commands
