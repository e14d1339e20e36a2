"""The live runs that are compared with the simulator."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.sim.run.results import Result
from loadtests.experiments import simulated_live
from loadtests.experiments.findings import Findings
from loadtests.experiments.pairs import MIN, Pair
from loadtests.experiments.runner import FULL, QUICK, Effort, Runner
from loadtests.experiments.verdicts import judged
from loadtests.live.start import Broken
from loadtests.scenarios.file import ScenarioFile
from loadtests.scenarios.load import load_scenario
from loadtests.scenarios.simulated import Simulated


def compared(needed: int, *live: tuple[bool, float, float] | Broken) -> simulated_live.Test:
    """A test that needs this many live runs, with validity, goodput and TTFT of each."""
    runs = list(live)

    def once(_: int) -> tuple[dict[str, Any], dict[str, list[float]]]:
        run = runs.pop(0)
        if isinstance(run, Broken):
            raise run
        trusted, goodput, ttft_s = run
        return {"trusted": trusted, "totals": {"goodput": goodput}}, {"a": [ttft_s]}

    told = Simulated(cast("Result", SimpleNamespace(good=3, counted=4, tiers={})), {"a": [1.0]})
    kept = simulated_live.live_runs(min(needed, simulated_live.FULL_MAX_RUNS), once)
    assert not runs, "it was played less often than it could be"
    return simulated_live.Test("it", 0.0, needed, kept, [told, told])


LATE = False, 0.0, 99.0
BROKE = Broken("replica 1 exited with status 3\n  the disk is full")


def test_runs_with_a_late_generator_are_repeated() -> None:
    found = compared(2, (True, 0.5, 2.0), LATE, LATE, (True, 0.7, 4.0))
    assert (found.live.played, len(found.live.kept)) == (4, 2)
    assert found.whole.values("p50") == (3.0, 1.0)
    assert found.goodput == (pytest.approx(0.6), 0.75)
    assert list(found.notes) == ["it: 2 of 4 runs are left out, the generator was late in them"]


def test_runs_that_are_not_late_are_used_after_three_late_ones() -> None:
    found = compared(2, LATE, (True, 0.5, 2.0), LATE, LATE, LATE)
    assert (found.live.played, len(found.live.kept)) == (5, 1)
    assert [note.partition(" ")[2][:12] for note in found.notes] == ["mean ±0.0%; ", "4 of 5 runs "]


def test_a_test_with_fewer_live_runs_than_it_needs_is_named() -> None:
    found = compared(1000, *[(True, 0.5, 2.0)] * simulated_live.FULL_MAX_RUNS)
    assert "mean ±0.0%; ±6% needs 1000 live runs" in next(found.notes)


@pytest.mark.parametrize(
    ("effort", "spread", "runs"),
    [(QUICK, 10.0, "once"), (Effort(), 10.0, "once"), (FULL, 0.2, "12 to 12 times"), (FULL, 10.0, "20 to 20 times")],
)
def test_full_form_plays_a_test_as_often_as_its_seeds_require_up_to_20_times(
    monkeypatch: pytest.MonkeyPatch, effort: Effort, spread: float, runs: str
) -> None:
    monkeypatch.setattr(simulated_live, "varies", lambda _: spread)
    found = played(monkeypatch, lambda _: True, replace(effort, seeds=2))
    assert found.how.startswith(f"Each test is played live {runs}")


def test_error_interval_follows_from_seed_spread_and_number_of_live_runs() -> None:
    seeds = [[0.9], [1.1]]
    one, four = (Pair("it", [[1.2]] * runs, seeds).off_interval("p50") for runs in (1, 4))
    assert one.value == four.value == pytest.approx(0.2 / 1.2)
    assert one.low == 0.0
    assert one.high == pytest.approx(one.value + 1.96 * 0.2 / math.sqrt(2))
    assert four.high == pytest.approx(four.value + 1.96 * 0.1 / math.sqrt(2))
    assert Pair("it", [[1.2]], [[1.0], []]).off_interval("p50").low is None


def test_no_run_is_kept_when_the_generator_was_late_in_all() -> None:
    found = compared(1, LATE, LATE, LATE, LATE)
    assert not found.live.kept
    assert list(found.notes) == ["it could not be played: the generator was late in each of 4 runs"]


def test_broken_live_run_is_repeated_without_loss_of_others() -> None:
    found = compared(2, (True, 0.5, 2.0), BROKE, LATE, (True, 0.7, 4.0))
    assert found.whole.values("p50") == (3.0, 1.0)
    assert list(found.notes) == [
        "it: 1 of 4 runs are left out, the generator was late in them",
        "it: 1 of 4 runs broke off, the last with: replica 1 exited with status 3",
    ]
    assert found.live.broken == [str(BROKE)], "all that it said is kept"


def test_experiment_without_a_usable_run_gives_both_reasons() -> None:
    found = compared(1, BROKE, LATE, BROKE, BROKE)
    assert list(found.notes) == [
        "it could not be played: the generator was late in 1 of 4 runs",
        "it could not be played: 3 of 4 runs broke off, the last with: replica 1 exited with status 3",
    ]


class Here:
    """A pool that runs its work at once, in this process."""

    def submit(self, work: Callable[..., Any], *given: object) -> Future[Any]:
        done = Future[Any]()
        try:
            done.set_result(work(*given))
        except Broken as error:
            done.set_exception(error)
        return done


def played(monkeypatch: pytest.MonkeyPatch, trusted: Callable[[str], bool], effort: Effort = QUICK) -> Findings:
    """The overload, with simulated runs in the place of live ones; at a rate such as "0.9x", the generator may be
    late.
    """
    ttft_s = {"a": [1.0] * MIN, "b": [1.0] * MIN}

    def once(scenario: ScenarioFile, part: float) -> tuple[dict[str, Any], dict[str, list[float]]]:
        return {"trusted": trusted(f"{scenario.sweep[0]:g}x"), "totals": {"goodput": 0.75}}, ttft_s

    async def ways_s(*_: object) -> list[float]:
        return [0.001, 0.002, 0.004]

    told = Simulated(cast("Result", SimpleNamespace(good=3, counted=4, tiers={})), ttft_s)
    monkeypatch.setattr(simulated_live, "play_once", once)
    monkeypatch.setattr(simulated_live, "_simulated", lambda _: told)
    monkeypatch.setattr(simulated_live, "ways_s", ways_s)
    monkeypatch.setattr(simulated_live, "processes", lambda jobs: nullcontext(Here()))
    monkeypatch.setattr(simulated_live, "NAMES", simulated_live.QUICK_NAMES)
    return simulated_live.simulated_live(Runner(effort))


def test_test_that_cannot_be_played_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    found = played(monkeypatch, lambda rate: rate != "0.9x")
    assert found.figures["tests_played"].value == 0.75  # of the four of the overload
    assert "overload 0.9x could not be played: the generator was late in each of 4 runs" in found.notes
    assert found.figures["generator_in_time"].value == pytest.approx(3 / 7), "its runs count, too"
    assert found.how.startswith("Each test is played live once, ")
    assert found.how.endswith("HTTP takes 2.3 ms in the mean, more than 4.0 ms for one request in twenty.")
    assert found.figures["p95_most_off"].value == 0.0
    judgement = judged("simulated-live", found, Effort())
    assert judgement["tests_played"]["pass"] is False


def test_broken_off_live_runs_are_left_out_of_the_share_with_a_timely_generator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def trusted(rate: str) -> bool:
        if rate == "0.9x":
            raise BROKE
        return rate != "1.5x"

    found = played(monkeypatch, trusted)
    assert found.figures["generator_in_time"].value == pytest.approx(2 / 6)
    assert found.raw["broke_off"] == {"overload 0.9x": [str(BROKE)] * 4}
    assert found.raw["missed_by_chance"] == {"overload 0.5x": 0.0, "overload 2.5x": 0.0}


def test_experiment_without_a_playable_run_gives_each_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Broken) as failed:
        played(monkeypatch, lambda rate: False)
    assert [line.partition(" could")[0] for line in str(failed.value).splitlines()] == [
        f"overload {times}x" for times in ("0.5", "0.9", "1.5", "2.5")
    ]


def test_interrupt_ends_the_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> SimpleNamespace:
        return SimpleNamespace(interrupted=True, broken={})

    monkeypatch.setattr(simulated_live, "play_scenario", interrupted)
    with pytest.raises(KeyboardInterrupt):
        simulated_live.played(load_scenario("overload"), 1.0)
