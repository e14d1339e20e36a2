"""Figures over cells: the mean, the worst, and how many fall short; and cells that were set aside."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.sim.analysis.report import Interval
from loadtests.experiments.__main__ import app
from loadtests.experiments.cells import Judgement, mean_of_cells, over_cells
from loadtests.experiments.findings import Findings, bare
from loadtests.experiments.pages import write_page
from loadtests.experiments.runner import Effort, Runner
from loadtests.experiments.targets import SET_ASIDE_ENGINE, SET_ASIDE_WORKLOAD, START, TARGETS, at_least, at_most
from loadtests.experiments.verdicts import judged


@pytest.mark.parametrize(
    ("found", "short"),
    [
        (Interval(0.90, 0.85, 0.949, 3), True),
        (Interval(0.90, 0.85, 0.95, 3), False),
        (Interval(0.96, 0.90, 0.99, 3), False),
        (bare(0.949, 1), True),
        (bare(0.95, 1), False),
    ],
)
def test_cell_falls_short_only_if_its_whole_interval_does(found: Interval, short: bool) -> None:
    low, high = (None if end is None else -end for end in (found.high, found.low))
    mirrored = Interval(-found.value, low, high, found.n)
    assert Judgement(found, at_least(0.95)).short is short
    assert Judgement(mirrored, at_most(-0.95)).short is short


def test_figures_over_cells_are_the_mean_the_worst_by_its_own_limit_and_a_count() -> None:
    near, far = Interval(0.97, 0.96, 0.98, 3), Interval(1.0, 0.99, 1.01, 3)
    figures = over_cells("share", [Judgement(near, at_least(0.96)), Judgement(far, at_least(1.05))])
    assert figures["mean_share"].value == pytest.approx(0.985)
    assert figures["worst_share"] == far
    assert figures["short_share"].value == 1
    alone, to_nothing = Judgement(near, at_least(0.96)), Judgement(bare(math.inf, 2), at_least(0.96))
    assert over_cells("share", [to_nothing, alone]) == over_cells("share", [alone])
    assert over_cells("share", []) == {}


def test_page_shows_the_worst_cell_beside_the_mean_and_the_count(tmp_path: Path) -> None:
    cells = [Judgement(Interval(value, value - 0.01, value + 0.01, 2), at_least(0.95)) for value in (0.9, 0.98)]
    figures = over_cells("disturbed_to_not", cells) | over_cells("other", cells)
    page = write_page("noise", "Noise.", Findings((1, 2), figures, how="Twice."), Effort(), tmp_path, 60.0).read_text()
    assert "| `worst_disturbed_to_not` | 0.9 [0.89, 0.91] | reported |  |" in page
    assert "| `mean_disturbed_to_not` | 0.94 | >= 0.95 | **missed** |" in page
    assert "_other" not in page


def test_mean_of_cells_has_the_interval_of_the_seeds() -> None:
    one_seed_is_worse = mean_of_cells([[1.0, 0.8], [0.9, 0.7]])
    assert one_seed_is_worse.value == pytest.approx(0.85)
    assert (one_seed_is_worse.low, one_seed_is_worse.high) == (pytest.approx(0.75), pytest.approx(0.95))
    seeds_even_out = mean_of_cells([[1.0, 0.8], [0.7, 0.9]])
    assert (seeds_even_out.low, seeds_even_out.high) == (pytest.approx(0.85), pytest.approx(0.85))


@pytest.mark.parametrize("set_aside", [False, True])
def test_cells_that_were_set_aside_run_only_if_asked_for_and_then_alone(set_aside: bool) -> None:
    runner = Runner(Effort(set_aside=set_aside))
    assert runner.runs(engines=["small-4"], workload="chat") is not set_aside
    assert runner.runs(engines=["small-4", SET_ASIDE_ENGINE], workload="chat") is set_aside
    assert runner.runs(engines=["small-4"], workload=SET_ASIDE_WORKLOAD) is set_aside


def test_experiment_without_cells_that_were_set_aside_refuses_the_flag() -> None:
    wrong = CliRunner().invoke(app, ["run", "tiers", "noise", "--set-aside"])
    assert wrong.exit_code == 2
    assert "nothing of tiers was set aside" in " ".join(wrong.output.replace("│", " ").split())


def test_cells_that_were_set_aside_are_not_compared_with_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(START, "noise", {"short_disturbed_to_not": 0.0})
    monkeypatch.setitem(
        TARGETS, "noise", {"mean_disturbed_to_not": at_least(0.95), "short_disturbed_to_not": at_most(0.0)}
    )
    findings = Findings((1,), {"mean_disturbed_to_not": bare(0.9, 1), "short_disturbed_to_not": bare(2.0, 1)})
    usual, aside = judged("noise", findings, Effort()), judged("noise", findings, Effort(set_aside=True))
    assert [usual[name]["pass"] for name in findings.figures] == [False, False]
    assert [aside[name]["pass"] for name in findings.figures] == [False, None]
