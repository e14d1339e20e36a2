"""The replicas of a pool and the slots in use on them, counted as they are taken and freed."""

from __future__ import annotations

import math

from gateway.core.health import Breaker
from gateway.core.model import Sample
from gateway.core.queue import DrainRate, WaitingRoom
from gateway.core.route import ROUTERS, Router
from gateway.core.rules import Pool, ReplicaSpec, Tier
from gateway.core.snapshot import PoolView, ReplicaState, ReplicaView


class Replica:
    """One engine as the controller sees it. Own counts first; the last scrape is kept beside them."""

    __slots__ = (
        "breaker",
        "context_tokens",
        "in_flight",
        "pool",
        "retired",
        "sample",
        "sample_at",
        "spec",
        "unprefilled_tokens",
    )

    def __init__(self, spec: ReplicaSpec, pool: PoolNow) -> None:
        self.spec = spec
        self.pool = pool
        self.breaker = Breaker()
        self.in_flight = 0
        self.unprefilled_tokens = 0
        self.retired = False
        self.context_tokens: int | None = None
        self.sample: Sample | None = None
        self.sample_at: float | None = None

    def view(self, now: float) -> ReplicaView:
        """A copy for people."""
        return ReplicaView(
            name=self.spec.name,
            url=self.spec.url,
            pool=self.pool.spec.name,
            state=self.breaker.state,
            in_flight=self.in_flight,
            unprefilled_tokens=self.unprefilled_tokens,
            failures=self.breaker.failures,
            sample=self.sample,
            sample_age_s=None if self.sample_at is None else now - self.sample_at,
        )


class PoolNow:
    """One pool: its replicas, its slots, its waiting room."""

    def __init__(self, spec: Pool) -> None:
        self.spec = spec
        self.replicas: dict[str, Replica] = {}
        self.in_flight = 0
        self.by_tier: dict[str, int] = {}
        self.room = WaitingRoom()
        self.drain = DrainRate()
        self.context_tokens: int | None = None
        self._open: list[Replica] = []
        self._slots = math.inf
        self._reserved: dict[str, int] = {}
        self._router: Router = ROUTERS[spec.router]()
        self.configure(spec)

    def configure(self, spec: Pool) -> None:
        """Take on a new specification; replicas that stay (same name, same URL) keep all that is known of them."""
        if spec.router != self.spec.router:
            self._router = ROUTERS[spec.router]()
        self.spec = spec
        kept = self.replicas
        self.replicas = {}
        for replica_spec in spec.replicas:
            old = kept.get(replica_spec.name)
            if old is not None and old.spec == replica_spec:
                self.replicas[replica_spec.name] = kept.pop(replica_spec.name)
            else:
                self.replicas[replica_spec.name] = Replica(replica_spec, self)
        for gone in kept.values():
            gone.retired = True
        self.refresh()

    def refresh(self) -> None:
        """Recount what depends on which replicas are up. Called when one changes, never per request."""
        self._open = [r for r in self.replicas.values() if r.breaker.state is not ReplicaState.DOWN]
        known = [r.context_tokens for r in self.replicas.values() if r.context_tokens is not None]
        self.context_tokens = min(known, default=None)
        per_replica = self.spec.slots
        self._slots = math.inf if per_replica is None else per_replica * len(self._open)
        self._reserved = (
            {}
            if per_replica is None
            else {tier: int(share * per_replica * len(self._open)) for tier, share in self.spec.reserve}
        )

    @property
    def alive(self) -> bool:
        """Whether any replica may be sent to, now or once it has a free slot."""
        return bool(self._open)

    @property
    def slots(self) -> int | None:
        """Slots of the replicas that get requests; None if unbounded."""
        return None if self._slots == math.inf else int(self._slots)

    def _may_take(self, tier: Tier) -> bool:
        """Whether `tier` may take one more slot: free ones less what is reserved, and unused, for other tiers."""
        if not self._reserved:
            return True
        free = self._slots - sum(r.in_flight for r in self._open)
        for other, reserved in self._reserved.items():
            if other != tier.name:
                free -= max(0, reserved - self.by_tier.get(other, 0))
        return free >= 1

    def pick(self, tier: Tier, avoid: Replica | None, random: float) -> Replica | None:
        """The replica that `tier` should use now; None if it has to wait. `random` in [0, 1) settles ties."""
        if not self._may_take(tier):
            return None
        limit = self.spec.slots if self.spec.slots is not None else math.inf
        free = [
            r
            for r in self._open
            if r.in_flight < limit and r is not avoid and (r.breaker.state is ReplicaState.UP or r.in_flight == 0)
        ]
        return self._router.pick(free, random) if free else None

    def take(self, replica: Replica, tier: str, prompt_tokens: int) -> None:
        """Open a slot. Paired with exactly one `free`."""
        self.in_flight += 1
        self.by_tier[tier] = self.by_tier.get(tier, 0) + 1
        replica.in_flight += 1
        replica.unprefilled_tokens += prompt_tokens

    def prefilled(self, replica: Replica, prompt_tokens: int) -> None:
        """The prompt of an open slot has been read by the engine."""
        replica.unprefilled_tokens -= prompt_tokens

    def free(self, replica: Replica, tier: str) -> None:
        """Close a slot."""
        self.in_flight -= 1
        self.by_tier[tier] -= 1
        replica.in_flight -= 1

    def view(self, now: float) -> PoolView:
        """A copy for people."""
        return PoolView(
            name=self.spec.name,
            in_flight=self.in_flight,
            queued=len(self.room),
            queued_bytes=self.room.bytes,
            queue_limit=self.spec.queue_limit,
            slots=self.slots,
            drain_rate=self.drain.per_s,
            replicas=tuple(r.view(now) for r in self.replicas.values()),
        )
