"""Scores of runs, computed by hand."""

from __future__ import annotations

import pytest

from gateway.observe.metrics.lag import EDGES
from loadtests.live.planned import PlannedRequest
from loadtests.live.score import attainment, missed, ratio, score, weighted, weighted_interval
from loadtests.waits import edge_of

WEIGHTS = {"high": 4.0, "low": 1.0}


def request(
    tier: str, ttft_s: float | None, reason: str = "", *, at: float = 0.0, ended: bool = True
) -> PlannedRequest:
    first_s = None if ttft_s is None else at + ttft_s
    return PlannedRequest(at, tier, "key", 10, 5, 1.0, at, first_s, at + 5.0 if ended else None, 200, reason, 5)


REQUESTS = [
    request("high", 0.5),
    request("high", 1.5),
    request("low", 0.9),
    request("low", None, "queue-full"),
    request("low", 0.2, ended=False),
]


def test_weighted_goodput_weighs_tiers_by_their_policy_weight() -> None:
    assert weighted(REQUESTS, WEIGHTS) == pytest.approx(5 / 11)
    assert weighted_interval(REQUESTS, WEIGHTS, per=0.5).value == pytest.approx(10 / 11)


def test_score_has_goodput_misses_and_latencies_by_tier() -> None:
    tiers = score(REQUESTS)
    assert (tiers["high"].offered, tiers["high"].good, tiers["high"].attainment) == (2, 1, 0.5)
    assert tiers["low"].misses == {"queue-full": 1, "unfinished": 1}
    assert tiers["high"].misses == {"late": 1}
    assert (tiers["high"].ttft.p50, tiers["high"].ttft.p99) == (0.5, 1.5)
    assert tiers["low"].e2e.n == 1
    assert attainment(REQUESTS, "low").value == pytest.approx(1 / 3)
    assert missed(REQUESTS[3]) == "queue-full"


def test_goodput_ratio_needs_two_runs_of_the_same_requests() -> None:
    ours = [request("high", 0.5), request("low", 0.5)]
    theirs = [request("high", 2.0), request("low", 0.5)]
    found = ratio(ours, theirs, WEIGHTS)
    assert found is not None
    assert found.value == 5.0
    assert ratio(ours, [request("high", 2.0), request("low", 2.0)], WEIGHTS) is None
    with pytest.raises(ValueError, match="same requests"):
        ratio(ours, ours[::-1], WEIGHTS)


def test_p99_of_waits_is_the_bucket_edge_above_it() -> None:
    counts = [0.0] * (len(EDGES) + 1)
    counts[1], counts[EDGES.index(0.005)] = 99, 1
    assert edge_of(counts, 0.99) == EDGES[1]
    counts[EDGES.index(0.005)] = 2
    assert edge_of(counts, 0.99) == 0.005
    counts[-1] = 50
    assert edge_of(counts, 0.99) == float("inf")
