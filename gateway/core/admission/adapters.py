"""Lets other requests overtake those whose LoRA adapter has no room at any replica, but not for ever.

A request whose model is listed only by busy replicas is overtaken in the same way. It waits for these replicas.
A request without room for its adapter keeps its place in the queue. While the loaded adapters keep getting requests, it
would never be served. So once its turn is due (`due_at`), one replica gets no new requests for one of its loaded
adapters. If only its home may serve the request, its home is that replica. The replica makes room until no request
waits for the adapter any more.
"""

from __future__ import annotations

from gateway.core.fleet.eligibility import takes_now
from gateway.core.fleet.pool import Pool, Replica
from gateway.core.policy import Tier
from gateway.core.request import Request
from gateway.core.serving import sent_name


def is_blocked(request: Request, pool: Pool) -> bool:
    """Whether replicas have room for the tier of a request, but none of them for its model or adapter."""
    if not request.affinity.adapter and pool.names.is_taken_by_all(sent_name(request)):
        return False
    free = _able(request, pool.ready(request.tier), pool)
    return bool(free) and not any(takes_now(replica, request) for replica in free)


def goes_first(tier: Tier, pool: Pool) -> bool:
    """Whether a new request of `tier` overtakes all waiting requests of the tier, because each of them is blocked."""
    queue = pool.queue.of_tier(tier)
    if queue.adapted < queue.count and not pool.names.is_mixed:
        return False
    unlike = {_kind(state.request, pool): state.request for state in queue}
    return all(is_blocked(request, pool) for request in unlike.values())


def make_way(request: Request, pool: Pool) -> None:
    """Make room for the adapter of `request` at one replica: the adapter with the fewest requests there gets no new
    ones.

    Does nothing if a replica that may serve the request has room for the adapter, or is already making room.
    """
    adapter = request.affinity.adapter
    listing = [replica for replica in pool.replicas.values() if replica.slots and adapter in replica.adapters.listed]
    serving = _able(request, listing, pool)
    if any(replica.adapters.leaving or replica.adapters.takes(adapter) for replica in serving):
        return
    fewest: tuple[int, Replica, str] | None = None
    for replica in serving:
        for name, count in replica.adapters.in_use().items():
            if fewest is None or count < fewest[0]:
                fewest = count, replica, name
    if fewest is not None:
        fewest[1].adapters.make_way(fewest[2], adapter)


def end_way(adapter: str, pool: Pool) -> None:
    """Stop making room for `adapter` at replicas where no queued request needs it any more. O(replicas), and O(n log n)
    if room is made.
    """
    making = [replica for replica in pool.replicas.values() if replica.adapters.awaited == adapter]
    if not making:
        return
    for queued in pool.queue:
        if queued.request.affinity.adapter == adapter:
            wanted = _able(queued.request, making, pool)
            making = [replica for replica in making if replica not in wanted]
    for replica in making:
        replica.adapters.make_way("", "")


def _able(request: Request, replicas: list[Replica], pool: Pool) -> list[Replica]:
    """Those of `replicas` that may serve the request: all, or its home alone if it is pinned to that."""
    if not pool.is_pinned(request):
        return replicas
    home = pool.home(request)
    return [replica for replica in replicas if replica is home]


def _kind(request: Request, pool: Pool) -> tuple[bool, str, str]:
    """Returns whether only one replica may serve the request, the name of that replica, and the model or adapter. If
    one request is blocked, so are all others with the same values.
    """
    is_pinned = pool.is_pinned(request)
    home = pool.home(request) if is_pinned else None
    return is_pinned, "" if home is None else home.spec.name, sent_name(request)
