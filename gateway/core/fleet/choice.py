"""Choice of the replica that a request gets, among those with room: by home, model, adapter, context, health and load.

A request with a session or a stored response has a home. It may be pinned to it, so that no other replica serves it.
"""

from __future__ import annotations

from typing import Final, TypeVar

from gateway.core.fleet.backoffs import Backoffs
from gateway.core.fleet.bounds import BoundedSlots
from gateway.core.fleet.contexts import Contexts
from gateway.core.fleet.eligibility import ServedNames, by_load, eased_in, takes_now, with_adapter, with_model
from gateway.core.fleet.judging.judge import Judge
from gateway.core.fleet.prefix_cache.prefix_index import Holders, PrefixIndex, holding
from gateway.core.fleet.replica import BaseReplica
from gateway.core.fleet.routing import RANK, ROUTERS, OwnRouter
from gateway.core.policy import AdmissionMode, Tier
from gateway.core.pool_spec import PoolSpec
from gateway.core.request import Prefix, Request
from gateway.core.serving import sent_name
from gateway.core.sessions import draw, most_in_flight
from gateway.core.snapshot import CapacityBound, ReplicaState

R = TypeVar("R", bound=BaseReplica)

SUSPECT_EVERY: Final = 10  # one request in this many may go to a replica suspected of odd answers


class ReplicaChoice(BoundedSlots[R]):
    """The replicas of a pool, and all that tells one from another for a request."""

    def __init__(self, spec: PoolSpec) -> None:
        super().__init__(spec)
        self.names = ServedNames()
        self.contexts = Contexts()
        self.judge = Judge()
        self.backoffs: Backoffs[R] = Backoffs()
        self.router: OwnRouter = ROUTERS[spec.router]()
        self.holders: Holders = {}
        self.by_cache: dict[PrefixIndex, R] = {}
        """The replicas by their caches."""
        self.knows_caches = False
        """Whether the router takes prefix caches into account."""
        self.is_starting = False
        """Whether any replica is in slow start."""
        self.is_probing = False
        """Whether replicas that were down are tried again beside replicas that are up."""

    def may_serve(self, request: Request) -> bool:
        """Whether a replica takes the model of `request`, in use or not."""
        return self.names.is_taken_by_any(sent_name(request), self.replicas.values())

    def serves(self, request: Request) -> bool:
        """Whether a replica that gets requests takes the model of `request`."""
        if request.affinity.adapter and not self.lists(request.affinity.adapter):
            return False
        name = sent_name(request)
        if self.names.is_taken_by_all(name):
            return self.slots > 0
        return any(replica.slots > 0 and replica.takes_name(name) for replica in self.replicas.values())

    def pick(
        self, request: Request, needs_tokens: int, random: float, avoid: R | None = None, by_max: bool = False
    ) -> R | None:
        """The replica for a request that needs this context; None if it has to wait. `random` in [0, 1) settles ties.

        `avoid`: the replica of an earlier attempt; if given, replicas with recent failures are avoided as well.
        `by_max`: only configured bounds apply, whatever the tier.
        """
        by_max = by_max or request.tier.admission.mode is not AdmissionMode.ENFORCE
        free, affinity = self._ready(by_max), request.affinity
        home = None if affinity.session is None and affinity.stored is None else self.home(request)
        if affinity.prefix.blocks and not by_max and self.knows_caches:
            free = free + self._warm(request)
        free = with_model(free, self.names, request)
        if self.is_pinned(request):
            free = [replica for replica in free if replica is home]
            if home is not None and not home.slots and home.keeps_state and home is not avoid:
                takes = takes_now(home, request)
                return home if takes and home.total_in_flight < (self.spec.slots or home.learned.slots) else None
        elif self.contexts.tell_apart(needs_tokens):
            free = [replica for replica in free if self.contexts.fits(needs_tokens, replica)]
        if affinity.adapter:
            free = with_adapter(free, affinity.adapter)
        if self.is_probing and self.judge.answers.doubts(request):
            free = [replica for replica in free if replica.state is not ReplicaState.PROBING]
        if self.judge.answers.suspects and (self.acquired % SUSPECT_EVERY or avoid is not None):
            free = [replica for replica in free if not replica.health.suspected] or free
        if avoid is not None:
            free = [replica for replica in free if replica is not avoid]
            free = [replica for replica in free if replica.spec.server != avoid.spec.server] or free
            free = [replica for replica in free if not replica.health.failures] or free
        if not free or not self.may_take(request.tier, by_max, had_slot=avoid is not None):
            return None
        return self.router.pick(free, random, affinity.prefix, self.request_tokens, home)

    def is_pinned(self, request: Request) -> bool:
        """Whether a request may be served only by its home replica."""
        affinity = request.affinity
        return affinity.stored is not None or (self.spec.strict_sessions and affinity.session is not None)

    def home(self, request: Request) -> R | None:
        """The replica of the stored response that `request` continues, or else the first in its session's hash order.

        The home of a pinned request may be out of use. Any other home is in use and not much busier than the mean.
        """
        stored, session = request.affinity.stored, request.affinity.session
        if stored is not None:
            return self.replicas.get(stored.replica)
        is_strict = self.spec.strict_sessions
        if session is None or not (self.knows_caches or is_strict):
            return None
        serving = len(self.replicas) if is_strict else sum(replica.slots > 0 for replica in self.replicas.values())
        if not serving:
            return None
        most = most_in_flight(self.in_flight + sum(self.others_by_tier.values()), serving)
        found: R | None = None
        largest = -1
        name = sent_name(request)
        for replica in self.replicas.values():
            if replica.takes_name(name) and (is_strict or (replica.slots and replica.total_in_flight < most)):
                drawn = draw(session.key, replica.session_key)
                if drawn > largest:
                    found, largest = replica, drawn
        return found

    def only_home(self, request: Request) -> str:
        """The name of the only replica that may serve a request; empty if any may, or if none is known."""
        home = self.home(request) if self.is_pinned(request) else None
        return "" if home is None else home.spec.name

    def lists(self, adapter: str) -> bool:
        """Whether any replica lists this LoRA adapter."""
        return any(adapter in replica.adapters.listed for replica in self.replicas.values())

    def _warm(self, request: Request) -> list[R]:
        """Replicas at the limit of unread prompts, but usable since they have cached enough of this prompt.

        It reads no more before the first token than a replica below the limit that has cached none of the prompt.
        """
        most, prefix = self.prefill_limit, request.affinity.prefix
        return [
            replica
            for replica in self._holding(prefix)
            if replica.bound is CapacityBound.PROMPTS
            and replica.total_unread_tokens - replica.cache.covered_tokens(prefix) < most
            and not self.backoffs.holds(replica)
        ]

    def _holding(self, prefix: Prefix) -> list[R]:
        """Replicas that have cached the beginning of a prompt, by rank: a few, also of a large fleet."""
        held = [self.by_cache[cache] for cache in holding(prefix, self.holders)]
        return sorted(held, key=RANK) if len(held) > 1 else held

    def _ready(self, by_max: bool) -> list[R]:
        """Replicas with a free slot. Those in backoff are left out while any other is in use, even a busy one."""
        free = self.below_max if by_max else self.free_replicas
        if self.backoffs.until:
            ready = [replica for replica in free if not self.backoffs.holds(replica)]
            free = ready if ready or self._is_any_without_backoff() else free
        return eased_in(free) if by_max and self.is_starting else free

    def _is_any_without_backoff(self) -> bool:
        """Whether any replica in use has no backoff. It may be busy: then requests wait for it."""
        return any(replica.slots > 0 and not self.backoffs.holds(replica) for replica in self.replicas.values())

    def least_unread(self, prompt_tokens: int, request: Request) -> int:
        """Tokens of a prompt that are left to read at the usable replica with the longest cached part."""
        prefix = request.affinity.prefix
        if not prefix.blocks:
            return prompt_tokens
        home = self.home(request) if self.is_pinned(request) else None
        usable = [home] if home is not None else [r for r in self._holding(prefix) if r.slots]
        return min((r.unread_of(prompt_tokens, request) for r in usable), default=prompt_tokens)

    def ready(self, tier: Tier) -> list[R]:
        """Replicas that `tier` may use now, whatever their models."""
        by_max = tier.admission.mode is not AdmissionMode.ENFORCE
        return self._ready(by_max) if self.may_take(tier, by_max) else []

    def candidates(self, request: Request) -> list[R]:
        """Replicas that `request` may use now, in the order of `by_load`. They may lack room for its LoRA adapter."""
        return sorted(with_model(self.ready(request.tier), self.names, request), key=by_load)
