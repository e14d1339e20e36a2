"""Synthetic traffic: a rate over time, a mix of tiers with tenants and lengths, and growing conversations.

Every kind of randomness has its own random stream, and each request takes the same number of draws from it. So a change
of the rate, or of one tier's lengths, changes nothing else.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import accumulate, count
from random import Random

from gateway.core.policy import Policy
from gateway.sim.workload.arrival_process import ArrivalProcess, Constant, times
from gateway.sim.workload.arrivals import BLOCK_TOKENS, Arrival
from gateway.sim.workload.lengths import LengthDistribution

DEFAULT = "default"
_BLOCKS = 1 << 12  # ids of blocks reserved for each owner, more than any prompt has


@dataclass(frozen=True, slots=True)
class TierTraffic:
    """One tier's part of the traffic."""

    tier: str
    part: float
    """Weight of the tier, relative to the other tiers."""
    prompt: LengthDistribution
    answer: LengthDistribution
    tenants: int = 1
    skew: float = 0.0
    """The traffic of tenant n is proportional to 1/n^skew."""
    streamed: float = 1.0
    """Share (0-1) of the requests that are streamed."""
    max_tokens: int | None = None
    model: str = "default"


@dataclass(frozen=True, slots=True)
class Sessions:
    """Conversations. The prompt of each turn begins with a system prompt and all earlier turns."""

    part: float
    """Share (0-1) of first requests that begin a conversation."""
    turns: float
    """Mean number of turns (>= 1). The numbers are geometrically distributed."""
    think_s: float
    """Mean seconds from one turn to the next, including the answer. These times are exponentially distributed."""
    system_prompts: int = 1
    system_tokens: int = 0
    most_tokens: int = 16384
    """A conversation ends before its prompt and answer together would exceed this."""

    @property
    def requests(self) -> float:
        """Mean number of requests for each first request, which is included."""
        return 1.0 + self.part * (self.turns - 1.0)


@dataclass(slots=True)
class _Talk:
    session: int
    system: int
    tier: TierTraffic
    tenant: str
    said: int
    """Tokens of the conversation so far: system prompt, turns and answers."""


@dataclass(frozen=True, slots=True)
class Synthetic:
    """Synthetic traffic with the mean rate `rate_per_s`, from 0 to `duration_s`."""

    rate_per_s: float
    duration_s: float
    shares: tuple[TierTraffic, ...]
    cv: float = 1.0
    shape: ArrivalProcess = field(default_factory=Constant)
    sessions: Sessions | None = None

    def arrivals(self, seed: int) -> Iterator[Arrival]:
        """The requests of one run."""
        return _Source(self, seed).arrivals()

    def for_policy(self, policy: Policy) -> Synthetic:
        """A copy in which the policy's default tier stands for the tier `default`, if the policy has no such tier."""
        named = {share.tier for share in self.shares}
        if DEFAULT not in named or DEFAULT in policy.tiers or policy.default_tier in named:
            return self
        shares = [replace(of, tier=policy.default_tier) if of.tier == DEFAULT else of for of in self.shares]
        return replace(self, shares=tuple(shares))

    def at_rate(self, rate_per_s: float) -> Synthetic:
        """A copy with another mean rate."""
        return replace(self, rate_per_s=rate_per_s)

    def faster(self, times: float) -> Synthetic:
        """A copy whose rate is `times` as high."""
        return self.at_rate(self.rate_per_s * times)


class _Source:
    """The arrivals of one run of `Synthetic`."""

    def __init__(self, of: Synthetic, seed: int) -> None:
        self._of = of
        self._seed = seed
        self._tiers, self._tenants, self._lengths, self._streams, self._talks = (
            Random(f"{seed} {name}") for name in ("tiers", "tenants", "lengths", "streams", "sessions")
        )
        self._bounds = list(accumulate(share.part for share in of.shares))
        self._tenant_bounds = {
            share.tier: list(accumulate(1 / (n + 1) ** share.skew for n in range(share.tenants))) for share in of.shares
        }
        self._later: list[tuple[float, int, _Talk]] = []
        self._numbers = count()

    def arrivals(self) -> Iterator[Arrival]:
        of, later = self._of, self._later
        rate = of.rate_per_s / (of.sessions.requests if of.sessions else 1.0)
        for start in times(rate, of.cv, of.shape, Random(f"{self._seed} pace")):
            until = min(start, of.duration_s)
            while later and later[0][0] < until:
                at, _, talk = heappop(later)
                if (arrival := self._turn(talk, at)) is not None:
                    yield arrival
            if start >= of.duration_s:
                return
            yield self._first(start)

    def _first(self, at: float) -> Arrival:
        share = self._of.shares[_pick(self._bounds, self._tiers)]
        tenant = f"{share.tier}-{_pick(self._tenant_bounds[share.tier], self._tenants) + 1}"
        sessions = self._of.sessions
        if sessions is not None:
            begins, system = self._talks.random() < sessions.part, self._talks.random()
            if begins:
                chosen = int(system * sessions.system_prompts)
                talk = _Talk(next(self._numbers), chosen, share, tenant, sessions.system_tokens)
                arrival = self._turn(talk, at, first=True)
                assert arrival is not None
                return arrival
        prompt, answer = share.prompt.draw(self._lengths), share.answer.draw(self._lengths)
        stream = self._is_streamed(share)
        return Arrival(at, share.tier, tenant, share.model, prompt, answer, stream, share.max_tokens)

    def _turn(self, talk: _Talk, at: float, first: bool = False) -> Arrival | None:
        """The next request of a conversation; None if the conversation has grown too long. Also schedules the request
        after it.
        """
        sessions = self._of.sessions
        assert sessions is not None
        prompt = talk.said + talk.tier.prompt.draw(self._lengths)
        answer = talk.tier.answer.draw(self._lengths)
        if prompt + answer > sessions.most_tokens and not first:
            return None
        talk.said = prompt + answer
        prefix = _blocks(talk, sessions, prompt)
        go_on, gap_s = self._talks.random() < 1 - 1 / sessions.turns, self._talks.expovariate(1 / sessions.think_s)
        if go_on:
            heappush(self._later, (at + gap_s, next(self._numbers), talk))
        share, stream = talk.tier, self._is_streamed(talk.tier)
        return Arrival(
            at, share.tier, talk.tenant, share.model, prompt, answer, stream, share.max_tokens, talk.session, prefix
        )

    def _is_streamed(self, share: TierTraffic) -> bool:
        return self._streams.random() < share.streamed


def _pick(bounds: list[float], draw: Random) -> int:
    """A random index. `bounds`: running sums of the weights."""
    return min(bisect_right(bounds, draw.random() * bounds[-1]), len(bounds) - 1)


def _blocks(talk: _Talk, sessions: Sessions, prompt: int) -> tuple[int, ...]:
    """Hashes of the whole blocks of a prompt. Conversations with the same system prompt share the blocks inside it."""
    shared = sessions.system_tokens // BLOCK_TOKENS
    own = sessions.system_prompts + talk.session
    return tuple((talk.system if n < shared else own) * _BLOCKS + n for n in range(prompt // BLOCK_TOKENS))
