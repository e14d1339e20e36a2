"""Calibrated probabilities are right after some labels, and stay right."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.estimators.logistic import Calibration, features, logistic, logit
from gateway.core.forecast.learned import PoolLearned
from gateway.core.forecast.reliability import reliability
from gateway.core.policy import AdmissionMode, AdmissionSpec
from gateway.core.prediction import NOTHING_AHEAD, Forecast
from tests.core.made import STEADY, tier

SHADOW = AdmissionSpec(AdmissionMode.SHADOW)


def taught(labels: int, truth: tuple[float, float], seed: int, model: Calibration | None = None) -> Calibration:
    """A calibration that saw labels of P = logistic(truth[0] + truth[1] x logit)."""
    source = random.Random(seed)
    model = model or Calibration()
    for _ in range(labels):
        raw = logistic(source.uniform(-5.0, 5.0))
        model.learn(features(raw, 0, 0.0), source.random() < logistic(truth[0] + truth[1] * logit(raw)))
    return model


def worst(model: Calibration, truth: tuple[float, float]) -> float:
    """The largest error of a probability."""
    raws = [logistic(i / 4) for i in range(-20, 21)]
    return max(abs(model.of(features(p, 0, 0.0)) - logistic(truth[0] + truth[1] * logit(p))) for p in raws)


@pytest.mark.parametrize("p", [0.01, 0.3, 0.99])
def test_calibration_without_labels_repeats_the_raw_probability(p: float) -> None:
    assert Calibration().of(features(p, 7, 0.3)) == pytest.approx(p)


def test_calibration_corrects_overconfident_probabilities() -> None:
    truth = (0.8, 0.4)
    assert worst(Calibration(), truth) > 0.2
    assert worst(taught(5000, truth, seed=1), truth) < 0.05


def test_earlier_calibration_is_forgotten() -> None:
    before, after = (1.0, 0.5), (-1.0, 1.0)
    model = taught(5000, before, seed=2)
    assert worst(model, before) < worst(model, after)
    taught(20_000, after, seed=3, model=model)
    assert worst(model, after) < 0.05


@pytest.mark.parametrize("label", [False, True])
def test_weights_stay_finite_when_every_label_is_the_same(label: bool) -> None:
    model = Calibration()
    for _ in range(20_000):
        model.learn(features(0.9, 50, 0.9), label)
    assert max(map(abs, model.weights)) < 20.0
    assert model.of(features(0.9, 50, 0.9)) == pytest.approx(float(label), abs=0.01)


def test_probability_of_a_half_moves_by_few_points_with_one_label() -> None:
    model = Calibration()
    model.learn(features(0.5, 0, 0.0), True)
    assert 0.5 < model.of(features(0.5, 0, 0.0)) < 0.53


def test_calibration_learns_that_requests_behind_many_others_are_overtaken() -> None:
    source, model = random.Random(4), Calibration()
    for _ in range(20_000):
        ahead, raw = source.randrange(100), source.uniform(0.05, 0.6)
        model.learn(features(raw, ahead, 0.5), source.random() < logistic(logit(raw) + ahead / 50))
    few, many = (model.of(features(0.4, ahead, 0.5)) for ahead in (1, 99))
    assert few < 0.5 < 0.7 < many


def test_calibration_differs_by_tier() -> None:
    """One tier has no surprises; the other is overtaken by requests that nobody could foresee."""
    source, learned = random.Random(5), PoolLearned()
    tiers = {name: tier(name, admission=SHADOW) for name in ("first", "last", "new")}

    def true(raw: float, name: str) -> float:
        return raw if name == "first" else logistic(0.3 + 0.7 * logit(raw))

    for _ in range(20_000):
        raw, name = source.random(), source.choice(("first", "last"))
        forecast = Forecast("p", 0.0, 0.0, 1.0, 0.1)
        forecast.features = features(raw, 0, 0.0)
        learned.label(tiers[name], forecast, source.random() < true(raw, name))
    for name in ("first", "last"):
        for raw in (0.1, 0.5, 0.9):
            forecast = Forecast("p", 0.0, 0.0, 1.0, 0.1)
            learned.calibrate(tiers[name], forecast, raw, NOTHING_AHEAD)
            assert forecast.breach == pytest.approx(true(raw, name), abs=0.06), (name, raw)
    learned.calibrate(tiers["new"], forecast, 0.9, NOTHING_AHEAD)
    assert forecast.breach == pytest.approx(0.9)


def test_outcomes_of_requests_that_were_chosen_do_not_calibrate() -> None:
    learned, enforced = PoolLearned(), tier("t", admission=AdmissionSpec(AdmissionMode.ENFORCE))
    forecast = Forecast("p", 0.0, 0.0, 1.0, 0.1)
    for _ in range(1000):
        learned.calibrate(enforced, forecast, 0.3, NOTHING_AHEAD)
        learned.label(enforced, forecast, True)
    assert forecast.breach == 0.3


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
    found = reliability([(0.9, source.random() < 0.5) for _ in range(3000)])
    assert found.ece == pytest.approx(0.4, abs=0.03)
    assert found.skill < 0
