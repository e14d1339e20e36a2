"""Computations of the experiments on retries, fan-out and churn."""

from __future__ import annotations

import pytest

from gateway.sim.run.results import Timeline
from loadtests.experiments.cancel_churn import churned, policies
from loadtests.experiments.churn import Churn, Client
from loadtests.experiments.fan_out import slow_share
from loadtests.experiments.retry_storm import SECONDS, SLOW_AT, WELL_AT, back_after_s, to_before


def timeline(bad: range) -> Timeline:
    """Ten requests a second, all good, except half of those in the `bad` seconds."""
    good = tuple(5 if second in bad else 10 for second in range(SECONDS))
    return Timeline((10,) * SECONDS, (10,) * SECONDS, good)


def test_storm_experiment_compares_goodput_with_that_before_the_storm() -> None:
    run = timeline(range(SLOW_AT, WELL_AT + 15))
    assert to_before(run, WELL_AT + 10, WELL_AT + 20) == pytest.approx(0.75)
    assert back_after_s(run) == 19.0  # until no five seconds contain a bad second
    assert back_after_s(timeline(range(SLOW_AT, WELL_AT))) == 0.0


def test_fan_out_is_slow_if_one_of_its_calls_is() -> None:
    calls = [1.0, 9.0, 1.0, 1.0, 1.0, 1.0, 9.0, 9.0, 1.0]
    assert slow_share(calls, 1, 5.0) == pytest.approx(3 / 9)
    assert slow_share(calls, 2, 5.0) == pytest.approx(2 / 4)
    assert slow_share(calls, 9, 5.0) == 1.0


def test_churn_experiment_leaks_no_slot_and_answers_every_client_once() -> None:
    found = churned((4, 3000))
    assert set(found.leaked.values()) == {0}
    assert set(found.wrong.values()) == {0}
    assert found.happened["disconnects"] > 300
    assert min(found.happened[what] for what in ("faults", "retries", "replica dead", "reloads")) > 0


def test_churn_experiment_counts_what_is_held_before_its_end() -> None:
    churn = Churn(policies(), 1)
    for number in range(1, 60):
        churn.arrive(number)
    assert min(churn.leaked[what] for what in ("requests", "attempts", "slots", "alarms", "leases", "tokens")) > 0


@pytest.mark.parametrize(
    ("commits", "refusals", "cuts", "left", "once"),
    [
        (1, 0, 0, False, True),
        (0, 1, 0, False, True),
        (1, 1, 0, False, True),
        (1, 0, 1, False, True),
        (0, 0, 0, True, True),
        (0, 0, 0, False, False),
        (2, 0, 0, False, False),
        (0, 2, 0, False, False),
        (0, 0, 1, False, False),
        (1, 1, 1, False, False),
    ],
)
def test_churn_client_is_answered_once_and_cut_at_most_once(
    commits: int, refusals: int, cuts: int, left: bool, once: bool
) -> None:
    request = Churn(policies(), 1)
    request.arrive(1)
    client: Client = request.clients[1]
    client.commits, client.refusals, client.cuts, client.left = commits, refusals, cuts, left
    assert client.answered_once is once
