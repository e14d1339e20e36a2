"""Costs and prompt lengths disturbed by 60%: goodput beside that of a gateway that knows them.

A log-normal factor (mean 1, sigma .6) multiplies the cost of each request in a step. Another factor multiplies the
gateway's estimate of its prompt tokens. Engines, tiers and arrivals are as in [engines](engines.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from gateway.sim.analysis.report import Interval, mean, ratio
from gateway.sim.engine.profiles import ENGINES
from loadtests.experiments.cells import Judgement, over_cells
from loadtests.experiments.engines_cell import COLD_S, Cell, run, weighted
from loadtests.experiments.engines_plan import knee_of
from loadtests.experiments.findings import Chart, Findings, Grid, bare, line, written
from loadtests.experiments.runner import Runner
from loadtests.experiments.targets import SET_ASIDE_ENGINE, at_least

NOISE = 0.6
WANTED = 0.95
"""Goodput of a cell under noise, over that without."""
SEEDS = 5
SECONDS = 80.0
PROFILES = ("llama3-8b-a100", "llama3-70b-a100-tp4", "llama2-7b-h100", SET_ASIDE_ENGINE)
TIERS = ("one", "three")
LOADS = (0.8, 1.0, 1.5, 2.0)
WHO = ("auto", "round-robin")
QUICK_RATE_PER_S = 8.0


@dataclass(frozen=True, slots=True)
class Task:
    """One cell at one rate, with one strength of noise."""

    cell: Cell
    rate_per_s: float
    seeds: tuple[int, ...]
    noise: float


def goodput(task: Task) -> dict[str, list[float]]:
    """Goodput of each seed, by server."""
    cell, seconds = task.cell, COLD_S + task.cell.seconds
    return {
        who: [weighted(cell, run(cell, who, (seed,), task.rate_per_s, seconds, task.noise)) for seed in task.seeds]
        for who in WHO
    }


def noise(runner: Runner) -> Findings:
    """Every cell with and without noise."""
    cells, seeds = _cells(runner)
    tasks = [Task(cell, rate, seeds, sigma) for (cell, rate), sigma in product(cells.items(), (0.0, NOISE))]
    found = dict(zip(tasks, runner.map(goodput, tasks), strict=True))
    pairs = {
        cell: (found[Task(cell, rate, seeds, 0.0)], found[Task(cell, rate, seeds, NOISE)])
        for cell, rate in cells.items()
    }
    findings = Findings(seeds)
    findings.how = f"{len(seeds)} seeds of {COLD_S + next(iter(cells)).seconds:g} s, all counted."
    kept = {cell: _kept(*pair) for cell, pair in pairs.items()}
    judged = [Judgement(share, at_least(WANTED)) for share in kept.values()]
    findings.figures |= over_cells("disturbed_to_not", judged)
    columns = ["tiers", "engine", "load", *(f"{who}{how}" for who in WHO for how in ("", ", disturbed"))]
    rows = [
        [
            cell.tiers,
            cell.profile.name,
            f"{cell.load:g}x",
            *(written(mean(which[who])) for who in WHO for which in pair),
            written(kept[cell]),
        ]
        for cell, pair in pairs.items()
    ]
    findings.grids.append(Grid("Goodput", [*columns, "auto, disturbed / not"], rows))
    title = "Goodput of tailgate under 60% of noise, over that without"
    lines = [
        line(f"{tiers}, {name}", list(of), list(of.values()))
        for tiers, name in dict.fromkeys((cell.tiers, cell.profile.name) for cell in kept)
        if (of := {c.load: share for c, share in kept.items() if (c.tiers, c.profile.name) == (tiers, name)})
    ]
    x = "load, in multiples of round robin's knee"
    findings.charts.append(Chart("noise", title, x, "ratio", lines, levels={f"{WANTED:g}": WANTED}))
    return findings


def _cells(runner: Runner) -> tuple[dict[Cell, float], tuple[int, ...]]:
    """Cells and their rates, and the seeds."""
    if runner.effort.quick:
        cell = Cell(ENGINES[PROFILES[1]], load=1.5, seconds=20.0)
        return {cell: QUICK_RATE_PER_S}, (1, 2)
    names = [name for name in PROFILES if runner.runs(engines=[name])]
    knees = dict(zip(names, runner.map(knee_of, [Cell(ENGINES[name]) for name in names]), strict=True))
    cells = {
        Cell(ENGINES[name], tiers=tiers, load=load, seconds=SECONDS): load * knees[name]
        for tiers, name, load in product(TIERS, names, LOADS)
    }
    return cells, tuple(range(1, SEEDS + 1))


def _kept(plain: dict[str, list[float]], disturbed: dict[str, list[float]]) -> Interval:
    return ratio(disturbed["auto"], plain["auto"]) or bare(1.0, len(plain["auto"]))
