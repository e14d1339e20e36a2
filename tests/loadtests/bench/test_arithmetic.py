"""Percentiles, paired ratios, and the order of targets."""

from __future__ import annotations

import pytest

from loadtests.bench.arithmetic import median_ratio, percentile, rotated


@pytest.mark.parametrize(
    ("quantile", "expected"), [(0.01, 1), (0.5, 50), (0.501, 51), (0.99, 99), (0.991, 100), (1.0, 100)]
)
def test_percentile_is_the_smallest_value_that_covers_the_share(quantile: float, expected: int) -> None:
    values = [*range(100, 50, -1), *range(1, 51)]
    assert percentile(values, quantile) == expected


def test_percentile_of_one_value_is_that_value() -> None:
    assert percentile([7.0], 0.01) == percentile([7.0], 0.99) == 7.0


def test_percentile_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def test_ratios_are_paired_by_round_so_that_drift_cancels_out() -> None:
    # The machine gets ten times slower half way: each round still says 2, the ratio of medians would not.
    assert median_ratio([2, 4, 20, 60, 40], [1, 2, 10, 30, 20]) == 2
    # One disturbed round does not move the median.
    assert median_ratio([1, 1, 50], [2, 2, 2]) == 0.5


def test_rounds_that_do_not_pair_up_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        median_ratio([1, 2], [1])


def test_each_target_comes_first_in_turn() -> None:
    orders = [rotated(["a", "b", "c"], turn) for turn in range(4)]
    assert orders == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"], ["a", "b", "c"]]
