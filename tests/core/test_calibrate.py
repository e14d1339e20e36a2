"""Calibrated probabilities are right after some labels, and stay right."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.estimators.logistic import Features, Logistic, logistic, logit
from gateway.core.forecast.calibrator import Calibrator
from gateway.core.forecast.reliability import reliability
from tests.core.made import STEADY

IDENTITY = (0.0, 4.0, 0.0, 0.0, 0.0)


def draw(source: random.Random) -> Features:
    x = source.uniform(-1.5, 1.5)
    return x, max(0.0, x), 0.0, 0.0


def taught(labels: int, truth: tuple[float, float], seed: int, model: Logistic | None = None) -> Logistic:
    """A model that saw labels of P = logistic(truth[0] + truth[1] x)."""
    source = random.Random(seed)
    model = model or Logistic(IDENTITY)
    for _ in range(labels):
        x = draw(source)
        breached = source.random() < logistic(truth[0] + truth[1] * x[0])
        model.add(x, logistic(model.score(x)), breached)
    return model


def worst(model: Logistic, truth: tuple[float, float]) -> float:
    """The largest error of a probability."""
    xs = [i / 10 for i in range(-15, 16)]
    return max(abs(logistic(model.score((x, max(0.0, x), 0.0, 0.0))) - logistic(truth[0] + truth[1] * x)) for x in xs)


def test_calibration_without_labels_repeats_the_raw_probability() -> None:
    model = Logistic(IDENTITY)
    for p in (0.01, 0.3, 0.99):
        x = logit(p) / 4.0
        assert logistic(model.score((x, max(0.0, x), 0.0, 0.0))) == pytest.approx(p)


def test_calibration_corrects_overconfident_probabilities() -> None:
    truth = (0.8, 1.5)
    assert worst(taught(8000, truth, seed=1), truth) < 0.5 * worst(Logistic(IDENTITY), truth)


def test_earlier_calibration_is_forgotten() -> None:
    before, after = (1.0, 2.0), (-1.0, 4.0)
    fresh = taught(20_000, after, seed=3)
    model = taught(6000, before, seed=2)
    assert worst(model, before) < worst(model, after)
    taught(20_000, after, seed=3, model=model)
    assert worst(model, after) < worst(fresh, after) + 0.03


def test_calibration_without_labels_returns_to_the_prior() -> None:
    source = random.Random(4)
    model = Logistic(IDENTITY)
    for breached in (True, False):
        for _ in range(20_000):
            x = (0.5, 0.5, 1.0, 0.5) if breached else (-0.5, 0.0, 0.0, 0.0)
            model.add(x, logistic(model.score(x)), breached or source.random() < 0.1)
        if breached:
            learned = model.weights[3]
    assert learned > 0.05
    assert abs(model.weights[3]) < learned / 5


def test_weights_stay_finite_when_every_label_is_the_same() -> None:
    model = Logistic(IDENTITY)
    for _ in range(20_000):
        x = (1.5, 1.5, 1.0, 0.9)
        model.add(x, logistic(model.score(x)), True)
    assert max(abs(weight) for weight in model.weights) < 20.0


def test_label_of_an_explored_request_weighs_more_in_the_calibration() -> None:
    plain, weighed = Logistic(IDENTITY), Logistic(IDENTITY)
    x = (0.0, 0.0, 0.0, 0.0)
    for model, weight in ((plain, 1.0), (weighed, 10.0)):
        for _ in range(64):
            model.add(x, logistic(model.score(x)), True, weight)
    assert logistic(plain.score(x)) < logistic(weighed.score(x))


def test_calibration_differs_by_tier() -> None:
    """One tier has no surprises; the other is overtaken by requests that nobody could foresee."""
    source = random.Random(5)
    labels = Calibrator()

    def true(raw: float, tier: str) -> float:
        return raw if tier == "first" else logistic(0.3 + 0.7 * logit(raw))

    for _ in range(20_000):
        raw, tier = source.random(), source.choice(("first", "last"))
        labels.breach.learn(labels.features(raw, False, 0, 0.0), tier, source.random() < true(raw, tier), 1.0)
    for tier in ("first", "last"):
        for raw in (0.1, 0.5, 0.9):
            said = labels.breach.of(labels.features(raw, False, 0, 0.0), tier)
            assert said == pytest.approx(true(raw, tier), abs=0.06), (tier, raw)


@STEADY
@given(st.floats(0, 1), st.floats(0, 1))
def test_logit_and_logistic_are_monotone_and_inverse(p: float, q: float) -> None:
    p, q = sorted((p, q))
    assert logit(p) <= logit(q)
    assert logistic(logit(p)) <= logistic(logit(q))
    assert logistic(logit(p)) == pytest.approx(p, abs=4e-4)


def test_reliability_error_of_true_probabilities_is_small() -> None:
    source = random.Random(6)
    pairs = [(p, source.random() < p) for p in (source.random() for _ in range(30_000))]
    found = reliability(pairs)
    assert found.ece < 0.01
    assert found.skill == pytest.approx(1 / 3, abs=0.02)
    assert sum(n for n, _, _ in found.bins) == 30_000
    assert max(n for n, _, _ in found.bins) - min(n for n, _, _ in found.bins) <= 1


def test_reliability_error_of_false_probabilities_is_large() -> None:
    source = random.Random(7)
    pairs = [(0.9, source.random() < 0.5) for _ in range(3000)]
    found = reliability(pairs)
    assert found.ece == pytest.approx(0.4, abs=0.03)
    assert found.skill < 0


def test_reliability_error_does_not_depend_on_the_order_of_labels() -> None:
    pairs = [(0.5, i % 2 == 0) for i in range(3000)]
    assert reliability(pairs).ece < 0.01


def test_reliability_without_labels_counts_none() -> None:
    assert reliability([]).labels == 0
