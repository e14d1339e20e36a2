"""Sliding windows: members, and quantiles of members."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.estimators.histograms import quantile
from gateway.observe.metrics.window import EDGES, RELATIVE_ERROR, SLICE_S, SPAN_S, Quantiles, Sliding
from tests.footprint import footprint

steps = st.lists(st.tuples(st.floats(0, 40), st.floats(2e-4, 1000)), min_size=1, max_size=100)


@given(steps, st.floats(0, 100), st.sampled_from([0.5, 0.95, 0.99]))
def test_window_quantiles_cover_the_last_minute_within_a_slice(
    steps: list[tuple[float, float]], later: float, q: float
) -> None:
    quantiles = Quantiles()
    seen: list[tuple[float, float]] = []
    now = 1000.0
    for wait, value in steps:
        now += wait
        quantiles.roll(now)
        quantiles.histogram.add(value)
        seen.append((now, value))
    now += later
    total = int(sum(quantiles.read(now)))
    assert sum(at > now - SPAN_S for at, _ in seen) <= total <= sum(at > now - SPAN_S - SLICE_S for at, _ in seen)
    newest = sorted(value for _, value in seen[len(seen) - total :])
    if newest:
        exact = newest[math.ceil(round(q * total, 6)) - 1]
        assert quantile(EDGES, quantiles.read(now), q) == pytest.approx(exact, rel=RELATIVE_ERROR + 1e-9)
    else:
        assert quantile(EDGES, quantiles.read(now), q) is None


def test_reading_window_quantiles_changes_nothing() -> None:
    quantiles = Quantiles()
    quantiles.roll(0.0)
    quantiles.histogram.add(1.0)
    assert sum(quantiles.read(500.0)) == 0
    assert sum(quantiles.read(1.0)) == 1


def test_counts_added_before_the_first_roll_are_in_the_sliding_window() -> None:
    counts: list[float] = [0, 0]
    sliding = Sliding(counts)
    counts[1] += 3
    assert sliding.read(100.0) == [0, 3]
    sliding.roll(100.0)
    assert sliding.read(100.0) == [0, 3]


def test_a_sliding_window_is_empty_once_its_span_is_over() -> None:
    counts: list[float] = [0]
    sliding = Sliding(counts)
    sliding.roll(0.0)
    counts[0] += 1
    assert sliding.read(64.9) == [1]
    assert sliding.read(65.0) == [0]


def test_sliding_window_keeps_at_most_one_copy_per_slice() -> None:
    counts: list[float] = [0]
    sliding = Sliding(counts)
    full = 0
    for second in range(10_000):
        sliding.roll(float(second))
        if second == 120:
            full = footprint(sliding)
    assert footprint(sliding) <= 1.2 * full
