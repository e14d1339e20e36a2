"""Histograms with log buckets: quantiles against the exact ones."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.estimators.histograms import LogHistogram, log_edges

ERROR = 0.02
EDGES = log_edges(1e-4, 3600.0, ERROR)
durations = st.floats(min_value=1.1e-4, max_value=3600.0)
quantiles = st.sampled_from([0.0, 0.01, 0.25, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0])


def nearest_rank(values: list[float], q: float) -> float:
    """The smallest value that at least q of all values do not exceed."""
    ranked = sorted(values)
    return ranked[max(math.ceil(round(q * len(ranked), 6)), 1) - 1]


@given(st.lists(durations, min_size=1, max_size=200), quantiles)
def test_a_quantile_is_within_the_relative_error_of_the_exact_one(values: list[float], q: float) -> None:
    histogram = LogHistogram(EDGES)
    for value in values:
        histogram.add(value)
    assert histogram.quantile(q) == pytest.approx(nearest_rank(values, q), rel=ERROR + 1e-9)


@given(st.lists(st.tuples(durations, st.integers(1, 5)), min_size=1, max_size=50), quantiles)
def test_a_value_with_a_weight_counts_in_a_histogram_as_often_as_it_says(
    pairs: list[tuple[float, int]], q: float
) -> None:
    weighted, repeated = LogHistogram(EDGES), LogHistogram(EDGES)
    for value, weight in pairs:
        weighted.add(value, weight)
        for _ in range(weight):
            repeated.add(value)
    assert weighted.counts == repeated.counts
    assert weighted.sum == pytest.approx(repeated.sum)
    assert weighted.quantile(q) == repeated.quantile(q)


@given(st.lists(st.tuples(durations, st.floats(1e-3, 1e3)), min_size=1, max_size=50))
def test_fractional_weights_leave_the_highest_quantile_in_the_highest_bucket(pairs: list[tuple[float, float]]) -> None:
    histogram = LogHistogram(EDGES)
    for value, weight in pairs:
        histogram.add(value, weight)
    top = max(value for value, _ in pairs)
    assert (histogram.quantile(1.0) or 0) <= top * (1 + ERROR + 1e-9)


def test_an_empty_histogram_has_no_quantile() -> None:
    assert LogHistogram(EDGES).quantile(0.5) is None


def test_values_outside_the_edges_read_as_the_outermost_edge() -> None:
    histogram = LogHistogram(EDGES)
    histogram.add(0.0)
    assert histogram.quantile(1.0) == EDGES[0]
    histogram.add(1e9)
    assert histogram.quantile(1.0) == EDGES[-1]


def test_a_value_on_an_edge_is_counted_at_or_below_it() -> None:
    edges = log_edges(0.01, 10.0, ERROR, exact=(0.2,))
    histogram = LogHistogram(edges)
    histogram.add(0.2)
    histogram.add(math.nextafter(0.2, 1.0))
    assert sum(histogram.counts[: edges.index(0.2) + 1]) == 1


def test_edges_reach_from_low_to_high_in_narrow_steps() -> None:
    assert EDGES[0] == 1e-4
    assert EDGES[-1] >= 3600.0
    assert all(low < high <= low * (1 + ERROR) ** 2 * (1 + 1e-9) for low, high in pairwise(EDGES))
