"""Routers: each picks one of the replicas that have room."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from operator import attrgetter
from typing import Final, Protocol, TypeVar

from gateway.core.fleet.prefix_index import PrefixIndex, holding
from gateway.core.request import NO_PREFIX, Prefix

# Up to this size all replicas are compared. Above it two are drawn at random, so the cost does not grow with the fleet.
FULL_SCAN: Final = 16


SHORT_BYTES: Final = 2048
"""Size of a prompt that is too short to be hashed."""


class RoutingTarget:
    """A replica as a router sees it.

    A class and no Protocol: compiled code looks up every attribute of a Protocol by its name.
    """

    __slots__ = ("cache", "imputed", "imputed_tokens", "in_flight", "rank", "slowness", "unprefilled_tokens")

    def __init__(self, rank: int = 0, in_flight: int = 0, unprefilled_tokens: int = 0) -> None:
        self.rank = rank
        """Its index in the pool."""
        self.in_flight = in_flight
        """Open attempts."""
        self.unprefilled_tokens = unprefilled_tokens
        """Prompt tokens that its engine has not read yet."""
        self.slowness = 1.0
        """Learned time per token over that of its pool, in steps: replicas that are about as fast are equal."""
        self.imputed = 0
        """Failed attempts that count as load until a useful attempt would have ended (imputed_load.py)."""
        self.cache = PrefixIndex()
        """An estimate of its prefix cache."""
        self.imputed_tokens = 0
        """Prompt tokens of the attempts in `imputed` that would still be unread."""


C = TypeVar("C", bound=RoutingTarget)

_rank: Final[Callable[[RoutingTarget], int]] = attrgetter("rank")


class Router(Protocol):
    """Chooses among replicas that can all take the request."""

    def pick(
        self,
        free: list[C],
        random: float,
        prefix: Prefix = NO_PREFIX,
        request_tokens: float = 0.0,
        home: C | None = None,
    ) -> C:
        """One of `free`, which is not empty and sorted by rank, for a prompt that begins with `prefix`.

        `random` in [0, 1) is drawn by the caller. `request_tokens` (>= 0): the price of a request in flight, in prompt
        tokens. `home`: the replica of its session, which may have more of the prompt than this gateway sent there.
        """
        ...


class LeastPrefill:
    """Fewest unread prompt tokens. On a tie, fewest requests, then chance.

    Tokens and requests count as many times as the replica is slow. Idle replicas tie: one that was slow once, or that
    an open breaker kept out, must get a request to be judged anew.

    If a replica has cached the beginning of the prompt, that part counts as read. Requests in flight then have a price
    in tokens. Without that price, all prompts that begin alike would go to one replica. In a large fleet the replicas
    with the beginning are compared, and two others.

    A new request waits for the prefill work before it. At .9 load this router had the lowest p99 TTFT of eight in
    simulation. It was 312 ms, against 491 for least requests and 558 for round robin.
    """

    def pick(
        self,
        free: list[C],
        random: float,
        prefix: Prefix = NO_PREFIX,
        request_tokens: float = 0.0,
        home: C | None = None,
    ) -> C:
        if not prefix.blocks and home is None:
            return _least(free, True, random)
        holders = free[0].cache.holders
        held = None if holders is None else holding(prefix, holders)
        if (held is not None and not held and home is None) or len(free) == 1:
            return _least(free, True, random)
        if held is not None and len(free) > FULL_SCAN:
            others = _two(free, random)
            free = [replica for replica in free if replica.cache in held or replica is home or replica in others]
        known = [0.0 if held is not None and r.cache not in held else r.cache.covered_tokens(prefix) for r in free]
        if home is not None:
            for i, replica in enumerate(free):
                if replica is home:
                    known[i] = _believed(home, prefix, known[i])
        if max(known):
            return _cheapest(free, known, request_tokens, random)
        return _least(free, True, random)


class LeastRequests:
    """Fewest requests in flight; ties go to chance."""

    def pick(
        self,
        free: list[C],
        random: float,
        prefix: Prefix = NO_PREFIX,
        request_tokens: float = 0.0,
        home: C | None = None,
    ) -> C:
        return _least(free, False, random)


class RoundRobin:
    """Each in turn, whatever its load. Full replicas are passed over."""

    def __init__(self) -> None:
        self.last = -1
        """Rank of the replica that was picked last."""

    def pick(
        self,
        free: list[C],
        random: float,
        prefix: Prefix = NO_PREFIX,
        request_tokens: float = 0.0,
        home: C | None = None,
    ) -> C:
        chosen = free[bisect_right(free, self.last, key=_rank) % len(free)]
        self.last = chosen.rank
        return chosen


def _believed(home: RoutingTarget, prefix: Prefix, known: float) -> float:
    """Tokens of a prompt that its session's home has probably cached, given that `known` were sent from here.

    Other gateways may have sent the rest, as probably as they send anything to the home. Short prompts are not hashed.
    """
    evidence = home.cache.evidence
    return known + evidence.others * max(0.0, max(prefix.size, SHORT_BYTES) / evidence.bytes_per_token - known)


def _cheapest(free: list[C], known: list[float], request_tokens: float, random: float) -> C:
    """The replica with the least work before and beside the request, minus its cached prompt tokens.

    `known`: tokens of the prompt in each cache. The part that no replica has cached is left out.
    """
    ties: list[C] = []
    least = 0.0
    longest = max(known)
    for candidate, cached in zip(free, known, strict=True):
        tokens = candidate.unprefilled_tokens + candidate.imputed_tokens + longest - cached
        cost = candidate.slowness * (tokens + request_tokens * (candidate.in_flight + candidate.imputed))
        if not ties or cost < least:
            ties, least = [candidate], cost
        elif cost == least:
            ties.append(candidate)
    return ties[int(random * len(ties))]


def _least(free: list[C], by_prefill: bool, random: float) -> C:
    """The least loaded replica; in a large fleet the better of two drawn at random. Ties go to chance."""
    count = len(free)
    if count > FULL_SCAN:
        return _lightest(_two(free, random), by_prefill)[0]
    ties = _lightest(free, by_prefill)
    return ties[int(random * len(ties))]


def _two(free: list[C], random: float) -> list[C]:
    """Two of at least two replicas, by one draw. The first is uniform; the second is at a hashed distance from it."""
    count = len(free)
    first = int(random * count)
    return [free[first], free[(first + 1 + int(random * count * 7919) % (count - 1)) % count]]


def _lightest(free: list[C], by_prefill: bool) -> list[C]:
    """The replicas with the least load: time of unread prompts (if `by_prefill`), then requests."""
    ties: list[C] = []
    least_tokens = least_requests = 0.0
    for candidate in free:
        tokens, slow = 0.0, 1.0
        if by_prefill:
            slow = candidate.slowness
            tokens = slow * (candidate.unprefilled_tokens + candidate.imputed_tokens)
        requests = slow * (candidate.in_flight + candidate.imputed)
        if not ties or tokens < least_tokens or (tokens == least_tokens and requests < least_requests):
            ties = [candidate]
            least_tokens, least_requests = tokens, requests
        elif tokens == least_tokens and requests == least_requests:
            ties.append(candidate)
    return ties


ROUTERS: Final[dict[str, Callable[[], Router]]] = {
    "least-prefill": LeastPrefill,
    "least-requests": LeastRequests,
    "round-robin": RoundRobin,
}
