"""The conditions under which forecasts are trusted, and under which the alarm is raised."""

from __future__ import annotations

import random

from gateway.core.estimators.drift import PageHinkley
from gateway.core.estimators.histograms import Pace
from gateway.core.forecast.trust import COLD_LABELS, COLD_SAMPLES, UNLABELLED, TrustMonitor
from gateway.core.snapshot import Trust


def test_drift_alarm_is_not_raised_by_noise() -> None:
    for seed in range(20):
        source, alarm = random.Random(seed), PageHinkley()
        assert not any(alarm.add(source.gauss(0.0, 0.25)) for _ in range(5000))


def test_drift_alarm_is_raised_by_a_step_up_or_down() -> None:
    for seed in range(20):
        for step in (0.7, -0.7):
            source, alarm = random.Random(seed), PageHinkley()
            for _ in range(500):
                assert not alarm.add(source.gauss(0.0, 0.25))
            took = next(i for i in range(500) if alarm.add(source.gauss(step, 0.25)))
            assert took < 60


def test_error_level_after_a_drift_alarm_becomes_the_new_normal() -> None:
    source, alarm = random.Random(1), PageHinkley()
    for level in (0.0, 0.7):
        for _ in range(1000):
            alarm.add(source.gauss(level, 0.2))
    assert alarm.alarms == 1


def warm() -> TrustMonitor:
    gate = TrustMonitor()
    source = random.Random(1)
    for _ in range(300):
        gate.sampled(False)
        p = source.random()
        gate.forecast(1.0)
        gate.labelled(p, source.random() < p, 1.0)
    return gate


def test_trust_is_cold_until_enough_labels_were_seen() -> None:
    gate = TrustMonitor()
    for i in range(COLD_LABELS):
        assert gate.state is Trust.COLD
        if i < COLD_SAMPLES:
            gate.sampled(False)
        gate.labelled(0.1, False, 1.0)
    assert warm().state is Trust.TRUSTED


def test_trust_is_drifted_after_an_alarm_and_then_regained() -> None:
    gate = warm()
    gate.sampled(True)
    assert gate.state is Trust.DRIFTED
    samples = 0
    while gate.state is Trust.DRIFTED:
        gate.sampled(False)
        samples += 1
    assert 20 < samples < 100
    assert gate.state is Trust.TRUSTED


def test_probabilities_worse_than_the_base_rate_are_not_trusted() -> None:
    gate = warm()
    for i in range(4000):
        gate.labelled(0.9, i % 10 == 0, 1.0)
    assert gate.state is Trust.DRIFTED


def test_trust_returns_after_some_hundred_good_labels() -> None:
    gate, source = warm(), random.Random(2)
    for _ in range(20_000):
        gate.labelled(0.9, source.random() < 0.1, 1.0)
    assert gate.state is Trust.DRIFTED
    good = 0
    while gate.state is Trust.DRIFTED:
        p = source.random()
        gate.labelled(p, source.random() < p, 1.0)
        good += 1
    assert COLD_LABELS < good < 2000


def test_forecasts_slightly_worse_than_the_base_rate_stay_untrusted() -> None:
    gate, source, trusted = warm(), random.Random(3), 0
    for i in range(30_000):
        gate.labelled(0.5 + source.uniform(-0.4, 0.4), source.random() < 0.5, 1.0)
        trusted += i >= 2000 and gate.state is Trust.TRUSTED
    assert trusted < 300


def test_load_without_labels_is_uncovered() -> None:
    gate = warm()
    for _ in range(UNLABELLED):
        gate.forecast(100.0)
    assert gate.state is Trust.UNCOVERED
    gate.labelled(0.5, True, 100.0)
    assert gate.state is Trust.TRUSTED


def test_ordinary_load_between_two_labels_stays_covered() -> None:
    gate = warm()
    for i in range(20 * UNLABELLED):
        gate.forecast(1.2)
        if i % 50 == 0:
            gate.labelled(0.1, False, 1.0)
    assert gate.state is Trust.TRUSTED


def test_pace_takes_all_slow_samples_and_fast_ones_at_its_rate() -> None:
    slow, fast = Pace(50.0), Pace(50.0)
    assert all(slow.due(i / 40) for i in range(400))
    taken = sum(fast.due(i / 1000) for i in range(10_000))
    assert 500 <= taken <= 560
