"""Decides when a request is sent, and to which replica: placement, queueing, dispatch, retries and hedges."""

from __future__ import annotations

import math

from gateway.core.admission.admission import Decision, Verdict
from gateway.core.deadlines import next_deadline, slo_deadline
from gateway.core.fleet.evidence import EVIDENCE, EjectionReason, Says, may_kill, seen_of
from gateway.core.fleet.health import SWEEP_S
from gateway.core.fleet.judge import LATE_FACTOR
from gateway.core.fleet.pool import Pool, Replica
from gateway.core.policy import OnTotal
from gateway.core.redundancy.retries import NOT_ITS_FAULT, OWN_REFUSALS, is_retried
from gateway.core.request_state import Attempt, RequestState
from gateway.core.results import AttemptOutcome, AttemptResult, Outcome, Reason
from gateway.core.sample import Sample
from gateway.core.scheduling.lifecycle import Lifecycle
from gateway.core.scheduling.next_queued import NextQueued, has_room
from gateway.core.scheduling.state import BREAKERS, State
from gateway.core.serving import fallback_of
from gateway.core.snapshot import ReplicaState


class Scheduler:
    """Gives slots to requests. Beside free slots, requests wait only for a home, model, adapter or cached prompt."""

    def __init__(self, state: State, lifecycle: Lifecycle) -> None:
        self._state = state
        self._life = lifecycle
        self._call = state.call
        self._requests = state.requests
        self._timers = state.timers
        self._fleet = state.fleet
        self._admission = state.admission
        self._patience = state.admission.patience
        self._forecaster = state.forecaster
        self._accounting = state.accounting
        self._places = state.places
        self._retries = state.retries
        self._hedges = state.hedges
        self._quarantine = state.quarantine
        self._random = state.random
        self._retry_after = state.retry_after
        self._next = NextQueued(state.requests, self._patience, state.random)
        self._left: dict[Pool, None] = {}
        """Pools whose queues are served at the end of `ring`, because queued requests have timed out."""

    # ---- a new request

    def place(self, live: RequestState) -> Pool | None:
        """Find the pool that will serve the request; None if there is none. The request is refused then."""
        found = self._places.find(live, self._call.now)
        if isinstance(found, Pool):
            return found
        if found.why is Reason.NO_REPLICAS:
            own, other = live.request, fallback_of(live.request)
            if other is not None:
                live.request = other
                pool = self._places.find(live, self._call.now)
                if isinstance(pool, Pool):
                    return pool
                live.request = own
        wait_s = None if found.retry_after_s is None else self._retry_after.jittered(found.retry_after_s)
        self._life.refuse(live, found.outcome, found.why, wait_s, found.detail)
        return None

    def reserve(self, live: RequestState, pool: Pool) -> bool:
        """Charge this request to its tenant's limits. Returns False if it exceeds them; the request is refused then."""
        live.cap()
        exceeded = self._accounting.reserve(live, pool, self._call.now)
        if exceeded is None:
            return True
        detail = ""
        if exceeded.wait_s == math.inf:
            detail = f"this request reserves {live.most_tokens} tokens, more than the limit of a whole minute"
        self._life.refuse(live, Outcome.QUOTA, exceeded.why, exceeded.wait_s, detail)
        return False

    def enter(self, live: RequestState, pool: Pool) -> None:
        """Send the request to a replica of `pool`, queue it there, or shed it."""
        now = self._call.now
        live.enter(pool)
        if live.waited:
            live.unjudge()  # it comes from the queue of another pool, whose verdict does not apply here
        pool.asked.used(live.request.tier, now)
        self._accounting.offered(live, pool, now)
        live.deadline = slo_deadline(live)
        if self._life.has_expired(live):
            return
        if pool.imputed:
            pool.imputed.settle(now)
        decision = self._admission.arrives(live, pool, self._random, now)
        self._admission.promises.offered(live, pool, now)
        if decision.verdict is not Verdict.SHED:
            self._admit(live, pool, decision)
            return
        self._forecaster.dropped(live)
        if not self._fall_back(live, may_wait=True):
            self._shed(live, pool, decision.why, decision.detail)

    def _shed(self, live: RequestState, pool: Pool, why: Reason, detail: str) -> None:
        """Refuse a request for which `pool` has no room in time."""
        self._life.refuse(live, Outcome.REFUSED, why, self._retry_after.for_slot(live, pool, self._call.now), detail)

    def _admit(self, live: RequestState, pool: Pool, decision: Decision) -> None:
        """Send the request, or queue it."""
        now = self._call.now
        replica = decision.replica
        if replica is None:
            self._queue(live, pool, decision)
            return
        if replica.pool is not pool:
            live.pass_on(pool, replica.pool)
            pool = replica.pool
        self._admission.admitted(live, pool, now)
        if pool.full:
            self._exceed(live, pool)
        self.dispatch(live, replica)
        if pool.queue and not pool.full and (pool.queue.owes or replica.in_flight > replica.slots):
            self.pump(pool)  # a tier below its floor may take kept slots; others, reserved slots that are not needed

    def _queue(self, live: RequestState, pool: Pool, decision: Decision) -> None:
        """Queue the request for a slot of `pool`. The requests that it displaces are refused."""
        now = self._call.now
        for queued in decision.victims:
            victim = self._requests[queued.request.id]
            if not self._fall_back(victim):
                self._shed(victim, pool, Reason.EVICTED, decision.detail)
        self._admission.admitted(live, pool, now)
        live.waiting = live.waited = True
        pool.pressed_at = now
        pool.queue.push(live, now)
        self._life.arm(live)
        if pool.knows_caches:
            until = self._patience.ends_at(live, pool)
            if until > now:
                self._timers.advance(live.request.id, until)
        if decision.victims or has_room(pool, live.request.tier):
            self.pump(pool)  # it may be sent if others wait for certain replicas; a displaced one may leave room

    def _fall_back(self, live: RequestState, may_wait: bool = False) -> bool:
        """Let the tier's fallback model serve a request that would be refused, if it can be in time. Returns
        whether it will.

        `may_wait`: whether the request may be queued there. A request that has waited already must be sent at once.
        """
        own, other = live.request, fallback_of(live.request)
        if other is None:
            return False
        now = self._call.now
        self._life.unqueue(live)
        self._forecaster.judged(live, True, now)
        before = live.standing()
        live.unjudge()
        live.request = other
        pool = self._places.find(live, now)
        if isinstance(pool, Pool):
            live.move(pool)
            if next_deadline(live)[0] > now:
                live.deadline = slo_deadline(live)
                if pool.imputed:
                    pool.imputed.settle(now)
                decision = self._admission.arrives(live, pool, self._random, now)
                if decision.verdict is Verdict.SEND or (decision.verdict is Verdict.WAIT and may_wait):
                    pool.asked.used(live.request.tier, now)
                    self._accounting.offered(live, pool, now)
                    live.pass_on(before[0], pool)
                    self._admit(live, pool, decision)
                    return True
                self._forecaster.dropped(live)
        live.request = own
        live.restore(before)
        return False

    def _exceed(self, live: RequestState, pool: Pool) -> None:
        """Record that a new request exceeds the learned slots of `pool`: the mode of its tier is not `enforce`.

        One queued request of the same or a more urgent priority is sent as well. Otherwise a `shadow` tier would keep
        all slots, and an `enforce` tier of the same pool would wait in vain.
        """
        now = self._call.now
        pool.pressed_at = now
        for other in pool.queue.heads(now) if pool.queue else ():
            if other.request.tier.priority <= live.request.tier.priority:
                replica = pool.pick(other, None, self._random.random(), by_max=True)
                if replica is not None:
                    self._serve(self._requests[other.request.id], replica)
                    return

    # ---- a slot

    def dispatch(self, live: RequestState, replica: Replica, hedge: bool = False) -> None:
        """Send the request to `replica`, or to an ejected one as a probe, if any replica takes it."""
        pool, request = replica.pool, live.request
        is_tied = bool(request.adapter) or pool.is_bound(request) or pool.contexts.tell_apart(live)
        if pool.probes and not live.attempts and not is_tied:
            replica = self._probe(live, replica)
        self._life.open(live, replica, hedge)

    def _probe(self, live: RequestState, replica: Replica) -> Replica:
        """An ejected replica that is due for a probe, or else `replica`. Suspects and fresh failures never probe."""
        now = self._call.now
        is_suspect = live.body_hash is not None and self._quarantine.knows(live.body_hash, now)
        if is_suspect or replica.pool.judge.doubts(live.request):
            return replica
        return replica.pool.probe(live.request, now) or replica

    def offer(self, pool: Pool, saturated: bool) -> None:
        """Offer new room in `pool` to its queue. `saturated`: whether the pool had no room before this call."""
        if pool.queue:
            self.pump(pool)
        elif not saturated or not pool.saturated:
            pool.drain.opened(saturated, self._call.now)

    def serve_behind(self, live: RequestState, pool: Pool) -> None:
        """Serve the queue of `pool` after `live` has left it unsent. Others may have waited behind it, or for an
        adapter that made room for the adapter of `live`.
        """
        if pool.queue and (live.request.adapter or has_room(pool, live.request.tier)):
            self.pump(pool)

    def pump(self, pool: Pool) -> None:
        """Give free slots to queued requests.

        A tier that must leave reserved slots free does not block other tiers.
        """
        served = True
        while served:
            served = False
            for head in pool.queue.heads(self._call.now):
                chosen = self._next.of_tier(head, pool, self._call.now)
                if chosen is None:
                    continue
                served = True
                self._serve(*chosen)
                break
        pool.queue.owes = False

    def _serve(self, live: RequestState, replica: Replica) -> None:
        """Send a queued request, or refuse it if it is too late for its objectives."""
        if self._life.has_expired(live):
            return
        now = self._call.now
        hopeless = self._admission.is_hopeless(live, replica, now)
        if not hopeless:
            replica.pool.drain.opened(True, now)
            replica.pool.queue.of_tier(live.request.tier).turns.sent(now)
            self._life.unqueue(live)
            self.dispatch(live, replica)
        elif not self._fall_back(live):
            self._shed(live, replica.pool, Reason.PREDICTED, hopeless)

    # ---- an attempt that ended

    def judge(self, attempt: Attempt, finish: AttemptResult) -> None:
        """Update health, quarantine and backoff of the replica after an attempt has ended."""
        live, replica = attempt.live, attempt.replica
        seen = seen_of(finish)
        live.body_hash = live.body_hash if finish.body_hash is None else finish.body_hash
        moved = self._fleet.ended(replica, finish, live.request, live.body_hash, self._call.now)
        if EVIDENCE[seen].says is Says.ODD and replica.pool.judge.is_its_own(replica):
            replica.pool.imputed.add(attempt.slot, self._forecaster.costs(replica.pool).stay_s, self._call.now)
        if finish.body_hash is not None and may_kill(seen):
            for other in self._life.suspect(live, replica, finish.body_hash):
                if other.pool is not None and other.pool is not replica.pool:  # the caller serves that pool
                    self.serve_behind(other, other.pool)
        for each in moved:
            self.breaker_moved(each)
        self._life.back_off(replica, finish)

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
        elif own_refusal and replica.pool.judge.differs(replica) and self._retry(live, attempt, in_pool=True):
            pass
        elif answer:
            self._life.answered(live, attempt, end)
        elif end in NOT_ITS_FAULT and (self._retry(live, attempt) or self._repeat(live, attempt)):
            pass
        elif not self._may_be_retried(live, end, finish) or not self._retry(live, attempt):
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
            live.enter(replica.pool)
        self._send_again(live, replica)
        return True

    def _repeat(self, live: RequestState, failed: Attempt) -> bool:
        """Send the request to the same replica once more, or end it if no time is left; False if it may not."""
        if not self._retries.again(live, failed):
            return False
        self._send_again(live, failed.replica)
        return True

    def _send_again(self, live: RequestState, replica: Replica) -> None:
        if not self._life.has_expired(live):
            self.dispatch(live, replica)

    # ---- replicas and pools

    def observed(self, replica: Replica, sample: Sample) -> None:
        """Take a sample of a replica, and update its limits from the facts learned since the last sample."""
        pool, now, models = replica.pool, self._call.now, replica.models
        if self._fleet.observe(replica, sample, now):
            self.breaker_moved(replica)
        if replica.models is not models:
            self._replace_lost(pool)
        if sample.running is not None:
            self._forecaster.observed(replica, now)
        if pool.demand.is_due(now):
            pool.demand.tick(self._forecaster.costs(pool), pool.serving, pool.slots, now)
        self._admission.price(replica, now)
        pool.tune(replica, self._admission.prefill_limit(pool), now)
        pool.asked.keep(pool.by_tier, pool.ends.per_s(now), now)
        if pool.queue:
            self.pump(pool)
        if sample.healthy is False and replica.health.state is ReplicaState.DOWN:
            self._life.cancel_unanswered(replica)

    def breaker_moved(self, replica: Replica) -> None:
        """The breaker of `replica` changed. If its pool has no replica left, the pool's queue is moved to other pools.

        If there is no other pool, the requests wait until their deadlines, since a replica may come back. A request
        whose home is lost is placed again at once, or refused.
        """
        pool, now = replica.pool, self._call.now
        health = pool.spec.health
        if replica.health.state is ReplicaState.DOWN:
            self._quarantine.died(replica.spec.server, now)
        self._life.check_by(now + (min(health.open_s, SWEEP_S) if health.slow_start_s else health.open_s))
        self._replace_lost(pool)
        if pool.alive:
            return
        for live in self._state.waiting(pool):
            if self._life.has_expired(live):
                continue
            other = self._places.find(live, now)
            if isinstance(other, Pool):
                self._life.unqueue(live)
                self.enter(live, other)

    def _replace_lost(self, pool: Pool) -> None:
        """Place queued requests again, or refuse them, if their home (down, drained, silent) or their model is lost."""
        for live in self._state.waiting(pool):
            home = pool.home(live.request) if pool.is_bound(live.request) else None
            if (home is not None and not home.keeps_state) or not pool.may_serve(live.request):
                self._place_again(live)

    def _place_again(self, live: RequestState) -> None:
        """Take a request out of its queue. Place it in another pool or at its fallback, or else refuse it."""
        if not live.waiting or self._life.has_expired(live):
            return  # an earlier call may have moved a request into a full queue and displaced this one
        self._life.unqueue(live)
        other = self.place(live)
        if other is not None:
            self.enter(live, other)

    def replace_waiting(self, gone: list[Pool]) -> None:
        """Move the queued requests of removed pools to other pools of their models.

        Requests that continue a stored response of a removed replica are refused.
        """
        moved = [live for pool in gone for live in self._state.waiting(pool)]
        for pool in self._fleet:
            self._replace_lost(pool)
            for live in self._state.waiting(pool):
                if live.request.stored is not None and pool.home(live.request) is None:
                    moved.append(live)
        for live in moved:
            self._place_again(live)

    def check(self) -> None:
        """Check all replicas for outliers, end backoffs that are over, set the next timer, and serve the queues."""
        kept = {r for pool in self._fleet if pool.queue for r in pool.replicas.values() if r.keeps_state}
        self._timers.set(BREAKERS, self._call.now + self._fleet.cool(self._call.now))
        for pool in self._fleet:
            if kept and any(replica in kept and not replica.keeps_state for replica in pool.replicas.values()):
                self._replace_lost(pool)
            self._rescue(pool)
            self.pump(pool)

    def _rescue(self, pool: Pool) -> None:
        """Cancel attempts that wait for a first token at silent replicas, so that their requests are retried elsewhere.

        At most as many are cancelled as other replicas have room for. The rest may still be answered. A replica is
        silent by its streams or its metrics, so unstreamed answers hang there as well. A probe is not cancelled,
        because it tests whether the silence lasts. Nor is a prompt that is expected to take that long.
        """
        silent = [r for r in pool.replicas.values() if r.health.out is EjectionReason.STALLED and not r.slots]
        if not silent or pool.queue:
            return
        taken, spare = 0, round(pool.headroom * pool.slots)
        for attempt in self._state.attempts.values():
            if attempt.replica not in silent or taken >= spare or not self._is_stuck(attempt):
                continue
            if attempt.live.outcome is None and self._retries.may_be_made(attempt.live, attempt.replica, taken):
                taken += 1
                self._life.cancel_attempt(attempt)

    def _is_stuck(self, attempt: Attempt) -> bool:
        """Whether an attempt at a silent replica was sent before the ejection, and its first token is far too late."""
        if attempt.first_at is not None or attempt.cancelled or attempt.slot.paused:
            return False
        expected_s = 0.0 if attempt.facts is None else attempt.facts.expected_s
        is_late = self._call.now - attempt.opened_at > LATE_FACTOR * expected_s
        return is_late and attempt.opened_at < attempt.replica.health.out_at

    # ---- time

    def ring(self) -> None:
        """Act on every timer that has fired."""
        now, due = self._call.now, self._state.due
        due.extend(self._timers.due(now))
        while due:
            key = self._state.woken = due.popleft()
            if key == BREAKERS:
                self._life.check_by(now + SWEEP_S)  # set first, so that a check that raises an exception is repeated
                self.check()
            elif (live := self._requests.get(key)) is not None:
                self._rang(live)  # None: serving the queue at an earlier timer has ended this request
        while self._left:  # after all timers, since a whole queue may time out at once
            self.pump(self._left.popitem()[0])
        if self._hedges.on:
            self._hedge()

    def _rang(self, live: RequestState) -> None:
        """Handle the timer of a request. It fires at the request's deadline or before."""
        at, why = next_deadline(live)
        if at > self._call.now:
            self._timers.set(live.request.id, at)
            self._prompt_due(live)
            if live.waiting and live.pool is not None:
                self.pump(live.pool)
            return
        left = live.pool if live.waiting else None
        if why is Reason.QUEUE_TIMEOUT and live.waiting and self._fall_back(live):
            pass
        elif why is Reason.TOTAL_TIMEOUT and live.request.tier.on_total is OnTotal.CUT and live.can_be_cut:
            self._life.cut(live, why)
        else:
            self._life.expire(live, why)
        if left is not None:
            self._left[left] = None

    def _prompt_due(self, live: RequestState) -> None:
        """Count the prompt of an unstreamed answer as read, because its predicted TTFT has passed. Serve the queue."""
        if live.visible:
            return
        for attempt in live.open:
            pool = attempt.replica.pool
            saturated = pool.saturated
            attempt.replica.expire_unread(self._call.now)
            pool.sync(attempt.replica, self._call.now)
            self.offer(pool, saturated)

    def _hedge(self) -> None:
        """Send a duplicate of each request whose first token is late, if the hedging rules allow it."""
        for key in self._hedges.due(self._call.now):
            self._state.woken = key
            live = self._requests.get(key)
            replica = None if live is None else self._hedges.replica_for_duplicate(live, self._call.now)
            if live is not None and replica is not None:
                self.dispatch(live, replica, hedge=True)
