"""Bounds of a pool: how many slots each replica has, and whether a request of a tier finds room.

Two kinds of bounds keep a request from a replica. Configured bounds (`slots`, breaker, drain) apply to every tier.
Learned bounds (learned slots, slow start, unread prompts, KV cache) may be wrong, so they apply only in mode `enforce`.
"""

from __future__ import annotations

import math
from typing import Final, TypeVar

from gateway.core.fleet.replica import BaseReplica
from gateway.core.fleet.slot import Slots
from gateway.core.policy import Tier
from gateway.core.pool_spec import PoolSpec
from gateway.core.queueing.headroom import AskedTiers
from gateway.core.queueing.held import HeldRequests
from gateway.core.queueing.queue import PoolQueue
from gateway.core.snapshot import ReplicaState

R = TypeVar("R", bound=BaseReplica)

WINDOW_STEP: Final = 0.1  # smaller relative changes of the prefill limit are ignored: each one recounts all replicas
NO_MAX: Final = 2**31  # stands for "no configured limit"
REQUEST_TOKENS: Final = 200.0  # price of a request in flight, in prompt tokens, until costs are learned
PRICE_SHARE: Final = 0.1  # weight of each new price in the running mean
SERVING: Final = (ReplicaState.UP, ReplicaState.EJECTED)


class BoundedSlots(Slots[R]):
    """The slots of a pool's replicas under all bounds, and the requests that wait for one."""

    def __init__(self, spec: PoolSpec) -> None:
        super().__init__()
        self.spec = spec
        self.replicas: dict[str, R] = {}
        self.queue = PoolQueue()
        self.held = HeldRequests()
        self.asked = AskedTiers()
        self.pressed_at = -math.inf
        """Time when a request was last queued, or exceeded the learned slots."""
        self.request_tokens = REQUEST_TOKENS  # price of a request in flight
        self.gateways = 1
        """Gateways that share the replicas, this one included; 0 if that is unknown."""
        self._slots = 0
        self.serving = 0.0  # replicas that get requests; one in slow start counts as a fraction
        self._reserved: dict[str, int] = {}
        self._worst = 0
        """Replicas with a worse severity than this are not used: 0 healthy, 1 slow, 2 silent or failing."""

    def count_slots(self, now: float) -> None:
        """Recount all slots after the state of a replica has changed."""
        self.by_tier = {}
        self._worst = self._panic()
        for rank, replica in enumerate(self.replicas.values()):
            replica.rank = rank
            replica.kv_headroom = self.spec.kv_headroom
            replica.max_slots = self._max_slots_of(replica)
            replica.slots = self._slots_of(replica)
            if replica.slots:
                for tier, count in replica.by_tier.items():
                    self.by_tier[tier] = self.by_tier.get(tier, 0) + count
        self.free_replicas = []
        self.below_max = []
        self.places = self.spare = 0
        for replica in self.replicas.values():
            replica.is_free = replica.below_max = False
            replica.places = replica.spare = 0
            self.count_spare(replica)
            self.recount(replica, now)
            self.sync_max(replica)
        self._slots = sum(r.slots for r in self.replicas.values())
        self.serving = math.fsum(r.share for r in self.replicas.values() if r.slots)
        self._reserve()

    def _max_slots_of(self, replica: R) -> int:
        """Slots of a replica by configured bounds; 0 if it may not be used."""
        if replica.drained or replica.severity > self._worst:
            return 0
        match replica.health.state:
            case ReplicaState.DOWN:
                return 0
            case ReplicaState.PROBING:
                return 1
            case _:
                slots = NO_MAX if self.spec.slots is None else self.spec.slots
                if not self.spec.strict_slots:
                    return slots
                share = max(1, slots // (self.gateways or NO_MAX))
                return min(slots, share + replica.others.in_flight)

    def _slots_of(self, replica: R) -> int:
        """Slots of a replica by configured and learned bounds."""
        slots = replica.max_slots
        if slots == 0 or replica.health.state is ReplicaState.PROBING:
            return slots
        slots = min(slots, replica.learned.slots) if self.spec.slots is None else slots
        return slots if replica.share >= 1.0 else max(1, int(slots * replica.share))

    def _panic(self) -> int:
        """Worst severity that a replica in use may have. Silent and failing ones are used if there are no others."""
        meant = [r for r in self.replicas.values() if not r.drained and r.state is not ReplicaState.ABSENT]
        up = [replica.severity for replica in meant if replica.health.state in SERVING]
        ejection = self.spec.health.ejection
        well = up.count(0)
        if ejection is None or (well and well >= ejection.panic_share * len(meant)):
            return 0
        return 1 if min(up, default=2) < 2 else 2

    def _reserve(self) -> None:
        self._reserved = _shares(self.spec.reserve, self._slots)

    def tune(self, replica: R, prefill_limit: float, now: float) -> None:
        """Apply the bounds learned for `replica`. O(1), unless `prefill_limit` changes."""
        replica.expire_unread(now)
        replica.learned.kept = self.asked.most_kept / max(1.0, self.serving)
        replica.learned.learn(now if self.queue else self.pressed_at, now)
        price = replica.budget.request_tokens(replica.total_held_tokens)
        if price is not None:
            self.request_tokens += PRICE_SHARE * (price - self.request_tokens)
        slots = self._slots_of(replica)
        if slots != replica.slots:
            self._slots += slots - replica.slots
            replica.slots = slots
            self.count_spare(replica)
            self._reserve()
        if abs(prefill_limit - self.prefill_limit) > WINDOW_STEP * prefill_limit:
            self.prefill_limit = prefill_limit
            for other in self.replicas.values():
                self.recount(other, now)
        else:
            self.recount(replica, now)

    @property
    def alive(self) -> bool:
        """Whether any replica takes requests, now or once it has a free slot."""
        return self._slots > 0

    @property
    def slots(self) -> int:
        """Total slots of the replicas that get requests."""
        return self._slots

    @property
    def full(self) -> bool:
        """Whether learned bounds leave no room at any replica."""
        return not self.free_replicas

    @property
    def saturated(self) -> bool:
        """Whether a new request of a tier with mode `enforce` would have to wait."""
        return not self.free_replicas or len(self.queue) > 0

    @property
    def headroom(self) -> float:
        """Share (0-1) of the pool's slots that is free; 0 if it has no slots."""
        return self.spare / self._slots if self._slots else 0.0

    def may_take(self, tier: Tier, by_max: bool, had_slot: bool = False) -> bool:
        """Whether a slot is free for `tier`, besides the free slots that are reserved for other tiers. `had_slot`:
        whether the request was sent before. Then it does not make way for more urgent tiers, because it cannot be
        queued again.
        """
        if not by_max:
            is_owed = had_slot or self.queue.is_owed(tier)
            if self.asked.yields(tier, is_owed):
                return False
            kept = self.asked.kept_from(tier, is_owed)
            if self.others_waiting and not is_owed:
                kept += sum([count for priority, count in self.others_waiting.items() if priority < tier.priority])
            if kept and self.places <= kept:
                return False
            spare, reserve = self.spare, self._reserved
        elif self.spec.slots is None or not self._reserved:
            return True
        else:
            slots, spare = 0, 0
            for replica in self.replicas.values():
                slots += replica.max_slots
                spare += max(0, replica.max_slots - replica.total_in_flight)
            reserve = _shares(self.spec.reserve, slots)
        for other, reserved in reserve.items():
            if other != tier.name:
                spare -= max(0, reserved - self.by_tier.get(other, 0) - self.others_by_tier.get(other, 0))
        return spare > 0


def _shares(reserve: tuple[tuple[str, float], ...], slots: int) -> dict[str, int]:
    # 1e-6 is added, because shares are not exact in binary: .29 of 100 is 28.999999999999996.
    return {tier: int(share * slots + 1e-6) for tier, share in reserve}
