"""Room in the queue of a pool, and each tenant's share of it."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.core.offer import Offer
from gateway.core.policy import AdmissionMode
from gateway.core.queueing.queued_request import QueuedRequest

ABOVE = "The queue was full: a request of a higher tier took this place."
BEYOND_SHARE = "The queue was full: this tenant held more than its share."


def place(offer: Offer) -> tuple[bool, Sequence[QueuedRequest], str]:
    """Whether the queue takes a request, the queued requests that give way to it, and the error text for these. The
    queue is limited in requests and in body bytes.

    A more urgent tier displaces a less urgent one. Among tiers of one priority, a heavier one displaces a lighter one.
    Within a tier, a tenant with less than its share displaces one with more. Requests of tiers whose admission mode is
    not `enforce` are always queued: only their deadline ends the wait.
    """
    request, queue, spec = offer.request, offer.pool.queue, offer.pool.spec
    count, held = queue.shared_with(request.tier)
    fits = count < spec.queue_limit and held + request.body_bytes <= spec.queue_bytes
    if fits or request.tier.admission.mode is not AdmissionMode.ENFORCE:
        return True, (), ""
    victim = queue.last_below(request.tier)
    if victim is not None and held - victim.request.body_bytes + request.body_bytes <= spec.queue_bytes:
        return True, (victim,), ABOVE
    if queue.holds(request.tier):
        by_count, spare_bytes = count >= spec.queue_limit, spec.queue_bytes - held
        victims = queue.of_tier(request.tier).yield_to(request.tenant, request.body_bytes, by_count, spare_bytes)
        if victims:
            return True, victims, BEYOND_SHARE
    return False, (), ""


def is_within_share(offer: Offer, now: float) -> bool:
    """Whether a tenant is within its fair share while others of its tier are not, so that these have to give way."""
    tier = offer.request.tier
    is_enforced = tier.admission.mode is AdmissionMode.ENFORCE
    return is_enforced and offer.pool.queue.of_tier(tier).shares.is_within(offer.request.tenant, now)
