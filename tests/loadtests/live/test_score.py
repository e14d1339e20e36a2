"""Scores of runs, computed by hand."""

from __future__ import annotations

import pytest

from gateway.observe.metrics.lag import EDGES
from loadtests.live.score import attainment, missed, ratio, score, weighted, weighted_interval
from loadtests.live.shots import Shot
from loadtests.waits import edge_of

WEIGHTS = {"high": 4.0, "low": 1.0}


def shot(tier: str, ttft_s: float | None, reason: str = "", *, at: float = 0.0, ended: bool = True) -> Shot:
    first_s = None if ttft_s is None else at + ttft_s
    return Shot(at, tier, "key", 10, 5, 1.0, at, first_s, at + 5.0 if ended else None, 200, reason, 5)


SHOTS = [
    shot("high", 0.5),
    shot("high", 1.5),
    shot("low", 0.9),
    shot("low", None, "queue-full"),
    shot("low", 0.2, ended=False),
]


def test_weighted_goodput_weighs_tiers_by_their_policy_weight() -> None:
    assert weighted(SHOTS, WEIGHTS) == pytest.approx(5 / 11)
    assert weighted_interval(SHOTS, WEIGHTS, per=0.5).value == pytest.approx(10 / 11)


def test_score_has_goodput_misses_and_latencies_by_tier() -> None:
    tiers = score(SHOTS)
    assert (tiers["high"].offered, tiers["high"].good, tiers["high"].attainment) == (2, 1, 0.5)
    assert tiers["low"].misses == {"queue-full": 1, "unfinished": 1}
    assert tiers["high"].misses == {"late": 1}
    assert (tiers["high"].ttft.p50, tiers["high"].ttft.p99) == (0.5, 1.5)
    assert tiers["low"].e2e.n == 1
    assert attainment(SHOTS, "low").value == pytest.approx(1 / 3)
    assert missed(SHOTS[3]) == "queue-full"


def test_goodput_ratio_needs_two_runs_of_the_same_requests() -> None:
    ours = [shot("high", 0.5), shot("low", 0.5)]
    theirs = [shot("high", 2.0), shot("low", 0.5)]
    found = ratio(ours, theirs, WEIGHTS)
    assert found is not None
    assert found.value == 5.0
    assert ratio(ours, [shot("high", 2.0), shot("low", 2.0)], WEIGHTS) is None
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
