"""A pool and its members: its replicas, what a reload changes, and how a replica comes back into use."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from gateway.core.estimators.rates import DrainRate
from gateway.core.fleet.autoscale import Demand
from gateway.core.fleet.choice import ReplicaChoice
from gateway.core.fleet.health.replica_health import SWEEP_S
from gateway.core.fleet.imputed_load import ImputedLoad
from gateway.core.fleet.judging.probes import Probes
from gateway.core.fleet.replica import BaseReplica
from gateway.core.fleet.routing import ROUTERS, LeastPrefill
from gateway.core.pool_spec import PoolSpec, ReplicaSpec
from gateway.core.request import Request
from gateway.core.snapshot import PoolView, ReplicaState, ReplicaView

MIN_START: Final = 0.1  # share (0-1) of its slots that a replica has at the start of a slow start
MENDED_START: Final = 0.5  # `MIN_START` after good probes, when the replica's caches are warm


class Replica(BaseReplica):
    """One engine, with the pool that it serves, or served before a reload removed it."""

    __slots__ = ("pool",)

    def __init__(self, spec: ReplicaSpec, pool: Pool) -> None:
        super().__init__(spec)
        self.pool = pool


class Pool(ReplicaChoice[Replica]):
    """One pool: its replicas, their slots, and its queue."""

    def __init__(self, spec: PoolSpec) -> None:
        super().__init__(spec)
        self.drain = DrainRate()
        self.demand = Demand()
        self.imputed = ImputedLoad()
        self.probes: Probes[Replica] = Probes()
        self.configure(spec)

    def __repr__(self) -> str:
        load = f"{self.in_flight} in flight of {self.slots} slots, {len(self.queue)} queued"
        return f"<Pool {self.spec.name}, {load}, replicas {[*self.replicas.values()]}>"

    def configure(self, spec: PoolSpec, now: float = -math.inf) -> None:
        """Apply a new specification. Replicas with the same name and URL as before keep their state.

        A new replica gets a slow start. It is drained if its name or its server was drained before.
        """
        if spec.router != self.spec.router:
            self.router = ROUTERS[spec.router]()
        self.spec = spec
        self.knows_caches = spec.affinity and isinstance(self.router, LeastPrefill)
        kept = self.replicas
        since = now if kept else -math.inf  # nothing else could serve while the first replicas start slowly
        drained = {old.spec.server for old in kept.values() if old.drained}
        drained -= {old.spec.server for old in kept.values() if not old.drained}
        self.replicas = {}
        for replica_spec in spec.replicas:
            old = kept.get(replica_spec.name)
            if old is not None and old.spec == replica_spec:
                self.replicas[replica_spec.name] = kept.pop(replica_spec.name)
            else:
                new = self.replicas[replica_spec.name] = Replica(replica_spec, self)
                new.cache.holders = self.holders
                self.by_cache[new.cache] = new
                new.begin(since)
                if replica_spec.is_found:
                    new.health.await_check()
                new.drained = replica_spec.server in drained if old is None else old.drained
        for gone in kept.values():
            self.backoffs.until.pop(gone, None)
            self.names.listed(gone, frozenset())
            gone.cache.clear()
            del self.by_cache[gone.cache]
            gone.slots = gone.max_slots = gone.places = gone.spare = 0
            gone.is_free = gone.below_max = False
        self.refresh(now)

    def refresh(self, now: float) -> None:
        """Recount the pool after the state of a replica has changed. It is not called per request."""
        self.count_slots(now)
        self.is_starting = any(r.share < 1.0 for r in self.below_max)
        states = {replica.state for replica in self.replicas.values() if replica.slots}
        self.is_probing = ReplicaState.PROBING in states and len(states) > 1
        self.probes.due = [r for r in self.probes.due if r.state is ReplicaState.EJECTED and self._has(r)]
        self.contexts.compare([*self.replicas.values()])

    def check(self, now: float) -> float:
        """Eject outliers, end ejections, and advance slow starts. Returns seconds until the next call.

        The caller must call `refresh` afterwards.
        """
        health = self.spec.health
        self.probes.due = []
        busy = False
        self.judge.answers.fade(list(self.replicas.values()))
        if health.ejection is None:
            for replica in self.replicas.values():
                if not replica.health.is_typical:
                    replica.health.take_back(now)
        else:
            meant = [replica for replica in self.replicas.values() if not replica.drained]
            for back in self.judge.check(meant, health.ejection, now):
                mended = back.health.proven > 0.0
                back.begin(now - (MENDED_START * health.slow_start_s if mended else 0.0))
            self.probes.find(meant, health.ejection.probe_s, now)
            busy = self.in_flight > 0 or any(replica.health.out is not None for replica in meant)
        for replica in self.replicas.values():
            passed_s = now - replica.began_at
            is_new = passed_s < health.slow_start_s
            replica.share = max(MIN_START, passed_s / health.slow_start_s) if is_new else 1.0
            busy = busy or is_new
        return SWEEP_S if busy else math.inf

    def probe(self, request: Request, now: float) -> Replica | None:
        """An ejected replica to send `request` to; None if no probe is due."""
        ejection = self.spec.health.ejection
        return None if ejection is None else self.probes.take(request, ejection, self.acquired, now)

    def back_off(self, replica: Replica, until: float) -> None:
        """Begin a backoff of `replica`. Ignored for a removed replica, which gets no requests anyway."""
        if self._has(replica):
            self.backoffs.until[replica] = until

    def _has(self, replica: Replica) -> bool:
        """Whether `replica` belongs to this pool. A replica that a reload removed may still have requests."""
        return self.replicas.get(replica.spec.name) is replica

    def view(self, now: float, held: int, held_s: float, seen: Mapping[str, ReplicaView]) -> PoolView:
        """A copy for pages and metrics. `held`, `held_s`: see `held_by_pool`; `seen`: see `Inspector.snapshot`."""
        return PoolView(
            name=self.spec.name,
            in_flight=self.in_flight,
            queued=len(self.queue),
            queued_bytes=self.queue.bytes,
            queue_limit=self.spec.queue_limit,
            slots=self.slots,
            drain_rate=self.drain.per_s(),
            replicas=tuple(seen.get(name) or self.replica_view(r, now) for name, r in self.replicas.items()),
            panic=any(r.slots and r.severity for r in self.replicas.values()),
            held=held,
            held_s=held_s,
            demand=self.demand.view(),
            prefill_limit_tokens=None if self.prefill_limit == math.inf else self.prefill_limit,
            on_hold=len(self.held),
        )

    def replica_view(self, replica: Replica, now: float) -> ReplicaView:
        """A copy of one of its replicas."""
        return replica.view(self.spec.name, self.backoffs.left_s(replica, now), self.bound(replica, now), now)
