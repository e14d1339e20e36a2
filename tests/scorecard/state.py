"""Counts of a gateway that must be zero once every client has left."""

from __future__ import annotations

from time import monotonic

from gateway.app import Gateway


def held(gw: Gateway) -> dict[str, int]:
    """All resources that are still held, by name; empty if none is."""
    snapshot = gw.controller.snapshot(monotonic())
    counts = {
        "requests under way": gw.driver.under_way,
        "requests that the server has": sum(place.open for place in gw.limits.occupancies.values()),
        "upstream calls": gw.api.upstreams.calls,
        "client connections": gw.limits.connections,
        "slots": sum(pool.in_flight for pool in snapshot.pools),
        "slots of replicas": sum(replica.in_flight for pool in snapshot.pools for replica in pool.replicas),
        "un-prefilled tokens": sum(r.unprefilled_tokens for pool in snapshot.pools for r in pool.replicas),
        "waiting": sum(pool.queued for pool in snapshot.pools),
        "waiting bytes": sum(pool.queued_bytes for pool in snapshot.pools),
        "tenants' requests": sum(tenant.in_flight for tenant in snapshot.tenants),
    }
    return {name: count for name, count in counts.items() if count}


def queued(gw: Gateway) -> int:
    """Requests that wait for a slot."""
    return sum(pool.queued for pool in gw.controller.snapshot(monotonic()).pools)
