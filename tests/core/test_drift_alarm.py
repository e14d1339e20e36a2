"""The conditions under which the alarm of drift is raised."""

from __future__ import annotations

import random

from gateway.core.estimators.drift import PageHinkley
from gateway.core.estimators.histograms import Pace


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


def test_pace_takes_all_slow_samples_and_fast_ones_at_its_rate() -> None:
    slow, fast = Pace(50.0), Pace(50.0)
    assert all(slow.due(i / 40) for i in range(400))
    taken = sum(fast.due(i / 1000) for i in range(10_000))
    assert 500 <= taken <= 560
