"""Costs learned from samples: found again, never below zero, and forgotten."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.regress import NonNegative, nnls
from tests.core.made import STEADY


def test_coefficients_are_found_again() -> None:
    source = random.Random(1)
    true = (0.01, 0.05, 0.04, 0.002)
    fit = NonNegative((0.02, 0.15, 0.3, 0.01))
    for _ in range(400):
        x = (1.0, source.uniform(0, 4), source.uniform(0, 0.06), source.uniform(0, 10))
        y = sum(c * f for c, f in zip(true, x, strict=True))
        fit.add(x, y * source.lognormvariate(0.0, 0.05))
    for _ in range(20):
        x = (1.0, source.uniform(0, 4), source.uniform(0, 0.06), source.uniform(0, 10))
        assert fit.predict(x) == pytest.approx(sum(c * f for c, f in zip(true, x, strict=True)), rel=0.05)
    assert fit.coefficients[1] == pytest.approx(true[1], rel=0.05)


def test_a_cost_that_looks_negative_is_none_and_the_others_make_up_for_it() -> None:
    source = random.Random(2)
    fit = NonNegative((0.1, 1.0, 1.0))
    for _ in range(400):
        x = (1.0, source.uniform(0, 1), source.uniform(0, 1))
        fit.add(x, 1.0 + 2.0 * x[1] - 0.5 * x[2])
    assert fit.coefficients[2] == 0.0
    assert fit.coefficients[1] == pytest.approx(2.0, rel=0.2)


def test_before_any_sample_the_prior_speaks() -> None:
    fit = NonNegative((0.5, 2.0))
    assert fit.predict((1.0, 3.0)) == 6.5


def test_what_was_is_forgotten_after_400_samples() -> None:
    fit = NonNegative((1.0, 1.0))
    for _ in range(800):
        fit.add((1.0, 0.5), 8.0)
    for _ in range(400):
        fit.add((1.0, 0.5), 2.0)
    assert fit.predict((1.0, 0.5)) == pytest.approx(2.0, rel=0.01)


def test_a_halved_window_learns_the_new_sooner() -> None:
    whole, halved = NonNegative((1.0,)), NonNegative((1.0,))
    for fit in (whole, halved):
        for _ in range(400):
            fit.add((1.0,), 8.0)
    halved.halve()
    for fit in (whole, halved):
        for _ in range(80):
            fit.add((1.0,), 2.0)
    assert 2.0 < halved.predict((1.0,)) < whole.predict((1.0,)) < 8.0


@STEADY
@given(st.lists(st.tuples(*[st.floats(0, 10)] * 3, st.floats(0.001, 100)), min_size=40, max_size=120))
def test_no_coefficient_is_ever_negative(samples: list[tuple[float, float, float, float]]) -> None:
    fit = NonNegative((0.1, 0.1, 0.1))
    for *x, y in samples:
        fit.add(x, y)
        assert min(fit.coefficients) >= 0.0


@STEADY
@given(st.lists(st.tuples(*[st.floats(-3, 3)] * 3, st.floats(-5, 5)), min_size=4, max_size=12))
def test_nnls_meets_the_conditions_of_karush_kuhn_and_tucker(samples: list[tuple[float, float, float, float]]) -> None:
    matrix = [[sum(s[i] * s[j] for s in samples) + 0.1 * (i == j) for j in range(3)] for i in range(3)]
    target = [sum(s[i] * s[3] for s in samples) for i in range(3)]
    x = nnls(matrix, target)
    for i in range(3):
        slope = target[i] - sum(matrix[i][j] * x[j] for j in range(3))
        assert x[i] >= 0.0
        tolerance = 1e-6 * (1.0 + abs(target[i]) + sum(abs(matrix[i][j] * x[j]) for j in range(3)))
        assert slope <= tolerance
        if x[i] > 0.0:
            assert abs(slope) <= tolerance
