"""The promises of a policy, and which requests kept them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gateway.core.policy import Policy
from gateway.core.slo import Metric, Slo
from loadtests.replay.request import FIRST_TURN, Outcome, Request
from loadtests.report.words import time
from loadtests.verdict.sequential import Bounds, bounds

NAMES = {Metric.TTFT: "TTFT", Metric.TPOT: "TPOT", Metric.E2E: "e2e"}


class Verdict(StrEnum):
    """Whether a promise is kept."""

    PASS = "pass"
    FAIL = "fail"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Promise:
    """At least this share (0-1) of the requests of a tier is in time. Without a metric: is good."""

    tier: str
    share: float
    metric: Metric | None = None
    threshold_s: float = 0.0

    @property
    def name(self) -> str:
        """The promise in a few words."""
        if self.metric is None:
            return f"{self.tier}: goodput ≥ {100 * self.share:g}%"
        return f"{self.tier}: p{100 * self.share:.6g} {NAMES[self.metric]} ≤ {time(self.threshold_s)}"


def promises_of(policy: Policy, tiers: set[str], goodput: float) -> list[Promise]:
    """Every percentile of these tiers, and their goodput."""
    found = []
    for tier in sorted(tiers):
        for metric, objective in policy.tiers[tier].slo.objectives():
            found.append(Promise(tier, objective.quantile, metric, objective.threshold_s))
        found.append(Promise(tier, goodput))
    return found


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict of a test on a promise."""

    promise: Promise
    verdict: Verdict
    kept: Bounds | None
    """The share that was in time; None if too little is known."""
    requests: int
    misses: int
    stretches: tuple[tuple[int, int], ...] = ()
    """Requests and misses of each stretch of time."""
    before: Bounds | None = None
    """The share that was in time before the push; None if too little is known."""


@dataclass(slots=True)
class Tally:
    """A recorder that counts, for each promise and stretch of time, requests and misses.

    A stretch counts once all its requests are over: else the slow ones would be missing. Later turns of conversations
    are counted, but not waited for, since nobody knows beforehand when they are due.
    """

    policy: Policy
    promises: list[Promise]
    stretch_s: float
    from_s: float = 0.0
    until_s: float = math.inf
    """Requests due before `from_s`, or from `until_s` on, are not counted."""
    max_late_s: float = 0.01
    late: int = 0
    """Requests that the generator sent later than that."""
    sent: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    over: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    counts: dict[int, list[list[int]]] = field(default_factory=dict)

    def due(self, at: float) -> None:
        """A request is due at this time."""
        if self._covers(at):
            self.sent[self._stretch(at)] += 1

    def gap(self, request: Request, gap_s: float, count: int) -> None:
        """Gaps are not judged."""

    def ended(self, request: Request) -> None:
        """A request is over."""
        at = request.arrival.at
        if not self._covers(at):
            return
        self.late += request.late_s > self.max_late_s
        stretch = self._stretch(at)
        if request.number < FIRST_TURN:
            self.over[stretch] += 1
        self._count(request, self.counts.setdefault(stretch, self._nothing()))

    def judgements(self, now_s: float, wrong: float, under_way: Iterable[Request] = ()) -> list[Judgement]:
        """The verdicts at this time of the test. `wrong`: allowed probability of any wrong one.

        A request under way that is late already is a miss: else a target that hangs would never be judged.
        """
        extra: dict[int, list[list[int]]] = {}
        known: dict[int, int] = defaultdict(int)
        for request in under_way:
            at = request.arrival.at
            if self._covers(at) and is_hopeless(self.policy.tiers[request.arrival.tier].slo, request, now_s):
                known[self._stretch(at)] += request.number < FIRST_TURN
                self._count(request, extra.setdefault(self._stretch(at), self._nothing()), now_s)
        closed = list(self._closed(now_s, known))
        alpha = wrong / max(1, len(self.promises))
        return [self._judged(number, closed, extra, alpha) for number in range(len(self.promises))]

    def _nothing(self) -> list[list[int]]:
        return [[0, 0] for _ in self.promises]

    def _count(self, request: Request, counts: list[list[int]], open_at_s: float | None = None) -> None:
        slo = self.policy.tiers[request.arrival.tier].slo
        for number, promise in enumerate(self.promises):
            if promise.tier != request.arrival.tier:
                continue
            missed = is_missed(promise, slo, request) if open_at_s is None else is_late(promise, request, open_at_s)
            if missed is not None:
                counts[number][0] += 1
                counts[number][1] += missed

    def _judged(self, number: int, closed: list[int], extra: dict[int, list[list[int]]], alpha: float) -> Judgement:
        promise, pairs = self.promises[number], []
        for one in closed:
            parts = [of[one][number] for of in (self.counts, extra) if one in of]
            pairs.append((sum(n for n, _ in parts), sum(misses for _, misses in parts)))
        at_most = 1.0 - promise.share
        found = bounds(pairs, at_most, alpha)
        verdict = Verdict.UNDECIDED
        if found is not None and found.high <= at_most:
            verdict = Verdict.PASS
        elif found is not None and found.low > at_most:
            verdict = Verdict.FAIL
        kept = None if found is None else Bounds(1.0 - found.share, 1.0 - found.high, 1.0 - found.low)
        requests, misses = sum(n for n, _ in pairs), sum(misses for _, misses in pairs)
        return Judgement(promise, verdict, kept, requests, misses, tuple(pairs), kept)

    def _closed(self, now_s: float, known: Mapping[int, int]) -> Iterator[int]:
        """The stretches whose requests are over, or `known` to be late, up to the first of which that is not true."""
        for stretch in sorted(self.sent):
            ended = self.over[stretch] + known.get(stretch, 0)
            if self.from_s + (stretch + 1) * self.stretch_s > now_s or ended < self.sent[stretch]:
                return
            yield stretch

    def _covers(self, at: float) -> bool:
        return self.from_s <= at < self.until_s

    def _stretch(self, at: float) -> int:
        return int((at - self.from_s) / self.stretch_s)


def is_hopeless(slo: Slo, request: Request, now_s: float) -> bool:
    """Whether a request under way cannot be good any more."""
    waited_s = now_s - request.arrival.at
    if request.arrival.stream and request.first_s is None and waited_s > slo.ttft_bound_s:
        return True
    return slo.e2e_up_to_tokens is None and waited_s > slo.e2e_bound_s


def is_late(promise: Promise, request: Request, now_s: float) -> bool | None:
    """Whether a hopeless request has broken the promise already; None if that is open."""
    waited_s = now_s - request.arrival.at
    if promise.metric is None:
        return True
    if promise.metric is Metric.TTFT and request.arrival.stream:
        first_s = waited_s if request.first_s is None else request.first_s - request.arrival.at
        return True if first_s > promise.threshold_s else None
    return True if promise.metric is Metric.E2E and waited_s > promise.threshold_s else None


def is_missed(promise: Promise, slo: Slo, request: Request) -> bool | None:
    """Whether the request broke the promise; None if the promise is not about it.

    Percentiles cover answered requests; goodput covers all requests except 4xx and quota refusals. An answer that never
    ended counts as late for every promise that covers it.
    """
    finished, due_s = request.outcome is Outcome.FINISHED, request.arrival.at
    ttft_s = None if request.first_s is None else request.first_s - due_s
    e2e_s, tokens = request.ended_s - due_s, request.tokens
    tpot_s = None if request.first_s is None or tokens < 2 else (request.last_s - request.first_s) / (tokens - 1)
    if promise.metric is None:
        if not request.outcome.counts:
            return None
        unseen = bool(slo.ttft) and request.arrival.stream and ttft_s is None
        return not finished or unseen or not slo.met(ttft_s, tpot_s, e2e_s, tokens)
    if request.outcome is Outcome.UNFINISHED or request.outcome is Outcome.TIMEOUT:
        return True
    if not finished:
        return None
    match promise.metric:
        case Metric.TTFT:
            return None if ttft_s is None else ttft_s > promise.threshold_s
        case Metric.TPOT:
            return None if tpot_s is None else tpot_s > promise.threshold_s
        case Metric.E2E:
            return e2e_s > promise.threshold_s if slo.covers(tokens) else None
