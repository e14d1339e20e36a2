"""Chooses which queued request of a tier is sent next, and to which replica.

Usually the head of the queue is sent, or a request close behind it with more of its prompt in a cache. If the head
waits for its busy home replica, for room for its LoRA adapter, or for a replica with its model, others overtake it.
"""

from __future__ import annotations

from gateway.core.admission.adapters import is_blocked, make_way
from gateway.core.admission.patience import Patience
from gateway.core.fleet.pool import Pool, Replica
from gateway.core.policy import AdmissionMode, Tier
from gateway.core.queueing.queued_request import QueuedRequest
from gateway.core.queueing.tier_queue import due_at
from gateway.core.request import Random
from gateway.core.request_state import RequestState, offer_of
from gateway.core.serving import sent_name


class NextQueued:
    """Chooses from the queues of all pools."""

    def __init__(self, requests: dict[int, RequestState], patience: Patience, random: Random) -> None:
        """`requests`: all requests under way, by id."""
        self._requests = requests
        self._patience = patience
        self._random = random

    def of_tier(self, head: QueuedRequest, pool: Pool, now: float) -> tuple[RequestState, Replica] | None:
        """Which request of a tier to send next, and to which replica; None if none can be sent now. `head`: the first
        in the tier's queue.

        Requests whose model or LoRA adapter has no room anywhere are skipped.
        """
        blocked: set[str] = set()
        waiting: QueuedRequest | None = head
        while waiting is not None:
            is_held = is_blocked(waiting.request, pool)
            if is_held and now >= due_at(waiting.request, waiting.deadline):
                make_way(waiting.request, pool)
            chosen = self._chosen(waiting, pool, blocked, now)
            if chosen is not None or not is_held:
                return chosen
            blocked.add(sent_name(waiting.request))
            waiting = pool.queue.of_tier(head.request.tier).head_but(blocked, now)
        return None

    def _chosen(
        self, head: QueuedRequest, pool: Pool, blocked: set[str], now: float
    ) -> tuple[RequestState, Replica] | None:
        """The request to send, and its replica; None if all wait. The request is `head` or one behind it."""
        first = self._requests[head.request.id]
        chosen: tuple[RequestState, Replica] | None = None
        if pool.knows_caches:
            others = pool.queue.of_tier(head.request.tier).earliest(blocked)
            waiting = [first, *(self._requests[other.request.id] for other in others if other is not head)]
            chosen = self._patience.chosen(waiting, pool, self._random.random(), now)
        else:
            replica = pool.pick(first.request, first.needs_tokens, self._random.random())
            if replica is not None:
                chosen = first, replica
        if chosen is None and may_be_passed(head, pool):
            return self._behind_bound(head, pool, blocked, now)
        return chosen

    def _behind_bound(
        self, head: QueuedRequest, pool: Pool, blocked: set[str], now: float
    ) -> tuple[RequestState, Replica] | None:
        """The first of all queued requests that can be sent, and its replica, while `head` waits for its home. O(n log
        n).

        Otherwise, requests that wait for one busy replica would keep all others from the free replicas.
        """
        waits: set[tuple[str, str, bool]] = set()
        for queued in pool.queue.of_tier(head.request.tier).in_order():
            request, state = queued.request, self._requests[queued.request.id]
            is_pinned = pool.is_pinned(request)
            home = pool.home(request) if is_pinned else None
            alike = (
                "" if home is None else home.spec.name,
                sent_name(request),
                pool.contexts.tell_apart(queued.needs_tokens),
            )
            if sent_name(request) in blocked or alike in waits or (is_pinned and home is None):
                continue  # a request with the same home, model and context waits, or its home is gone
            replica = pool.pick(request, queued.needs_tokens, self._random.random())
            if replica is None:
                waits.add(alike)
            elif not self._patience.waits_for_own(offer_of(state), replica, now):
                return state, replica
        return None


def may_be_passed(head: QueuedRequest, pool: Pool) -> bool:
    """Whether requests behind `head` may be sent before it, because it waits for its home, or for a longer context,
    while another replica has room.
    """
    is_tied = pool.is_pinned(head.request) or pool.contexts.tell_apart(head.needs_tokens)
    return is_tied and has_room(pool, head.request.tier)


def has_room(pool: Pool, tier: Tier) -> bool:
    """Whether any replica has a free slot, under the bounds that apply to `tier`."""
    return bool(pool.free_replicas if tier.admission.mode is AdmissionMode.ENFORCE else pool.below_max)
