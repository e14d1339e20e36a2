"""Tests every promise as written: percentiles in windows of 10 s, refusals at once, true forecast probabilities.

Three engines have two replicas each, learned slots and chat traffic. Policies are policies/default.yaml,
policies/chat-with-tiers.yaml, or one TTFT objective of 2 or 6 s. Loads are multiples of the knee of one tier with round
robin.

An objective is kept in a window unless more of its answers are late than chance explains (one-sided 5%, at least 50
answers). A refusal counts as "at once" within 100 ms of the complete body. P(breach) is judged over served requests, in
15 bins of equal mass.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from gateway.core.results import Outcome, Record
from gateway.sim.analysis.report import Interval, mean
from gateway.sim.engine.profiles import ENGINES
from loadtests.experiments.cells import Judgement, over_cells
from loadtests.experiments.engines_cell import COLD_S, Cell, Figures, figures, run
from loadtests.experiments.engines_plan import knee_of
from loadtests.experiments.findings import Chart, Findings, Grid, bare, line, written
from loadtests.experiments.runner import Runner
from loadtests.experiments.targets import SET_ASIDE_ENGINE, at_least, at_most

SEEDS = 5
SECONDS = 80.0
PROFILES = ("llama3-8b-a100", "llama3-70b-a100-tp4", "llama2-7b-h100", SET_ASIDE_ENGINE)
TIERS = {
    "default": "policies/default.yaml",
    "three": "policies/chat-with-tiers.yaml",
    "one": "TTFT of 2 s",
    "patient": "TTFT of 6 s",
}
LOADS = (0.8, 1.0, 1.5, 2.5)
MEDIANS_S = {"one": 0.835, "patient": 2.3}
"""Wanted medians of TTFT above the knee: half of 1.67 s and of 4.6 s, where the bounds are 2 s and 6 s."""
OVERLOADS = (1.5, 2.5)
ENOUGH_REFUSALS = 50
"""In a cell with fewer, one refusal would decide its share."""
QUICK_RATE_PER_S = 10.0


@dataclass(frozen=True, slots=True)
class Task:
    """One cell at one rate."""

    cell: Cell
    rate_per_s: float
    seeds: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Kept:
    """One cell: figures of each seed alone, since windows of different seeds must not mix, and of all seeds
    together."""

    task: Task
    by_seed: list[Figures]
    all: Figures
    late: float
    """Share of the refusals before a dispatch that were told after half of the TTFT bound."""
    refused: int
    late_of_tier: float
    """The largest share of one tier's offers that was refused after half of the TTFT bound."""


def measure(task: Task) -> Kept:
    """Run one cell."""
    cell = task.cell
    runs = [run(cell, "auto", (seed,), task.rate_per_s, COLD_S + cell.seconds) for seed in task.seeds]
    together = [record for records in runs for record in records]
    refused = [r for r in together if r.outcome.counts and r.outcome is not Outcome.OK and not r.attempts]
    late = sum(map(_is_late, refused)) / len(refused) if refused else 0.0
    by_seed = [figures(cell, records) for records in runs]
    return Kept(task, by_seed, figures(cell, together), late, len(refused), _late_of_tier(together, refused))


def _late_of_tier(records: Sequence[Record], refused: Sequence[Record]) -> float:
    offered = Counter(record.request.tier.name for record in records if record.outcome.counts)
    late = Counter(record.request.tier.name for record in refused if _is_late(record))
    return max((late[name] / of for name, of in offered.items()), default=0.0)


def _is_late(record: Record) -> bool:
    return record.e2e_s > record.request.tier.slo.ttft_bound_s / 2.0


def promises(runner: Runner) -> Findings:
    """Run all cells."""
    tasks = _tasks(runner)
    found = runner.map(measure, tasks)
    findings = Findings(tasks[0].seeds)
    findings.how = f"{len(tasks[0].seeds)} seeds of {COLD_S + tasks[0].cell.seconds:g} s, all counted."
    shares = [Judgement(share, at_least(0.95)) for one in found for share in _shares(one).values()]
    findings.figures |= over_cells("windows_kept", shares)
    refusing = [one for one in found if one.refused >= ENOUGH_REFUSALS]
    findings.figures |= over_cells("refused_at_once", [Judgement(_at_once(one), at_least(0.93)) for one in refusing])
    late = [Judgement(bare(one.late_of_tier, 1), at_most(0.02)) for one in found]
    findings.figures |= over_cells("refused_late_of_a_tier", late)
    ece = [Judgement(bare(one.all.calibration, 1), at_most(0.06)) for one in found]
    findings.figures |= over_cells("ece", ece)
    for tiers, limit_s in MEDIANS_S.items():
        of = [one for one in found if one.task.cell.tiers == tiers and one.task.cell.load in OVERLOADS]
        medians = [Judgement(mean([each.ttft_p50 for each in one.by_seed]), at_most(limit_s)) for one in of]
        findings.figures |= over_cells(f"median_ttft_s_{tiers}", medians)
    findings.grids += [_objectives(found), _refusals(found)]
    findings.charts += _charts(found)
    return findings


def _at_once(one: Kept) -> Interval:
    return mean([each.at_once for each in one.by_seed if not math.isnan(each.at_once)])


def _tasks(runner: Runner) -> list[Task]:
    if runner.effort.quick:
        return [Task(Cell(ENGINES[PROFILES[0]], tiers="default", load=1.5, seconds=20.0), QUICK_RATE_PER_S, (1, 2))]
    seeds = tuple(range(1, SEEDS + 1))
    names = [name for name in PROFILES if runner.runs(engines=[name])]
    knees = dict(zip(names, runner.map(knee_of, [Cell(ENGINES[name]) for name in names]), strict=True))
    return [
        Task(Cell(ENGINES[name], tiers=tiers, load=load, seconds=SECONDS), load * knees[name], seeds)
        for tiers, name, load in product(TIERS, names, LOADS)
    ]


def _shares(one: Kept) -> dict[str, Interval]:
    """Shares of windows, by objective, over the seeds that have any."""
    found = {}
    for objective in one.all.kept:
        known = [each.kept[objective] for each in one.by_seed if each.windows[objective]]
        if known:
            found[objective] = mean(known)
    return found


def _objectives(found: Sequence[Kept]) -> Grid:
    rows = []
    for one in found:
        for objective, share in _shares(one).items():
            windows = sum(each.windows[objective] for each in one.by_seed)
            rows.append([*_place(one), objective, written(share), str(windows)])
    columns = ["policy", "engine", "load", "objective", "windows kept", "windows"]
    return Grid("Windows of 10 s in which an objective is kept", columns, rows)


def _refusals(found: Sequence[Kept]) -> Grid:
    columns = ["policy", "engine", "load", "goodput", "good of served", "p50 TTFT, s", "refused", "told within 100 ms"]
    columns += ["after half of the bound", "ECE of P(breach)"]
    rows = []
    for one in found:
        of = one.all
        ttft = mean([each.ttft_p50 for each in one.by_seed])
        rows.append(
            [
                *_place(one),
                written(mean([each.weighted for each in one.by_seed])),
                f"{of.of_served:.3f}",
                written(ttft, 2),
                str(one.refused),
                "" if math.isnan(of.at_once) else f"{of.at_once:.3f}",
                f"{one.late:.3f}" if one.refused else "",
                f"{of.calibration:.3f}",
            ]
        )
    return Grid("Refusals, waits and forecasts", columns, rows)


def _place(one: Kept) -> list[str]:
    cell = one.task.cell
    return [TIERS[cell.tiers], cell.profile.name, f"{cell.load:g}x"]


def _charts(found: Sequence[Kept]) -> list[Chart]:
    """The least kept objective of each policy and engine, by load."""
    lines = []
    for tiers, name in dict.fromkeys((one.task.cell.tiers, one.task.cell.profile.name) for one in found):
        of = [one for one in found if (one.task.cell.tiers, one.task.cell.profile.name) == (tiers, name)]
        least = {one.task.cell.load: min(_shares(one).values(), key=lambda s: s.value) for one in of if _shares(one)}
        if tiers in ("default", "three") and least:
            lines.append(line(f"{TIERS[tiers].partition('/')[2]}, {name}", list(least), list(least.values())))
    title = "Windows of 10 s in which the objective is kept that is kept least"
    chart = Chart("promises", title, "load, in multiples of round robin's knee", "share", lines, levels={".95": 0.95})
    return [chart] if lines else []
