"""Quantiles by rank."""

from __future__ import annotations

import math

import pytest

from loadtests.quantiles import interval, overlap, rank


@pytest.mark.parametrize(
    ("quantile", "expected"), [(0.01, 1), (0.5, 50), (0.501, 51), (0.99, 99), (0.991, 100), (1.0, 100)]
)
def test_a_quantile_is_the_smallest_value_that_covers_the_share(quantile: float, expected: int) -> None:
    assert rank(range(1, 101), quantile) == expected


def test_a_quantile_of_one_value_is_that_value() -> None:
    assert rank([7.0], 0.01) == rank([7.0], 0.99) == 7.0


def test_a_quantile_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="no values"):
        rank([], 0.5)


def test_intervals_of_few_say_nothing_and_those_of_many_meet_or_do_not() -> None:
    few, many = range(400), range(600)
    assert math.isinf(interval(few, 0.99)[1])
    assert overlap(few, many, 0.99) is None
    assert overlap(many, range(4, 604), 0.99) is True
    assert overlap(many, range(300, 900), 0.99) is False
