"""The score of a live run: goodput, attainment, latencies and refusals, as its clients saw them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gateway.sim.analysis.report import Interval, bootstrap
from gateway.sim.analysis.results import Latency, latency
from loadtests.live.shots import Shot

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


def weighted(shots: Sequence[Shot], weights: Weights) -> float:
    """Weighted goodput: the weight of good requests over that of all."""
    return sum(weights[shot.tier] for shot in shots if shot.good) / sum(weights[shot.tier] for shot in shots)


def weighted_interval(shots: Sequence[Shot], weights: Weights, per: float = 1.0) -> Interval:
    """Weighted goodput divided by `per`, with an interval over the requests of the run."""
    return bootstrap(lambda drawn: weighted([shots[i] for i in drawn], weights) / per, len(shots))


def ratio(ours: Sequence[Shot], theirs: Sequence[Shot], weights: Weights) -> Interval | None:
    """Our weighted goodput over theirs, request by request; None if theirs is 0.

    Raises ValueError unless both were sent the same.
    """
    if [(shot.at, shot.tier) for shot in ours] != [(shot.at, shot.tier) for shot in theirs]:
        raise ValueError("the runs were not sent the same requests")
    if not any(shot.good for shot in theirs):
        return None
    gain = [(weights[a.tier] * a.good, weights[b.tier] * b.good) for a, b in zip(ours, theirs, strict=True)]

    def statistic(drawn: Sequence[int]) -> float:
        mine, other = (sum(gain[i][side] for i in drawn) for side in (0, 1))
        return mine / other if other else float("inf")

    return bootstrap(statistic, len(gain))


def attainment(shots: Sequence[Shot], tier: str) -> Interval:
    """Good requests of a tier over all its requests. Raises ValueError if there are none."""
    own = [shot.good for shot in shots if shot.tier == tier]
    return bootstrap(lambda drawn: sum(own[i] for i in drawn) / len(drawn), len(own))


def score(shots: Iterable[Shot]) -> dict[str, TierScore]:
    """The score of each tier, by name."""
    tiers: dict[str, list[Shot]] = {}
    for shot in shots:
        tiers.setdefault(shot.tier, []).append(shot)
    return {name: _tier(tiers[name]) for name in sorted(tiers)}


def _tier(shots: Sequence[Shot]) -> TierScore:
    good = sum(shot.good for shot in shots)
    return TierScore(
        offered=len(shots),
        good=good,
        attainment=good / len(shots),
        ttft=latency([shot.ttft_s for shot in shots if shot.ttft_s is not None]),
        e2e=latency([shot.e2e_s for shot in shots if shot.e2e_s is not None]),
        misses=dict(Counter(missed(shot) for shot in shots if not shot.good).most_common()),
    )


def missed(shot: Shot) -> str:
    """The reason why a request was not good."""
    if shot.ended_s is None:
        return UNFINISHED
    return shot.reason or "late"
