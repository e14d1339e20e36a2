"""The knee by many steps together: where the fitted share of misses is what the promise allows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.verdict.knee import crossings

Point = tuple[float, int, int]
POINTS = st.lists(
    st.tuples(st.floats(0.1, 1000.0), st.integers(1, 10_000), st.floats(0.0, 1.0)).map(
        lambda drawn: (drawn[0], drawn[1], round(drawn[1] * drawn[2]))
    ),
    min_size=1,
    max_size=20,
)


def crossing(points: Sequence[Point], allowed: float) -> float:
    """The knee by rates with their requests and misses."""
    rates, requests, misses = (np.array(column, dtype=float) for column in zip(*points, strict=True))
    return float(crossings(rates, requests[None, :], misses[None, :], allowed)[0])


@pytest.mark.parametrize("slope", [2.0, 6.0, 30.0])
@pytest.mark.parametrize("allowed", [0.01, 0.05, 0.1])
def test_crossing_of_a_logistic_curve_is_found(slope: float, allowed: float) -> None:
    def share(rate: float) -> float:
        return 1.0 / (1.0 + math.exp(-(math.log(allowed / (1.0 - allowed)) + slope * math.log(rate / 7.0))))

    points = [(rate, 100_000, round(100_000 * share(rate))) for rate in (5.0, 6.0, 6.5, 7.2, 8.0)]
    assert crossing(points, allowed) == pytest.approx(7.0, rel=0.005)


def test_crossing_of_a_wall_is_between_its_sides() -> None:
    found = crossing([(30.0, 1000, 0), (36.0, 1000, 0), (38.0, 1000, 500)], 0.01)
    assert 36.0 < found < 38.0


def test_promise_that_nothing_broke_is_never_crossed() -> None:
    assert crossing([(1.0, 100, 0), (2.0, 200, 0)], 0.01) == math.inf


@given(POINTS, st.sampled_from([0.001, 0.01, 0.1, 0.5]))
def test_crossing_of_any_counts_is_a_rate(points: list[Point], allowed: float) -> None:
    found = crossing(points, allowed)
    assert found >= 0.0
    assert not math.isnan(found)
    if any(misses for _, _, misses in points):
        shuffled = Random(1).sample(points, len(points))
        assert crossing(shuffled, allowed) == pytest.approx(found, rel=1e-3)
