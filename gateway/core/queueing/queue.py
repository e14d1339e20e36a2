"""Queues of requests that wait for a slot, by pool, tier and tenant, and the order in which they are served.

scheduling/next_queued.py chooses which head is sent next, and to which replica.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from gateway.core.policy import Tier
from gateway.core.queueing.queued_request import QueuedRequest
from gateway.core.queueing.tier_queue import TierKey, TierQueue, by_turn

FLOOR_MARGIN: Final = 1.25
"""A tier's floor is multiplied by this. Whole requests are coarse: without it, ten seconds often miss the share."""
AT_STAKE_S: Final = 5.0
"""For this long after a loss, tiers of the same priority are served by weight."""


class PoolQueue:
    """The queue of one pool: a `TierQueue` for each tier, by strict priority. A tier below its floor goes first.

    Tiers of one priority are ordered by the latest starts of their heads. A request is lost if it is refused or times
    out for lack of capacity. While requests of a priority are lost, no order can save them all. So for `AT_STAKE_S`
    after a loss, tiers of higher weight go first.

    The caller limits the queue, in requests and in bytes of bodies. If not said otherwise, an operation takes O(log n)
    for n queued requests, times the number of tiers.
    """

    def __init__(self) -> None:
        self._tiers: dict[TierKey, TierQueue] = {}
        self._count = 0
        self._tickets = 0
        self._lost_at: dict[int, float] = {}
        """Time of the last lost request, by priority."""
        self.bytes = 0
        self.owes = False
        """Whether a waiting tier has fallen below its floor since the queue was last served."""

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[QueuedRequest]:
        """All queued requests, by priority and latest start."""
        return iter(sorted((state for tier_queue in self._tiers.values() for state in tier_queue), key=by_turn))

    def of_tier(self, tier: Tier) -> TierQueue:
        """The queue of a tier; created if missing, and kept when it is empty."""
        key = tier.priority, tier.name
        tier_queue = self._tiers.get(key)
        if tier_queue is None:
            tier_queue = self._tiers[key] = TierQueue(tier)
            self._tiers = dict(sorted(self._tiers.items()))
        return tier_queue

    def push(self, state: QueuedRequest, now: float) -> None:
        """Queue `state`. Its `deadline` and its forecast give its place."""
        self._tickets = max(self._tickets, state.last_ticket) + 1
        tier_queue = self.of_tier(state.request.tier)
        tier_queue.tier = state.request.tier
        tier_queue.push(state, self._tickets, now)
        self._count += 1
        self.bytes += state.request.body_bytes

    def remove(self, state: QueuedRequest, now: float) -> None:
        """Take `state` out of the queue."""
        self.of_tier(state.request.tier).remove(state, now)
        self._count -= 1
        self.bytes -= state.request.body_bytes

    def holds(self, tier: Tier) -> bool:
        """Whether any request of `tier` waits."""
        tier_queue = self._tiers.get((tier.priority, tier.name)) if self._count else None
        return tier_queue is not None and tier_queue.count > 0

    def position(self, state: QueuedRequest) -> int:
        """Place of a waiting request by priority and latest start, from 1 on; O(n)."""
        turn = by_turn(state)
        return 1 + sum(by_turn(other) < turn for tier_queue in self._tiers.values() for other in tier_queue)

    def counts(self) -> dict[int, int]:
        """Queued requests by priority; priorities without any are left out."""
        found: dict[int, int] = {}
        for tier_queue in self._tiers.values():
            if tier_queue.count:
                found[tier_queue.key[0]] = found.get(tier_queue.key[0], 0) + tier_queue.count
        return found

    def is_owed(self, tier: Tier) -> bool:
        """Whether `tier` has been served less than its floor."""
        return tier.floor > 0.0 and self.of_tier(tier).owed > 0.0

    def admitted_at(self, tier: Tier) -> float:
        """Time of the last admission in `tier`; -inf if there was none."""
        tier_queue = self._tiers.get((tier.priority, tier.name))
        return -math.inf if tier_queue is None else tier_queue.admitted_at

    def heads(self, now: float) -> list[QueuedRequest]:
        """The head of each tier, in the order in which they are to be served."""
        heads = [
            (tier_queue.owed <= 0.0, tier_queue.key[0], self._order(tier_queue, now), by_turn(head), head)
            for tier_queue in self._tiers.values()
            if (head := tier_queue.head(now))
        ]
        if len(heads) > 1:
            heads.sort(key=_place)
        return [entry[4] for entry in heads]

    def lost(self, tier: Tier, now: float) -> None:
        """Record that a request of `tier` was refused or timed out for lack of capacity."""
        self._lost_at[tier.priority] = now

    def at_stake(self, priority: int, now: float) -> bool:
        """Whether requests of this priority were lost lately, so that their tiers are served by weight."""
        at = self._lost_at.get(priority)
        return at is not None and now - at < AT_STAKE_S

    def _order(self, tier_queue: TierQueue, now: float) -> float:
        """Sort key of a tier among those of its priority."""
        return -tier_queue.tier.weight if self.at_stake(tier_queue.key[0], now) else 0.0

    def last_below(self, tier: Tier) -> QueuedRequest | None:
        """The queued request to shed first for a request of `tier`; None if none may be shed.

        Its tier is less urgent than `tier`, or has the same priority and a lower weight.
        """
        found: QueuedRequest | None = None
        for tier_queue in self._tiers.values():
            if tier_queue.count and _is_below(tier_queue, tier):
                least = tier_queue.least_savable()
                if least is not None and (found is None or _loss(least) > _loss(found)):
                    found = least
        return found

    def shared_with(self, tier: Tier) -> tuple[int, int]:
        """Number and body bytes of the queued requests that count against the queue's limits for a request of `tier`.

        Requests of lower tiers that may not be shed do not count, because they cannot make way.
        """
        count, held = self._count, self.bytes
        for tier_queue in self._tiers.values():
            if _is_below(tier_queue, tier):
                count -= tier_queue.fixed
                held -= tier_queue.fixed_bytes
        return count, held

    def ahead_of(self, tier: Tier, now: float) -> int:
        """Number of queued requests of the priority of `tier` and above. While requests are lost, tiers of lower weight
        do not count.
        """
        count, at_stake = 0, self.at_stake(tier.priority, now)
        for tier_queue in self._tiers.values():
            priority = tier_queue.key[0]
            if priority < tier.priority or (
                priority == tier.priority and not (at_stake and tier_queue.tier.weight < tier.weight)
            ):
                count += tier_queue.count
        return count

    def above(self, tier: Tier, now: float) -> tuple[int, float]:
        """(queued requests, arrivals per second) of the tiers above `tier`."""
        count, rate = 0, 0.0
        at_stake = self.at_stake(tier.priority, now)
        for tier_queue in self._tiers.values():
            priority = tier_queue.key[0]
            if priority < tier.priority or (
                at_stake and priority == tier.priority and tier_queue.tier.weight > tier.weight
            ):
                count += tier_queue.count
                rate += tier_queue.arrivals.per_s(now)
        return count, rate

    def served(self, tier: Tier, tokens: float) -> None:
        """Count `tokens` (below 0: take back) dispatched for `tier`. Waiting tiers are owed their floors of them."""
        key = tier.priority, tier.name
        for tier_queue in self._tiers.values():
            if tier_queue.tier.floor <= 0.0:
                continue
            owed = tier_queue.owed + tier_queue.tier.floor * FLOOR_MARGIN * tokens
            if tier_queue.key == key:
                # Service beyond the floor is not charged to the tier: no other tier needed it.
                owed = max(owed - tokens, -abs(tokens))
            elif not tier_queue.count:
                owed = min(owed, 0.0)
            elif tier_queue.owed <= 0.0 < owed:
                self.owes = True
            tier_queue.owed = owed


def _loss(state: QueuedRequest) -> tuple[int, float, float, int]:
    """Sort key: the request with the largest key is shed first."""
    return state.request.tier.priority, -state.request.tier.weight, -state.start_by, -state.request.id


def _is_below(tier_queue: TierQueue, tier: Tier) -> bool:
    """Whether the queue's tier is less urgent than `tier`, or has the same priority and a lower weight."""
    priority = tier_queue.key[0]
    return priority > tier.priority or (priority == tier.priority and tier_queue.tier.weight < tier.weight)


def _place(
    entry: tuple[bool, int, float, tuple[int, float, int], QueuedRequest],
) -> tuple[bool, int, float, tuple[int, float, int]]:
    return entry[0], entry[1], entry[2], entry[3]
