"""Costs learned from samples: correct, never below zero, and forgotten over time."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.estimators.regression import NonNegative, nnls
from tests.core.made import STEADY


def test_regression_recovers_its_coefficients() -> None:
    source = random.Random(1)
    true = (0.01, 0.05, 0.04, 0.002)
    fit = NonNegative((0.02, 0.15, 0.3, 0.01))

    def features() -> tuple[float, float, float]:
        return source.uniform(0, 4), source.uniform(0, 0.06), source.uniform(0, 10)

    def cost(a: float, b: float, c: float) -> float:
        return true[0] + true[1] * a + true[2] * b + true[3] * c

    for _ in range(400):
        x = features()
        fit.add(*x, cost(*x) * source.lognormvariate(0.0, 0.05), 1.0)
    for _ in range(20):
        x = features()
        assert fit.predict(*x) == pytest.approx(cost(*x), rel=0.05)
    assert fit.coefficients[1] == pytest.approx(true[1], rel=0.05)


def test_negative_cost_is_fitted_as_zero_and_others_adjust() -> None:
    source = random.Random(2)
    fit = NonNegative((0.1, 1.0, 1.0, 1.0))
    for _ in range(400):
        a, b, c = source.random(), source.random(), source.random()
        fit.add(a, b, c, 1.0 + 2.0 * a - 0.5 * b, 1.0)
    assert fit.coefficients[2] == 0.0
    assert fit.coefficients[1] == pytest.approx(2.0, rel=0.2)


def test_value_whose_error_is_in_its_feature_is_fitted_by_the_instrument() -> None:
    source = random.Random(3)

    def learn(slope: float, told: bool) -> NonNegative:
        fit = NonNegative((0.02, 0.15, 0.03, 0.15))
        for _ in range(400):
            rate = source.gammavariate(10.0, 0.5)
            y = 0.03 / (1.0 - slope * rate) * source.lognormvariate(0.0, 0.6)
            fit.add(0.004, 0.01, rate * y, y, 1.0, rate if told else None)
        return fit

    for slope in (0.0, 0.05):
        assert learn(slope, told=True).coefficients[3] == pytest.approx(slope, abs=0.04)
        assert learn(slope, told=True).predict(0.004, 0.01, 0.0) == pytest.approx(0.033, rel=0.3)
        assert learn(slope, told=False).coefficients[3] > 0.1


def test_regression_without_samples_returns_the_prior() -> None:
    fit = NonNegative((0.5, 2.0, 1.0, 0.1))
    assert fit.predict(3.0, 1.0, 10.0) == 8.5


def settled(y: float) -> NonNegative:
    """After many samples of `y`."""
    fit = NonNegative((1.0, 1.0, 1.0, 1.0))
    for _ in range(800):
        fit.add(0.5, 0.0, 0.0, y, 1.0)
    return fit


def test_earlier_slope_is_forgotten_after_400_samples() -> None:
    fit = settled(8.0)
    for _ in range(400):
        fit.add(0.5, 0.0, 0.0, 2.0, 1.0)
    assert fit.predict(0.5, 0.0, 0.0) == pytest.approx(2.0, rel=0.01)


def test_regression_learns_new_costs_sooner_after_forgetting() -> None:
    steady, alarmed = settled(8.0), settled(8.0)
    alarmed.forget()
    for fit in (steady, alarmed):
        for _ in range(80):
            fit.add(0.5, 0.0, 0.0, 2.0, 1.0)
    assert 2.0 < alarmed.predict(0.5, 0.0, 0.0) < 5.5 < steady.predict(0.5, 0.0, 0.0) < 8.0


@STEADY
@given(st.lists(st.tuples(*[st.floats(0, 10)] * 3, st.floats(0.001, 100)), min_size=40, max_size=120))
def test_regression_coefficients_are_never_negative(samples: list[tuple[float, float, float, float]]) -> None:
    fit = NonNegative((0.1, 0.1, 0.1, 0.1))
    for sample in samples:
        fit.add(*sample, 1.0)
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
