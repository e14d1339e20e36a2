"""Quantiles by rank."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.quantiles import interval, overlap, rank
from loadtests.replay.columns import percentiles


@pytest.mark.parametrize(
    ("quantile", "expected"), [(0.01, 1), (0.5, 50), (0.501, 51), (0.99, 99), (0.991, 100), (1.0, 100)]
)
def test_a_quantile_is_the_smallest_value_that_covers_the_share(quantile: float, expected: int) -> None:
    assert rank(range(1, 101), quantile) == expected


def test_a_quantile_of_one_value_is_that_value() -> None:
    assert rank([7.0], 0.01) == rank([7.0], 0.99) == 7.0


def test_quantile_of_no_values_is_an_error() -> None:
    with pytest.raises(ValueError, match="no values"):
        rank([], 0.5)


def test_a_p99_interval_is_unknown_of_few_values_and_overlaps_or_not_of_many() -> None:
    few, many = range(400), range(600)
    assert math.isinf(interval(few, 0.99)[1])
    assert overlap(few, many, 0.99) is None
    assert overlap(many, range(4, 604), 0.99) is True
    assert overlap(many, range(300, 900), 0.99) is False


@given(
    st.lists(st.floats(width=32) | st.just(math.nan), max_size=300),
    st.lists(st.floats(0.0, 1.0, exclude_min=True), max_size=20),
)
def test_percentiles_of_a_column_ignore_missing_values(values: list[float], quantiles: list[float]) -> None:
    known = sorted(value for value in values if not math.isnan(value))
    expected = [rank(known, quantile) for quantile in quantiles] if known else [None] * len(quantiles)
    assert percentiles(np.array(values, dtype=np.float32), quantiles) == expected
