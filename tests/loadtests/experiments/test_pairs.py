"""Comparisons of live and simulated runs, and the number of live runs that they need."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest

from loadtests.experiments.pairs import KNOWN, MIN, by_tier, runs_needed, varies, whole


def test_combined_figures_are_of_all_tiers_in_order() -> None:
    found = whole("x", [{"": [], "a": [1.0, 4.0], "b": [2.0]}], [{"a": [1.0], "b": [3.0, 5.0]}])
    assert found.live == [[1.0, 2.0, 4.0]]
    assert found.runs == [[1.0, 3.0, 5.0]]
    assert found.off("p50") == 0.5


def test_compared_value_is_the_mean_over_its_runs() -> None:
    found = whole("x", [{"a": [1.0]}, {"a": [4.0, 4.0, 4.0]}], [{"a": [1.0]}, {"a": [2.0]}])
    assert found.values("p50") == (2.5, 1.5)


def test_number_of_live_runs_follows_from_the_spread_of_the_seeds() -> None:
    draw = Random(1)
    told = [{"a": [draw.gauss(1.0, 0.2)]} for _ in range(4000)]
    assert varies(told) == pytest.approx(0.2, rel=0.05)
    assert runs_needed(0.0) == 1
    assert runs_needed(KNOWN) == 1
    assert runs_needed(1.9 * KNOWN) == 4  # the standard error of four is half of that


def test_spread_of_seeds_is_the_wider_of_p50_and_p95_without_p99() -> None:
    steady = [1.0] * 94

    def spread(p95: float, p99: float) -> float:
        return varies([{"a": [*steady, *([2.0] * 4), 2.0, 2.0]}, {"a": [*steady, *([p95] * 4), p99, p99]}])

    assert spread(2.0, 50.0) == 0.0
    assert spread(3.0, 50.0) == pytest.approx(0.2 * 2**0.5)


def test_error_is_infinite_if_a_tier_finished_on_one_side_only() -> None:
    many = [1.0] * MIN
    (live_only,) = by_tier("x", [{"a": many, "b": []}], [{"a": [], "b": []}])
    (told_only,) = by_tier("x", [{"a": [], "b": []}], [{"a": many, "b": []}])
    assert live_only.name == "x: a"
    assert live_only.off("p50") == math.inf
    assert told_only.off("p50") == math.inf


def test_error_is_infinite_where_no_request_finished() -> None:
    many = {"a": [1.0] * MIN}
    cases: list[Any] = [([many, {"a": []}], [many, many]), ([many], [many, {"a": []}])]
    for live, told in cases:
        found = whole("x", live, told)
        assert found.off("p50") == math.inf
        assert found.missed
    nothing = whole("x", [{"a": []}], [many])
    assert nothing.p99_overlaps is None
    assert nothing.values("p99") == (math.inf, 1.0)


def test_number_of_live_runs_ignores_seeds_without_a_finished_request() -> None:
    assert varies([{"a": [1.0]}, {"a": []}, {"a": [1.0]}]) == 0.0
    assert varies([{"a": [1.0]}, {"a": []}]) == 0.0


def test_live_p99_is_compared_with_the_spread_of_single_simulated_seeds() -> None:
    live = [1.0 + n / 1000 for n in range(1000)]
    runs = [{"a": [value * times for value in live]} for times in (0.8, 1.1)]
    assert whole("x", [{"a": live}], runs).p99_overlaps is True
    assert whole("x", [{"a": live}], runs * 50).p99_overlaps is True
    assert whole("x", [{"a": live}], runs[:1] * 50).p99_overlaps is False
    assert whole("x", [{"a": live}], [*(runs[:1] * 50), runs[1]]).p99_overlaps is False, "one in fifty proves nothing"
    assert whole("x", [{"a": live[:100]}], runs).p99_overlaps is None


def test_live_p99_of_several_runs_is_compared_with_as_many_seeds_together() -> None:
    """Seeds with a p99 between 1 and 2: the p99 of nine together is the third of nine such draws."""
    live = [{"a": [1.0] * 480 + [1.2] * 20}] * 9
    runs = [{"a": [1.0] * 480 + [1.0 + n / 40] * 20} for n in range(41)]
    assert whole("x", live[:1], runs).p99_overlaps is True
    assert whole("x", live, runs).p99_overlaps is False
    assert whole("x", live, runs).over_seeds("p99")[0] > 1.2


def test_seed_interval_contains_9_of_10_seeds() -> None:
    assert whole("x", [], [{"a": [float(n)]} for n in range(101)]).over_seeds("p95") == (5.0, 95.0)


@pytest.mark.long
@pytest.mark.parametrize(("runs", "missed", "give"), [(1, 0.31, 0.05), (4, 0.051, 0.02)])
def test_probability_of_a_miss_by_chance_follows_from_the_spread_of_the_seeds(
    runs: int, missed: float, give: float
) -> None:
    """Normal latencies with mean 1 and sigma .15: the share below 1/1.15 and above 1/.85."""
    draw = Random(1)
    seeds = [{"a": [draw.gauss(1.0, 0.15)]} for _ in range(2000)]
    pair = whole("x", seeds[:runs], seeds)
    assert sum(pair.by_chance(draw).missed for _ in range(500)) / 500 == pytest.approx(missed, abs=give)


@pytest.mark.parametrize(
    ("median", "p95", "p99", "missed"),
    [(1.14, 1.14, 1.0, False), (1.16, 1.0, 1.0, True), (1.0, 1.16, 1.0, True), (1.0, 1.0, 1.1, True)],
)
def test_any_compared_figure_can_miss_its_target(median: float, p95: float, p99: float, *, missed: bool) -> None:
    def run(median: float, p95: float, p99: float) -> dict[str, list[float]]:
        return {"a": [median] * 500 + [2.0 * p95] * 450 + [4.0 * p99] * 50}

    assert whole("x", [run(1.0, 1.0, 1.0)], [run(median, p95, p99)] * 9).missed is missed


def test_comparison_leaves_out_tiers_with_few_requests_and_a_single_tier() -> None:
    assert list(by_tier("x", [{"a": [1.0], "b": [1.0]}], [{"a": [1.0], "b": [1.0]}])) == []
    assert list(by_tier("x", [{"a": [1.0] * MIN}], [{"a": [1.0] * MIN}])) == []
