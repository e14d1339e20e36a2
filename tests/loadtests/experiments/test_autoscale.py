"""The simulated fleet follows the wanted replicas, and the optimum is found."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from gateway.plan.knee import scaled
from gateway.sim.workload.arrival_process import Diurnal
from loadtests.experiments.autoscale import (
    AT_FIRST,
    DEPTH,
    MAX,
    READING_S,
    START_S,
    Day,
    _changes,
    _day,
    _knee_at,
    _needed,
    _rate,
    _short,
    _turns,
)
from loadtests.experiments.runner import Effort, Runner

DAY_S = 480.0


@pytest.fixture(scope="module")
def day() -> Day:
    runner = Runner(Effort(seconds=DAY_S, warmup_s=0.0))
    workload = replace(runner.workload("main"), rate_per_s=10.0, shape=Diurnal(DAY_S, DEPTH))
    return _day((scaled(runner.policy(), {"main": MAX}), workload, 1))


def test_autoscale_experiment_decides_every_quarter_minute(day: Day) -> None:
    assert [reading.at for reading in day.readings] == [n * READING_S for n in range(int(DAY_S / READING_S))]
    assert (day.readings[0].paid, day.readings[0].serving, day.readings[0].wanted) == (AT_FIRST, AT_FIRST, AT_FIRST)


def test_wanted_replica_is_paid_at_once_and_serves_after_its_start(day: Day) -> None:
    assert all(reading.paid == reading.wanted for reading in day.readings)
    assert all(reading.serving <= reading.paid for reading in day.readings)
    assert len({reading.wanted for reading in day.readings}) > 1
    waited = int(START_S / READING_S)
    for now, then in zip(day.readings, day.readings[waited:], strict=False):
        least = min(reading.paid for reading in day.readings if now.at <= reading.at <= then.at)
        assert then.serving >= least


def test_replicas_serve_only_after_their_start(day: Day) -> None:
    assert day.result.goodput > 0.7  # a day of eight minutes leaves no time to start replicas
    # The policy has sixteen replicas; drained ones did nothing.
    most = max(reading.serving for reading in day.readings)
    assert day.result.busy <= (most + 0.5) / MAX
    assert day.readings[-1].demand > 0.0


def test_autoscale_optimum_is_the_fewest_replicas_whose_knee_is_above_the_rate() -> None:
    knees = {1: 9.0, 3: 24.0, 8: 64.0}
    assert [_knee_at(knees, n) for n in (1, 3, 8, 16)] == [9.0, 24.0, 64.0, 128.0]
    assert 2 * 8.0 < _knee_at(knees, 2) < 2 * 9.0
    assert [_needed(knees, rate) for rate in (0.1, 9.0, 9.1, 24.0, 24.1, 64.5)] == [1, 1, 2, 3, 4, 9]


def test_autoscale_load_is_a_sine_from_its_lowest_point() -> None:
    workload = replace(Runner(Effort()).workload("main"), rate_per_s=10.0, shape=Diurnal(DAY_S, DEPTH))
    assert _rate(workload, 0.0) == pytest.approx(3.0)
    assert _rate(workload, DAY_S / 2) == pytest.approx(17.0)


def test_autoscale_experiment_counts_reversals_and_changes() -> None:
    assert (_turns([1, 2, 3, 3, 2, 1]), _changes([1, 2, 3, 3, 2, 1])) == (1, 4)
    assert (_turns([2, 3, 2, 3]), _turns([2, 2, 2]), _turns([])) == (2, 0, 0)


def test_autoscale_shortage_is_the_share_of_time_with_too_few_replicas(day: Day) -> None:
    later = [replace(reading, at=reading.at + 900.0) for reading in day.readings]
    assert _short(later, [reading.serving for reading in later]) == 0.0
    assert _short(later, [reading.serving + 1 for reading in later]) == 1.0
    assert _short(day.readings, [99] * len(day.readings)) == 0.0  # the first quarter of an hour
    assert all(after.at > before.at for before, after in pairwise(later))
