"""Loads that other gateways told, by source. They are added to the own bookings, and never replace them.

A source that has been silent for three intervals is forgotten, with all that it told. So a gateway that dies frees its
share, and one that is slow to tell does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Final

from gateway.core.fleet.fleet import Fleet
from gateway.core.fleet.pool import Pool, Replica
from gateway.core.sample import NO_LOAD, GatewayLoad, PoolLoad, ReplicaLoad

SILENT_INTERVALS: Final = 3.0
"""Intervals without news after which a gateway is forgotten: two messages in a row may be lost."""


class OtherGateway:
    """The latest load of one gateway. `until`: time at which it is forgotten."""

    __slots__ = ("ejected", "pools", "replicas", "until")

    def __init__(self, load: GatewayLoad, until: float) -> None:
        self.replicas = {each.name: each for each in load.replicas}
        self.pools = {each.name: each for each in load.pools}
        self.ejected = dict(load.ejected)
        self.until = until


class OtherGateways:
    """The other gateways in front of the same replicas."""

    def __init__(self, fleet: Fleet, changed: Callable[[Replica, float], None]) -> None:
        """`changed` is called after the sum of a replica has changed, with the time."""
        self._fleet = fleet
        self._changed = changed
        self._sources: dict[str, OtherGateway] = {}

    def __len__(self) -> int:
        return len(self._sources)

    def told(self, source: str, load: GatewayLoad, now: float) -> list[Pool]:
        """Replace what `source` told before. Returns the pools whose load has changed."""
        old = self._sources.get(source)
        new = self._sources[source] = OtherGateway(load, now + SILENT_INTERVALS * load.interval_s)
        return self._add([new] if old is None else [old, new], now)

    def forget_silent(self, now: float) -> list[Pool]:
        """Forget the sources that have been silent for too long. Returns the pools whose load has changed."""
        gone = [name for name, source in self._sources.items() if source.until <= now]
        return self._add([self._sources.pop(name) for name in gone], now)

    def add_again(self, now: float) -> None:
        """Add all loads to the replicas and pools of a new policy."""
        self._add(list(self._sources.values()), now)

    def next_at(self) -> float:
        """Time at which the next source is forgotten; inf without any."""
        return min([source.until for source in self._sources.values()], default=math.inf)

    def _add(self, touched: Iterable[OtherGateway], now: float) -> list[Pool]:
        """Sum the loads again for all replicas and pools that these sources name."""
        pools: dict[Pool, None] = {}
        names = dict.fromkeys(name for source in touched for name in source.replicas)
        for name in names:
            replica = self._fleet.replica(name)
            if replica is not None and self._sum_replica(replica, now):
                pools[replica.pool] = None
        for name in dict.fromkeys(name for source in touched for name in source.ejected):
            ejected = self._fleet.replica(name)
            if ejected is not None:
                reasons = [source.ejected[name] for source in self._sources.values() if name in source.ejected]
                ejected.health.elsewhere = tuple(dict.fromkeys(reasons))
        for pool in pools:
            if pool.spec.strict_slots:
                pool.refresh(now)
        for name in dict.fromkeys(name for source in touched for name in source.pools):
            found = self._fleet.pool(name)
            if found is not None and self._sum_pool(found):
                pools[found] = None
        return list(pools)

    def _sum_replica(self, replica: Replica, now: float) -> bool:
        name = replica.spec.name
        told = [source.replicas[name] for source in self._sources.values() if name in source.replicas]
        total = _sum(name, told) if told else NO_LOAD
        if total == replica.others:
            return False
        replica.pool.share_replica(replica, total, now)
        self._changed(replica, now)
        return True

    def _sum_pool(self, pool: Pool) -> bool:
        name = pool.spec.name
        by_tier: dict[str, int] = {}
        waiting: dict[int, int] = {}
        for source in self._sources.values():
            load = source.pools.get(name, PoolLoad(name))
            for tier, count in load.by_tier:
                by_tier[tier] = by_tier.get(tier, 0) + count
            for priority, count in load.waiting:
                waiting[priority] = waiting.get(priority, 0) + count
        if by_tier == pool.others_by_tier and waiting == pool.others_waiting:
            return False
        pool.others_by_tier, pool.others_waiting = by_tier, waiting
        return True


def _sum(name: str, told: list[ReplicaLoad]) -> ReplicaLoad:
    return ReplicaLoad(
        name,
        in_flight=sum([each.in_flight for each in told]),
        unread_prompts=sum([each.unread_prompts for each in told]),
        unread_tokens=sum([each.unread_tokens for each in told]),
        held_tokens=sum([each.held_tokens for each in told]),
        growth_tokens=math.fsum([each.growth_tokens for each in told]),
        prompt_tokens_per_s=math.fsum([each.prompt_tokens_per_s for each in told]),
    )
