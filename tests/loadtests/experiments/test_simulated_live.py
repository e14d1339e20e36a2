"""What is held against what in the experiment simulated-live."""

from __future__ import annotations

import math
from random import Random

from loadtests.experiments.simulated_live import KNOWN, LEAST, MOST_RUNS, _by_tier, _runs_needed, _whole


def test_the_whole_is_all_tiers_in_order() -> None:
    found = _whole("x", [{"": [], "a": [1.0, 4.0], "b": [2.0]}], [{"a": [1.0], "b": [3.0, 5.0]}])
    assert found.live == [[1.0, 2.0, 4.0]]
    assert found.runs == [[1.0, 3.0, 5.0]]
    assert found.off("p50") == 0.5


def test_it_is_the_means_of_the_runs_that_are_compared() -> None:
    found = _whole("x", [{"a": [1.0]}, {"a": [4.0, 4.0, 4.0]}], [{"a": [1.0]}, {"a": [2.0]}])
    assert found.values("p50") == (2.5, 1.5)


def test_how_often_is_played_follows_from_how_far_the_seeds_lie_apart() -> None:
    draw = Random(1)

    def seeds(spread: float) -> list[dict[str, list[float]]]:
        return [{"a": [draw.gauss(1.0, spread)]} for _ in range(4000)]

    assert _runs_needed([{"a": [1.0]}, {"a": [1.0]}]) == 1
    assert _runs_needed(seeds(KNOWN * 0.9)) == 1
    assert _runs_needed(seeds(KNOWN * 1.9)) == 4  # the standard error of four is half of that
    assert _runs_needed(seeds(KNOWN * 9.0)) == MOST_RUNS


def test_the_wider_of_p50_and_p95_decides_and_p99_does_not() -> None:
    steady, tail = [1.0] * 94, [2.0] * 5
    last = [{"a": [*steady, *tail, 1.0 + n]} for n in (5.0, 50.0)]
    assert _runs_needed(last) == 1
    assert _runs_needed([{"a": [*steady, *tail, 2.0]}, {"a": [*steady, *(3.0 for _ in tail), 3.0]}]) > 1


def test_a_tier_that_finished_on_one_side_only_is_as_far_off_as_can_be() -> None:
    many = [1.0] * LEAST
    (live_only,) = _by_tier("x", [{"a": many, "b": []}], [{"a": [], "b": []}])
    (told_only,) = _by_tier("x", [{"a": [], "b": []}], [{"a": many, "b": []}])
    assert live_only.name == "x: a"
    assert live_only.off("p50") == math.inf
    assert told_only.off("p50") == 1.0


def test_a_p99_is_held_against_what_single_seeds_say_however_many_there_are() -> None:
    live = [1.0 + n / 1000 for n in range(1000)]
    runs = [{"a": [value * times for value in live]} for times in (0.8, 1.1)]
    assert _whole("x", [{"a": live}], runs).p99_overlaps is True
    assert _whole("x", [{"a": live}], runs * 50).p99_overlaps is True
    assert _whole("x", [{"a": live}], runs[:1] * 50).p99_overlaps is False
    assert _whole("x", [{"a": live}], [*(runs[:1] * 50), runs[1]]).p99_overlaps is False, "one in fifty proves nothing"
    assert _whole("x", [{"a": live[:100]}], runs).p99_overlaps is None
    assert _whole("x", [{"a": live[:100]}] * 10, runs).p99_overlaps is not None, "all that is live counts"


def test_tiers_of_few_and_one_tier_alone_are_left_out() -> None:
    assert list(_by_tier("x", [{"a": [1.0], "b": [1.0]}], [{"a": [1.0], "b": [1.0]}])) == []
    assert list(_by_tier("x", [{"a": [1.0] * LEAST}], [{"a": [1.0] * LEAST}])) == []
