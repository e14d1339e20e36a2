"""The score of a live run: goodput, attainment, latencies and refusals, as its clients saw them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gateway.sim.analysis.report import Interval, bootstrap
from gateway.sim.run.results import Latency, latency
from loadtests.live.planned import PlannedRequest

Weights = Mapping[str, float]
"""The worth of a good request, by tier."""
UNFINISHED = "unfinished"
"""Reason of requests that were open when the run ended, or so late that they could not be good any more."""


@dataclass(frozen=True, slots=True)
class TierScore:
    """One tier of one run. All sent requests count; refusals are misses. Latencies are seconds of real time."""

    offered: int
    good: int
    attainment: float
    ttft: Latency
    """TTFT of all requests with a first token."""
    e2e: Latency
    """e2e of all finished requests."""
    misses: dict[str, int]
    """Requests that were not good, by reason; answered ones that were late are under `late`."""


def weighted(requests: Sequence[PlannedRequest], weights: Weights) -> float:
    """Weighted goodput: the weight of good requests over that of all."""
    return sum(weights[request.tier] for request in requests if request.good) / sum(
        weights[request.tier] for request in requests
    )


def weighted_interval(requests: Sequence[PlannedRequest], weights: Weights, per: float = 1.0) -> Interval:
    """Weighted goodput divided by `per`, with an interval over the requests of the run."""
    return bootstrap(lambda drawn: weighted([requests[i] for i in drawn], weights) / per, len(requests))


def ratio(ours: Sequence[PlannedRequest], theirs: Sequence[PlannedRequest], weights: Weights) -> Interval | None:
    """Our weighted goodput over theirs, request by request; None if theirs is 0.

    Raises ValueError unless both were sent the same.
    """
    if [(request.at, request.tier) for request in ours] != [(request.at, request.tier) for request in theirs]:
        raise ValueError("the runs were not sent the same requests")
    if not any(request.good for request in theirs):
        return None
    gain = [(weights[a.tier] * a.good, weights[b.tier] * b.good) for a, b in zip(ours, theirs, strict=True)]

    def statistic(drawn: Sequence[int]) -> float:
        mine, other = (sum(gain[i][side] for i in drawn) for side in (0, 1))
        return mine / other if other else float("inf")

    return bootstrap(statistic, len(gain))


def attainment(requests: Sequence[PlannedRequest], tier: str) -> Interval:
    """Good requests of a tier over all its requests. Raises ValueError if there are none."""
    own = [request.good for request in requests if request.tier == tier]
    return bootstrap(lambda drawn: sum(own[i] for i in drawn) / len(drawn), len(own))


def score(requests: Iterable[PlannedRequest]) -> dict[str, TierScore]:
    """The score of each tier, by name."""
    tiers: dict[str, list[PlannedRequest]] = {}
    for request in requests:
        tiers.setdefault(request.tier, []).append(request)
    return {name: _tier(tiers[name]) for name in sorted(tiers)}


def _tier(requests: Sequence[PlannedRequest]) -> TierScore:
    good = sum(request.good for request in requests)
    return TierScore(
        offered=len(requests),
        good=good,
        attainment=good / len(requests),
        ttft=latency([request.ttft_s for request in requests if request.ttft_s is not None]),
        e2e=latency([request.e2e_s for request in requests if request.e2e_s is not None]),
        misses=dict(Counter(missed(request) for request in requests if not request.good).most_common()),
    )


def missed(request: PlannedRequest) -> str:
    """The reason why a request was not good."""
    if request.ended_s is None:
        return UNFINISHED
    return request.reason or "late"
