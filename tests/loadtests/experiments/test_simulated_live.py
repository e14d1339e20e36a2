"""The live runs that are compared with the simulator."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.sim.analysis.results import Result
from loadtests.experiments import simulated_live
from loadtests.experiments.findings import Findings
from loadtests.experiments.lab import QUICK, Effort, Lab
from loadtests.experiments.pairs import MIN
from loadtests.experiments.verdicts import judged
from loadtests.live.start import Broken
from loadtests.scenarios.load import load_scenario
from loadtests.scenarios.simulated import Simulated


def compared(
    monkeypatch: pytest.MonkeyPatch, needed: int, *live: tuple[bool, float, float] | Broken
) -> simulated_live.Test:
    """A test that needs this many live runs, with validity, goodput and TTFT of each."""
    runs = list(live)

    def once(*_: object) -> tuple[dict[str, Any], dict[str, list[float]]]:
        run = runs.pop(0)
        if isinstance(run, Broken):
            raise run
        trusted, goodput, ttft_s = run
        return {"trusted": trusted, "totals": {"goodput": goodput}}, {"a": [ttft_s]}

    told = Simulated(cast("Result", SimpleNamespace(good=3, counted=4, tiers={})), {"a": [1.0]})
    monkeypatch.setattr(simulated_live, "play_once", once)
    monkeypatch.setattr(simulated_live, "_simulated", lambda _: told)
    monkeypatch.setattr(simulated_live, "runs_needed", lambda _: needed)
    lab = cast("Lab", SimpleNamespace(effort=Effort(), map=lambda of, items: [of(item) for item in items]))
    test = simulated_live.run_test(lab, "it", load_scenario("overload"), (1, 2), [0.001])
    assert not runs, "it was played less often than it could be"
    return test


LATE = False, 0.0, 99.0
BROKE = Broken("replica 1 exited with status 3\n  the disk is full")


def test_runs_with_a_late_generator_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    found = compared(monkeypatch, 2, (True, 0.5, 2.0), LATE, LATE, (True, 0.7, 4.0))
    assert (found.live.played, len(found.live.kept)) == (4, 2)
    assert found.whole.values("p50") == (3.0, 1.0)
    assert found.goodput == (pytest.approx(0.6), 0.75)
    assert list(found.notes) == ["it: 2 of 4 runs are left out, the generator was late in them"]


def test_after_three_late_runs_the_kept_ones_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    found = compared(monkeypatch, 2, LATE, (True, 0.5, 2.0), LATE, LATE, LATE)
    assert (found.live.played, len(found.live.kept)) == (5, 1)
    assert [note.partition(" ")[2][:12] for note in found.notes] == ["2 live runs ", "4 of 5 runs "]


def test_live_runs_are_no_more_than_their_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [(True, 0.5, 2.0)] * simulated_live.MAX_RUNS
    found = compared(monkeypatch, 1000, *many)
    assert "it: 1000 live runs" in next(found.notes)


def test_no_run_is_kept_when_the_generator_was_late_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    found = compared(monkeypatch, 1, LATE, LATE, LATE, LATE)
    assert not found.live.kept
    assert list(found.notes) == ["it could not be played: the generator was late in each of 4 runs"]


def test_broken_run_is_repeated_and_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    found = compared(monkeypatch, 2, (True, 0.5, 2.0), BROKE, LATE, (True, 0.7, 4.0))
    assert found.whole.values("p50") == (3.0, 1.0)
    assert list(found.notes) == [
        "it: 1 of 4 runs are left out, the generator was late in them",
        "it: 1 of 4 runs broke off, the last with: replica 1 exited with status 3",
    ]
    assert found.live.broken == [str(BROKE)], "all that it said is kept"


def test_experiment_without_a_usable_run_gives_both_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    found = compared(monkeypatch, 1, BROKE, LATE, BROKE, BROKE)
    assert list(found.notes) == [
        "it could not be played: the generator was late in 1 of 4 runs",
        "it could not be played: 3 of 4 runs broke off, the last with: replica 1 exited with status 3",
    ]


def played(monkeypatch: pytest.MonkeyPatch, trusted: Callable[[str], bool]) -> Findings:
    """The quick overload, with simulated runs in the place of live ones; by title, tests may have a late generator."""
    ttft_s = {"a": [1.0] * MIN, "b": [1.0] * MIN}

    def once(_: Lab, title: str, *__: object) -> tuple[dict[str, Any], dict[str, list[float]]]:
        return {"trusted": trusted(title), "totals": {"goodput": 0.75}}, ttft_s

    async def ways_s(*_: object) -> list[float]:
        return [0.001, 0.002, 0.004]

    told = Simulated(cast("Result", SimpleNamespace(good=3, counted=4, tiers={})), ttft_s)
    monkeypatch.setattr(simulated_live, "play_once", once)
    monkeypatch.setattr(simulated_live, "_simulated", lambda _: told)
    monkeypatch.setattr(simulated_live, "ways_s", ways_s)
    return simulated_live.simulated_live(Lab(QUICK))


def test_a_test_that_cannot_be_played_takes_no_other_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = played(monkeypatch, lambda title: "0.9x" not in title)
    assert found.figures["tests_played"].value == 0.75  # of the four of the overload
    assert "overload 0.9x could not be played: the generator was late in each of 4 runs" in found.notes
    assert found.figures["generator_in_time"].value == pytest.approx(3 / 7), "its runs count, too"
    assert found.how.startswith("Each test is played live 1 to 1 times")
    assert found.how.endswith("with 2.3 ms of HTTP in the mean, more than 4.0 ms for one request in twenty.")
    assert found.figures["p95_most_off"].value == 0.0
    judgement = judged("simulated-live", found)
    assert judgement["tests_played"]["pass"] is False


def test_runs_that_broke_off_say_nothing_of_the_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    def trusted(title: str) -> bool:
        if "0.9x" in title:
            raise BROKE
        return "1.5x" not in title

    found = played(monkeypatch, trusted)
    assert found.figures["generator_in_time"].value == pytest.approx(2 / 6)
    assert found.raw["broke_off"] == {"overload 0.9x": [str(BROKE)] * 4}
    assert found.raw["missed_by_chance"] == {"overload 0.5x": 0.0, "overload 2.5x": 0.0}


def test_experiment_without_a_playable_run_gives_each_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Broken) as failed:
        played(monkeypatch, lambda title: False)
    assert [line.partition(" could")[0] for line in str(failed.value).splitlines()] == [
        f"overload {times}x" for times in ("0.5", "0.9", "1.5", "2.5")
    ]


def test_interrupt_ends_the_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> SimpleNamespace:
        return SimpleNamespace(interrupted=True, broken={})

    monkeypatch.setattr(simulated_live, "play_scenario", interrupted)
    with pytest.raises(KeyboardInterrupt):
        simulated_live.play_once(Lab(QUICK), "it", load_scenario("overload"), 1.0)
