"""Decides when a request is sent, and to which replica: placement, queueing and dispatch."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gateway.core.commands import Cancel
from gateway.core.decision import Decision, Verdict
from gateway.core.fleet.pool import Pool, Replica
from gateway.core.offer import Offer
from gateway.core.queueing.held import Kind
from gateway.core.request import Request
from gateway.core.request_state import RequestState
from gateway.core.results import Outcome, Reason, RunningAttempt
from gateway.core.scheduling.attempts import AttemptLifecycle
from gateway.core.scheduling.lifecycle import Lifecycle
from gateway.core.scheduling.next_queued import NextQueued, has_room
from gateway.core.scheduling.placement import Unplaceable
from gateway.core.scheduling.state import State
from gateway.core.serving import fallback_of


def fallback(state: RequestState) -> Request | None:
    """A copy of the request for its fallback. None if there is none, or if it was sent to a replica before."""
    return None if state.attempts else fallback_of(state.request)


class Scheduler:
    """Gives slots to requests. Beside free slots, requests wait only for a home, model, adapter or cached prompt."""

    def __init__(self, state: State, life: Lifecycle, attempts: AttemptLifecycle) -> None:
        self._state = state
        self._life = life
        self._attempts = attempts
        self._call = state.call
        self._requests = state.requests
        self._timers = state.timers
        self._admission = state.admission
        self._patience = state.admission.patience
        self._forecaster = state.forecaster
        self._accounting = state.accounting
        self._places = state.places
        self._quarantine = state.quarantine
        self._random = state.random
        self._retry_after = state.retry_after
        self._next = NextQueued(state.requests, self._patience, state.random)

    # ---- a new request

    def enter_anywhere(self, state: RequestState) -> None:
        """Find a pool for a request, and enter it there. It may be put on hold or refused instead."""
        offer = self.place(state)
        # One that was sent before is charged to its tenant already.
        if offer is not None and (state.use is not None or self.reserve(state, offer)):
            self.enter(state, offer)

    def place(self, state: RequestState) -> Offer | None:
        """Find the pool that will serve the request; None if there is none. The request is on hold or refused then."""
        found = self._find(state)
        if isinstance(found, Offer):
            state.ask(found)
            return found
        state.prompt_tokens = found.prompt_tokens
        if found.why is Reason.NO_REPLICAS and not found.detail and self.hold(state):
            return None
        wait_s = None if found.retry_after_s is None else self._retry_after.jittered(found.retry_after_s)
        self._life.refuse(state, found.outcome, found.why, wait_s, found.detail)
        return None

    def _find(self, state: RequestState) -> Offer | Unplaceable:
        """The offer to a pool of the model, or to one of the fallback if those have no replica."""
        found = self._places.find(state.request, self._call.now)
        other = fallback(state) if isinstance(found, Unplaceable) and found.why is Reason.NO_REPLICAS else None
        there = found if other is None else self._places.find(other, self._call.now)
        return there if isinstance(there, Offer) else found

    def hold(self, state: RequestState) -> bool:
        """Keep the request until a pool of its route has a replica; take it out of its queue. Returns False if none of
        them keeps it.
        """
        request = state.request
        for spec in request.policy.route(request.model, request.tier):
            pool = self._state.fleet.pool(spec.name)
            hold = None if pool is None else pool.spec.hold
            if pool is None or hold is None or not spec.takes(state.prompt_tokens, request.batch):
                continue
            has_room = len(pool.held) < hold.limit and pool.held.bytes + request.body_bytes <= hold.bytes
            if has_room and self._call.now < request.body_at + hold.time_s:
                self._life.unqueue(state)
                self._state.on_hold += 1
                state.decision = state.forecast = None  # the wait for a replica teaches the forecasts nothing
                self._admission.promises.drop(state)
                self.keep(state, pool)
                return True
        return False

    def keep(self, state: RequestState, pool: Pool) -> None:
        """Put the request among those that the pool holds, with the time that the pool gives it."""
        state.held_by = pool
        pool.held.add(state, pool.only_home(state.request), fallback(state) is not None)
        self._life.arm(state)

    def reserve(self, state: RequestState, offer: Offer) -> bool:
        """Charge this request to its tenant's limits. Returns False if it exceeds them; the request is refused then."""
        exceeded = self._accounting.reserve(state, offer, self._call.now)
        if exceeded is None:
            return True
        detail = ""
        if exceeded.wait_s == math.inf:
            whole = "quota" if exceeded.why is Reason.LIMIT_QUOTA else "limit of a whole minute"
            detail = f"this request reserves {state.most_tokens} tokens, more than the {whole}"
        state.offer = None  # it comes to no pool
        self._life.refuse(state, Outcome.QUOTA, exceeded.why, exceeded.wait_s, detail)
        return False

    def enter(self, state: RequestState, offer: Offer) -> None:
        """Send the request to a replica of the offer's pool, queue it there, or shed it."""
        if self._life.has_expired(state):
            return
        decision = self._decide(offer)
        self._admission.promises.offered(offer, self._call.now)
        self._offered(state, offer)
        state.decided(decision)
        if decision.verdict is not Verdict.SHED:
            self._admit(state, decision)
            return
        self._forecaster.dropped(state)
        if not self.fall_back(state, may_wait=True):
            self._shed(state, offer.pool, decision.why, decision.detail)

    def adopt(self, state: RequestState, running: Sequence[RunningAttempt]) -> None:
        """Take over a request whose attempts another controller opened. Those at replicas that are gone are closed."""
        fleet = self._state.fleet
        known = [(each, replica) for each in running if (replica := fleet.replica(each.replica)) is not None]
        lost = [each for each in running if fleet.replica(each.replica) is None]
        self._call.commands.extend(Cancel(state.request.id, each.attempt) for each in lost)
        if any(each.committed for each in lost):
            self._life.refuse(state, Outcome.ERROR, Reason.UPSTREAM_ERROR)
        elif known:  # their replicas may be out of use
            offer = self._places.find(state.request, self._call.now, known[0][1].pool)
            assert isinstance(offer, Offer)
            state.ask(offer)
            self._accounting.take(state, offer, self._call.now)
            self._offered(state, offer)
            for each, replica in known:
                self._attempts.adopt(state, replica, each)
        else:
            self.enter_anywhere(state)

    def _offered(self, state: RequestState, offer: Offer) -> None:
        """Count the request in the demand of the offer's pool, and of its tier and tenant there."""
        offer.pool.demand.arrived(offer.all_likely)
        offer.pool.asked.used(offer.request.tier, self._call.now)
        self._accounting.offered(state, offer, self._call.now)

    def _decide(self, offer: Offer) -> Decision:
        if offer.pool.imputed:
            offer.pool.imputed.settle(self._call.now)
        return self._admission.decide(offer, self._random, self._call.now)

    def _shed(self, state: RequestState, pool: Pool, why: Reason, detail: str) -> None:
        """Refuse a request for which `pool` has no room in time."""
        self._life.refuse(state, Outcome.REFUSED, why, self._retry_after.for_slot(state, pool, self._call.now), detail)

    def _admit(self, state: RequestState, decision: Decision) -> None:
        """Send the request, or queue it."""
        now, pool, replica = self._call.now, decision.offer.pool, decision.replica
        if state.pool is not None and state.pool is not pool:
            pool.demand.arrived(decision.offer.all_likely)
        state.grant(decision.offer)
        if replica is None:
            self._queue(state, decision)
            return
        self._admission.admitted(state, decision, now)
        if pool.queue:  # it takes room before those that wait
            pool.drain.opened(True, now)
            state.took_room = True
        if pool.full:
            self._exceed(state, pool)
        self.dispatch(state, replica)
        if pool.queue and not pool.full and (pool.queue.owes or replica.in_flight > replica.slots):
            self.pump(pool)  # a tier below its floor may take kept slots; others, reserved slots that are not needed

    def _queue(self, state: RequestState, decision: Decision) -> None:
        """Queue the request for a slot of its pool. The requests that it displaces are refused."""
        now, offer = self._call.now, decision.offer
        pool = offer.pool
        for queued in decision.victims:
            victim = self._requests[queued.request.id]
            if not self.fall_back(victim):
                self._shed(victim, pool, Reason.EVICTED, decision.detail)
        self._admission.admitted(state, decision, now)
        state.waiting = state.waited = True
        pool.pressed_at = now
        pool.queue.push(state, now)
        self._life.arm(state)
        if pool.knows_caches:
            until = self._patience.ends_at(offer)
            if until > now:
                self._timers.advance(state.request.id, until)
        if decision.victims or has_room(pool, state.request.tier):
            self.pump(pool)  # it may be sent if others wait for certain replicas; a displaced one may leave room

    def fall_back(self, state: RequestState, may_wait: bool = False) -> bool:
        """Let the tier's fallback model serve a request that would be refused, if it can be in time. Returns
        whether it will.

        `may_wait`: whether the request may be queued there. A request that has waited already must be sent at once.
        """
        other = fallback(state)
        if other is None:
            return False
        now = self._call.now
        self._life.unqueue(state)
        self._forecaster.judged(state, True)
        offer = self._places.find(other, now)
        if isinstance(offer, Unplaceable) or offer.expires_at <= now:
            return False
        decision = self._decide(offer)
        if decision.verdict is Verdict.SHED or (decision.verdict is Verdict.WAIT and not may_wait):
            return False
        state.ask(offer)
        state.decided(decision)
        self._offered(state, offer)
        self._admit(state, decision)
        return True

    def _exceed(self, state: RequestState, pool: Pool) -> None:
        """Record that a new request exceeds the learned slots of `pool`: the mode of its tier is not `enforce`.

        One queued request of the same or a more urgent priority is sent as well. Otherwise a `shadow` tier would keep
        all slots, and an `enforce` tier of the same pool would wait in vain.
        """
        now = self._call.now
        pool.pressed_at = now
        for other in pool.queue.heads(now) if pool.queue else ():
            if other.request.tier.priority <= state.request.tier.priority:
                waiting = self._requests[other.request.id]
                replica = pool.pick(waiting.request, waiting.needs_tokens, self._random.random(), by_max=True)
                if replica is not None:
                    self._serve(waiting, replica)
                    return

    # ---- a slot

    def dispatch(self, state: RequestState, replica: Replica, hedge: bool = False) -> None:
        """Send the request to `replica`, or to an ejected one as a probe, if any replica takes it."""
        pool, request = replica.pool, state.request
        is_tied = pool.is_pinned(request) or pool.contexts.tell_apart(state.needs_tokens)
        is_tied = is_tied or bool(request.affinity.adapter)
        if pool.probes.due and not state.attempts and not is_tied:
            replica = self._probe(state, replica)
        self._attempts.open(state, replica, hedge)

    def _probe(self, state: RequestState, replica: Replica) -> Replica:
        """An ejected replica that is due for a probe, or else `replica`. Suspects and fresh failures never probe."""
        now = self._call.now
        is_suspect = state.body_hash is not None and self._quarantine.knows(state.body_hash, now)
        if is_suspect or replica.pool.judge.answers.doubts(state.request):
            return replica
        return replica.pool.probe(state.request, now) or replica

    def offer(self, pool: Pool, saturated: bool) -> None:
        """Offer new room in `pool` to its queue. `saturated`: whether the pool had no room before this call."""
        if pool.queue or self._state.on_hold:
            self.pump(pool)
        elif not saturated or not pool.saturated:
            pool.drain.opened(saturated, self._call.now)

    def serve_behind(self, state: RequestState, pool: Pool) -> None:
        """Serve the queue of `pool` after `state` has left it unsent. Others may have waited behind it, or for an
        adapter that made room for the adapter of `state`.
        """
        if pool.queue and (state.request.affinity.adapter or has_room(pool, state.request.tier)):
            self.pump(pool)

    def pump(self, pool: Pool) -> None:
        """Give free slots to queued requests.

        Requests on hold in any pool came earlier, and go first. A tier that leaves reserved slots free blocks no other.
        """
        for each in self._state.fleet if self._state.on_hold else ():
            self._grant(each)
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

    def _grant(self, pool: Pool) -> None:
        """Send requests on hold to replicas that have room for them, the most urgent first."""
        waiting: set[Kind] = set()
        while (first := pool.held.first(waiting)) is not None:
            kind, held = first
            state = self._requests[held.request.id]
            if self._life.has_expired(state):
                continue
            offer = self._find(state)
            if isinstance(offer, Unplaceable):
                if offer.outcome is Outcome.INVALID:
                    self._life.refuse(state, offer.outcome, offer.why, None, offer.detail)
                else:
                    waiting.add(kind)
                continue
            replica = offer.pool.pick(offer.request, offer.needs_tokens, self._random.random())
            if replica is None:
                waiting.add(kind)
                continue
            self._life.unqueue(state)
            state.ask(offer)
            if self._life.has_expired(state):  # by the timeouts of this pool
                continue
            if state.use is None:  # else it was sent before
                if not self.reserve(state, offer):
                    continue
                self._offered(state, offer)
            state.waited = True
            self.dispatch(state, replica)

    def _serve(self, state: RequestState, replica: Replica) -> None:
        """Send a queued request, or refuse it if it is too late for its objectives."""
        if self._life.has_expired(state):
            return
        now = self._call.now
        hopeless = self._admission.is_hopeless(state, replica, now)
        if not hopeless:
            replica.pool.drain.opened(True, now)
            replica.pool.queue.of_tier(state.request.tier).turns.sent(now)
            state.took_room = state.took_turn = True
            self._life.unqueue(state)
            self.dispatch(state, replica)
        elif not self.fall_back(state):
            self._shed(state, replica.pool, Reason.PREDICTED, hopeless)
