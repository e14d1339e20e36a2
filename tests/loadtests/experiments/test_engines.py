"""Quick runs of the experiments engines, promises and noise reach a floor; a miss is reported with its cell."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from gateway.sim.engine.profiles import ENGINES
from loadtests.experiments.engines import WHO, engines, missed
from loadtests.experiments.engines_cell import Cell, Figures
from loadtests.experiments.engines_plan import CAP, KEEPING_CAP, Found, Ran, Task, find
from loadtests.experiments.noise import noise
from loadtests.experiments.promises import promises
from loadtests.experiments.runner import QUICK, Runner


def test_quick_form_of_the_engines_experiment_meets_its_floor() -> None:
    findings = engines(Runner(QUICK))
    figures = {name: found.value for name, found in findings.figures.items()}
    assert figures["worst_good_of_served"] >= 0.95
    for name in ("worst_zero_less_round_robin", "worst_zero_less_round_robin_cold"):
        assert (findings.figures[name].high or 0.0) >= -0.01, f"{name}: worse than chance explains"
    assert figures["worst_slots_off_auto"] <= 0.1
    (chart,) = findings.charts
    ours, zero, open_ = (line.y[0] or 0.0 for line in chart.lines)
    assert ours > zero >= open_


def test_quick_form_of_the_promises_experiment_keeps_its_promises() -> None:
    findings = promises(Runner(QUICK))
    assert findings.figures["worst_windows_kept"].value >= 0.9
    objectives, refusals = findings.grids
    assert [row[3] for row in objectives.rows] == [
        f"standard {o}" for o in ("ttft p50", "ttft p99", "tpot p50", "tpot p99")
    ]
    assert all(int(row[-1]) > 0 for row in objectives.rows)
    assert float(refusals.rows[0][4]) >= 0.9


def test_quick_form_of_the_noise_experiment_loses_some_goodput_but_not_all() -> None:
    share = noise(Runner(QUICK)).figures["worst_disturbed_to_not"].value
    assert 0.6 < share < 1.0


def test_best_static_cap_is_searched_and_compared_on_all_seeds() -> None:
    task = Task(Cell(ENGINES["small-4"], load=3.0, seconds=60.0), 1.3, (1, 2, 3), ("round-robin",))
    found = find(task)
    slots = int(found.cap.split()[0])
    assert 1 <= slots <= 4
    assert len(found.ran[CAP].steady) == 3
    assert sum(found.ran[CAP].steady) > sum(found.ran["round-robin"].steady) + 0.3


def test_the_best_cap_that_keeps_its_promises_has_no_more_than_the_best_cap() -> None:
    task = Task(Cell(ENGINES["llama3-8b-a100"], load=1.5, seconds=20.0), 24.0, (1, 2), ("round-robin",))
    found = find(task)
    best, keeping = found.ran[CAP], found.ran[KEEPING_CAP]
    assert sum(found.ran["round-robin"].steady) + 1.0 < sum(keeping.steady) <= sum(best.steady)
    assert keeping.all.of_served >= best.all.of_served


def test_computed_bound_is_above_the_goodput_of_every_policy() -> None:
    task = Task(Cell(ENGINES["small-4"], load=3.0, seconds=60.0), 1.3, (1,), ("auto",), caps=False, bounded=True)
    found = find(task)
    assert 0.0 < found.ran["auto"].whole[0] <= found.bound[0] <= 1.0


@pytest.mark.parametrize(
    ("who", "value", "figure"),
    [
        ("auto", 0.80, "to_best_cap"),
        ("zero", 0.10, "zero_less_round_robin"),
        ("slots", 0.95, "slots_off_auto"),
    ],
)
def test_missed_engine_target_names_its_cell(who: str, value: float, figure: str) -> None:
    task = Task(Cell(ENGINES["small-4"], load=1.5), 1.0, (1, 2), WHO)
    even = Ran([0.85] * 2, [0.85] * 2, [0.85] * 2, _figures(), [math.nan] * 2)
    ran = dict.fromkeys(WHO, even) | {CAP: replace(even, steady=[0.79] * 2)}
    assert missed([Found(task, ran, "4 slots, 0.5", [], [], [])]).rows == []
    ran[who] = replace(even, steady=[value] * 2)
    (row,) = [row for row in missed([Found(task, ran, "4 slots, 0.5", [], [], [])]).rows if row[0] == figure]
    assert row[1:5] == ["small-4", "chat", "one", "1.5x"]


def _figures() -> Figures:
    return Figures(0.85, {}, 0.99, 0.1, 1.0, 0.1, 1.0, {}, {}, 0.01)
