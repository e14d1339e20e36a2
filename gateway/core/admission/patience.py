"""Matches queued requests to replicas by prefix cache. Some requests wait for the replica that has their prompt cached.

A prompt sent to a replica that has not cached it costs other requests time, too. All requests there wait while the
tokens are read again, and the tokens displace other prompts from the cache. Under load this effect grows by itself.
Fewer prompts are found in caches, more tokens are read, queues grow, and more requests go to replicas without their
prompt. So a request waits for the replica with its prompt at most as long as another replica would need to read the
cached tokens.

Once its turn in the queue is due (`due_at`), a request takes any replica.
"""

from __future__ import annotations

from gateway.core.fleet.pool import Pool, Replica
from gateway.core.forecast.forecaster import Forecaster
from gateway.core.offer import Offer
from gateway.core.policy import AdmissionMode, Tier
from gateway.core.queueing.tier_queue import LOOKED_AHEAD, due_at
from gateway.core.request_state import RequestState, offer_of


class Patience:
    """Compares queued requests by their cached prompts.

    It has an effect only in pools whose router knows prefix caches.
    """

    def __init__(self, forecaster: Forecaster) -> None:
        self._forecaster = forecaster

    def passes(self, tier: Tier, pool: Pool) -> bool:
        """Whether a new request of `tier` overtakes waiting requests, because the first of them leave a free replica
        unused.

        Without overtaking, requests that wait for busy replicas with their prompts would keep all others from the free
        replicas.
        """
        return pool.knows_caches and bool(pool.free_replicas) and pool.queue.of_tier(tier).count >= LOOKED_AHEAD

    def waits_for_own(self, offer: Offer, replica: Replica, now: float) -> bool:
        """Whether the request waits for another replica that has more of its prompt cached, though `replica` could take
        it.
        """
        if not replica.pool.knows_caches:
            return False
        saved = replica.unread_of(offer.prompt_tokens, offer.request) - offer.least_unread
        return saved > 0 and now < self._until(offer, saved)

    def ends_at(self, offer: Offer) -> float:
        """Latest time from which the request takes any replica."""
        return self._until(offer, offer.prompt_tokens - offer.least_unread)

    def _until(self, offer: Offer, saved_tokens: int) -> float:
        request = offer.request
        token_s = self._forecaster.prefill_s_per_token(offer.pool.spec.name)
        if token_s is None or request.tier.admission.mode is not AdmissionMode.ENFORCE:
            return request.body_at
        return min(due_at(request, offer.deadline), request.body_at + token_s * saved_tokens)

    def chosen(
        self, waiting: list[RequestState], pool: Pool, random: float, now: float
    ) -> tuple[RequestState, Replica] | None:
        """The request to send, and its replica; None if all of them wait. The first of `waiting` is the head of its
        queue.

        The head goes first if its turn is due. Otherwise, a request with a part of its prompt cached goes before
        requests with more tokens to read.
        """
        best: tuple[RequestState, Replica] | None = None
        least = 0
        for state in waiting:
            offer = offer_of(state)
            replica = pool.pick(state.request, state.needs_tokens, random)
            if replica is None or self.waits_for_own(offer, replica, now):
                continue
            if state is waiting[0] and now >= due_at(state.request, state.deadline):
                return state, replica
            unread = replica.unread_of(state.prompt_tokens, state.request)
            if best is None or (unread < least and unread < state.prompt_tokens):
                best, least = (state, replica), unread
        return best
