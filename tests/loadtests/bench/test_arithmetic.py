"""Paired ratios, and the order of targets."""

from __future__ import annotations

import pytest

from loadtests.bench.arithmetic import median_ratio, rotated


def test_bench_ratios_are_paired_by_round_so_that_drift_cancels_out() -> None:
    # The machine gets ten times slower half way: the ratio of each round is still 2, the ratio of medians is not.
    assert median_ratio([2, 4, 20, 60, 40], [1, 2, 10, 30, 20]) == 2
    # One disturbed round does not move the median.
    assert median_ratio([1, 1, 50], [2, 2, 2]) == 0.5


def test_bench_ratio_of_unequal_numbers_of_rounds_is_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        median_ratio([1, 2], [1])


def test_bench_targets_take_turns_in_going_first() -> None:
    orders = [rotated(["a", "b", "c"], turn) for turn in range(4)]
    assert orders == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"], ["a", "b", "c"]]
