"""Acts on changes of replicas and pools: samples, breakers, drains, reloads and silence."""

from __future__ import annotations

from gateway.core.fleet.health.evidence import EjectionReason
from gateway.core.fleet.health.replica_health import SWEEP_S
from gateway.core.fleet.judging.judge import LATE_FACTOR
from gateway.core.fleet.pool import Pool, Replica
from gateway.core.offer import Offer
from gateway.core.request_state import Attempt, RequestState
from gateway.core.sample import GatewayLoad, Sample
from gateway.core.scheduling.lifecycle import Lifecycle
from gateway.core.scheduling.scheduler import Scheduler
from gateway.core.scheduling.state import BREAKERS, OTHERS, State
from gateway.core.snapshot import ReplicaState


class ReplicaChanges:
    """Moves, rescues and serves requests when replicas change."""

    def __init__(self, state: State, life: Lifecycle, scheduler: Scheduler) -> None:
        self._state = state
        self._life = life
        self._call = state.call
        self._timers = state.timers
        self._fleet = state.fleet
        self._admission = state.admission
        self._forecaster = state.forecaster
        self._places = state.places
        self._retries = state.retries
        self._quarantine = state.quarantine
        self._scheduler = scheduler

    def observed(self, replica: Replica, sample: Sample) -> None:
        """Take a sample of a replica, and update its limits from the facts learned since the last sample."""
        pool, now, models = replica.pool, self._call.now, replica.models
        if self._fleet.observe(replica, sample, now):
            self.moved(replica)
        if replica.models is not models:
            self._replace_lost(pool)
        if sample.running is not None:
            self._forecaster.observed(replica, now)
        if pool.demand.is_due(now):
            pool.demand.tick(self._forecaster.costs(pool), pool.serving, pool.slots, now)
        self._admission.price(replica, now)
        pool.tune(replica, self._admission.prefill_limit(pool), now)
        pool.asked.keep(pool.by_tier, self._forecaster.costs(pool).stay_s, pool.ends.per_s(now), now)
        if pool.queue or self._state.on_hold:
            self._scheduler.pump(pool)
        if sample.healthy is False and replica.health.state is ReplicaState.DOWN:
            self._life.cancel_unanswered(replica)

    def moved(self, replica: Replica) -> None:
        """The breaker of `replica` changed. If its pool has no replica left, the pool's queue is moved to other pools.

        If there is no other pool, the requests are put on hold, or wait until their deadlines, since a replica may come
        back. A request whose home is lost is placed again at once, or refused.
        """
        pool, now = replica.pool, self._call.now
        health = pool.spec.health
        if replica.health.state is ReplicaState.DOWN:
            self._quarantine.died(replica.spec.server, now)
        self._life.check_by(now + (min(health.open_s, SWEEP_S) if health.slow_start_s else health.open_s))
        self._replace_lost(pool)
        if pool.alive:
            return
        for state in self._state.waiting(pool):
            if self._life.has_expired(state):
                continue
            other = self._places.find(state.request, now)
            if isinstance(other, Offer):
                self._life.unqueue(state)
                state.ask(other)
                self._scheduler.enter(state, other)
            else:
                self._scheduler.hold(state)
        if self._state.on_hold:
            self._scheduler.pump(pool)  # the fallback may have room for them

    def _replace_lost(self, pool: Pool) -> None:
        """Place queued requests again, or refuse them, if their home (down, drained, silent) or their model is lost."""
        for state in self._state.waiting(pool):
            home = pool.home(state.request) if pool.is_pinned(state.request) else None
            if (home is not None and not home.keeps_state) or not pool.may_serve(state.request):
                self._place_again(state)

    def _place_again(self, state: RequestState) -> None:
        """Take a request out of its queue. Place it in another pool or at its fallback, or else refuse it."""
        if not state.waiting or self._life.has_expired(state):
            return  # an earlier call may have moved a request into a full queue and displaced this one
        self._life.unqueue(state)
        self._scheduler.enter_anywhere(state)

    def replace_waiting(self, gone: list[Pool]) -> None:
        """Move the queued requests of removed pools to other pools of their models.

        Requests that continue a stored response of a removed replica are refused.
        """
        moved = [state for pool in gone for state in self._state.waiting(pool)]
        for pool in self._fleet:
            self._replace_lost(pool)
            for held in pool.held.all():
                state = self._state.requests[held.request.id]
                pool.held.remove(held)
                self._scheduler.keep(state, pool)  # the new policy may hold it for a shorter time
            for state in self._state.waiting(pool):
                if state.request.affinity.stored is not None and pool.home(state.request) is None:
                    moved.append(state)
        for state in moved:
            self._place_again(state)
        for state in [self._state.requests[held.request.id] for pool in gone for held in pool.held.all()]:
            self._life.unqueue(state)
            self._scheduler.enter_anywhere(state)

    def told(self, source: str, load: GatewayLoad) -> None:
        """Take the load of another gateway. Queued requests are sent where it has left room."""
        self._shared(self._state.others.told(source, load, self._call.now))

    def forget_silent(self) -> None:
        """Forget the load of gateways that have been silent for too long."""
        self._shared(self._state.others.forget_silent(self._call.now))

    def _shared(self, pools: list[Pool]) -> None:
        self._timers.set(OTHERS, self._state.others.next_at())
        for pool in pools:
            if pool.queue or self._state.on_hold:
                self._scheduler.pump(pool)

    def check(self) -> None:
        """Check all replicas for outliers, end backoffs that are over, set the next timer, and serve the queues."""
        kept = {r for pool in self._fleet if pool.queue for r in pool.replicas.values() if r.keeps_state}
        self._timers.set(BREAKERS, self._call.now + self._fleet.cool(self._call.now))
        for pool in self._fleet:
            if kept and any(replica in kept and not replica.keeps_state for replica in pool.replicas.values()):
                self._replace_lost(pool)
            self._rescue(pool)
            self._scheduler.pump(pool)

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
            if attempt.state.outcome is None and self._retries.may_be_made(attempt.state, attempt.replica, taken):
                taken += 1
                self._life.cancel_attempt(attempt)

    def _is_stuck(self, attempt: Attempt) -> bool:
        """Whether an attempt at a silent replica was sent before the ejection, and its first token is far too late."""
        if attempt.first_at is not None or attempt.cancelled or attempt.slot.paused:
            return False
        expected_s = 0.0 if attempt.prediction is None else attempt.prediction.expected_s
        is_late = self._call.now - attempt.opened_at > LATE_FACTOR * expected_s
        return is_late and attempt.opened_at < attempt.replica.health.out_at
