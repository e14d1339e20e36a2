"""Requests whose LoRA adapter has no room at any replica: other requests overtake them, but not for ever.

Such a request keeps its place in the queue. It would never be served while the loaded adapters keep getting requests.
So once its turn is due (`due_at`), one replica gets no new requests for one of its loaded adapters. This ends when no
request waits for the adapter any more, since it was sent or has left.
"""

from __future__ import annotations

from gateway.core.fleet.pool import Pool, Replica
from gateway.core.policy import Tier
from gateway.core.request import Request


def is_blocked(request: Request, pool: Pool) -> bool:
    """Whether some replica has room for the request's tier, but none has room for its adapter."""
    if not request.adapter:
        return False
    free = pool.candidates(request.tier)
    return bool(free) and not any(replica.adapters.takes(request.adapter) for replica in free)


def goes_first(tier: Tier, pool: Pool) -> bool:
    """Whether a new request of `tier` overtakes all waiting requests of the tier, since each of them is blocked."""
    queue = pool.queue.of_tier(tier)
    if queue.adapted < queue.count:
        return False
    return all(is_blocked(request, pool) for request in {live.request.adapter: live.request for live in queue}.values())


def make_way(adapter: str, pool: Pool) -> None:
    """Make room for `adapter` at one replica: the adapter with the fewest requests there gets no new ones.

    Does nothing if a replica is already making room, or has some.
    """
    serving = [replica for replica in pool.replicas.values() if replica.slots and adapter in replica.adapters.listed]
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
    """Make room for `adapter` no longer, if no queued request wants it. O(replicas), and O(n log n) if room is made."""
    making = [replica for replica in pool.replicas.values() if replica.adapters.awaited == adapter]
    if making and not any(queued.request.adapter == adapter for queued in pool.queue):
        for replica in making:
            replica.adapters.make_way("", "")
