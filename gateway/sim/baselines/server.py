"""A replica as a balancer sees it. This file is compiled, because interpreted classes cannot inherit from compiled
ones.
"""

from __future__ import annotations

from gateway.core.fleet.health.replica_health import ReplicaHealth
from gateway.core.fleet.routing import RoutingTarget
from gateway.core.pool_spec import PoolSpec
from gateway.core.snapshot import ReplicaState


class Server(RoutingTarget):
    """One replica, with the balancer's own counts."""

    __slots__ = (
        "context_tokens",
        "health",
        "name",
        "pool",
    )

    def __init__(self, name: str, rank: int, pool: PoolSpec) -> None:
        super().__init__(rank)
        self.name = name
        self.pool = pool
        self.health = ReplicaHealth()
        self.context_tokens: int | None = None

    def up(self, now: float) -> bool:
        """Whether the replica may get requests. An open breaker whose time is over lets one request through."""
        if self.health.state is ReplicaState.DOWN:
            self.health.cooled(self.pool.health, now)
        return self.health.state is not ReplicaState.DOWN
