"""The gateway on real engines, beside round robin and the best static cap in hindsight.

There are two replicas, of one engine unless two are named. Loads are multiples of the knee: the highest rate at which
97% are good with round robin. *auto* enforces with learned slots. *zero-config* is `tailgate serve --replica`, in
shadow mode. The best cap of each cell is searched on the same arrivals, with strict priorities. The best *keeping* cap
also keeps each percentile in 95% of the windows of 10 s, and 97% of its served requests are good. *Cold* figures are
those of the first 40 s. *Warm* is *auto* on the same arrivals after a minute at .8x or less.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import product
from statistics import fmean
from typing import Any

from gateway.sim.analysis.report import Interval, difference, mean, ratio
from gateway.sim.engine.profiles import COSTS, ENGINES, Profile
from loadtests.experiments.engines_cell import Cell
from loadtests.experiments.engines_plan import CAP, KEEPING_CAP, Found, Task, find, knee_of
from loadtests.experiments.findings import Chart, Findings, Grid, Line, bare, line, written
from loadtests.experiments.runner import Runner

SEEDS = 5
LOADS = (0.8, 1.0, 1.5, 2.0)
HIGHEST_LOAD = 3.0
"""The load of an additional run of *auto* with three tiers. Only its highest tier has a target there."""
WORKLOADS = ("code", "reasoning", "summaries")
PAIR = ("llama3-8b-a100", "llama3-70b-a100-tp4")
"""Engines on which the other workloads and three tiers are run."""
WHO = ("auto", "slots", "zero", "round-robin")
UNLIKE = (("llama3-8b-a100", 2.0), ("llama3-8b-a100", 4.0), ("llama2-7b-h100", "llama2-7b-a40"))
"""The engine of one replica, and either the engine of the other replica or the factor by which that is slower."""
UNLIKE_LOADS = (0.9, 1.5)
UNLIKE_WHO = ("auto", "zero", "round-robin", "least-requests")
ANSWERS = 1000
"""Fewest requests of a cell at its knee, over all seeds."""
MIN_S, MAX_S = 30.0, 300.0
"""Bounds on the seconds of each seed after its first 40 s."""
QUICK = (Task(Cell(ENGINES["llama3-70b-a100-tp4"], load=1.5, seconds=20.0), 9.4, (1, 2), WHO, caps=False),)

NAMES = {"auto": "tailgate", CAP: "best static cap in hindsight", "zero": "zero-config", "round-robin": "round robin"}

Key = tuple[str, str, str]
"""(engine, workload, tiers)."""


def engines(runner: Runner) -> Findings:
    """Run every cell, then make the tables of each workload."""
    tasks = QUICK if runner.effort.quick else _tasks(runner)
    found = runner.map(find, sorted(tasks, key=lambda task: -task.requests))
    order = {task: place for place, task in enumerate(tasks)}
    found.sort(key=lambda one: order[one.task])
    findings = Findings(tasks[0].seeds)
    findings.how = (
        f"{len(tasks[0].seeds)} seeds; {MIN_S:g} to {MAX_S:g} s of arrivals each after the first 40 s: the longer, "
        "the fewer requests an engine can take."
    )
    _judge(found, findings)
    unlike = [one for one in found if one.task.cell.second]
    like = [one for one in found if not one.task.cell.second]
    for workload, tiers in dict.fromkeys((one.task.cell.workload, one.task.cell.tiers) for one in like):
        of = [one for one in like if (one.task.cell.workload, one.task.cell.tiers) == (workload, tiers) and one.cap]
        name = f"{workload}, {tiers} tier{'s' * (tiers != 'one')}"
        findings.grids += [_steady(f"Steady: {name}", of), _cold(f"The first 40 s: {name}", of)] if of else []
    findings.grids += [_unlike(unlike)] if unlike else []
    findings.grids += [missed(found)]
    findings.charts += _charts(
        [one for one in like if (one.task.cell.workload, one.task.cell.tiers) == ("chat", "one")]
    )
    return findings


def _tasks(runner: Runner) -> list[Task]:
    """All cells; knees first."""
    seeds = tuple(range(1, SEEDS + 1))
    kinds: list[Key] = [(engine, "chat", "one") for engine in ENGINES]
    kinds += [(engine, workload, "one") for engine, workload in product(PAIR, WORKLOADS)]
    cells = [Cell(ENGINES[engine], workload) for engine, workload, _ in kinds]
    knees = dict(zip(kinds, runner.map(knee_of, cells), strict=True))
    kinds += [(engine, "chat", "three") for engine in PAIR]
    tasks = []
    for engine, workload, tiers in kinds:
        knee = knees[engine, workload, "one"]
        seconds = min(max(ANSWERS / knee / SEEDS, MIN_S), MAX_S)
        cell = Cell(ENGINES[engine], workload, tiers, seconds=seconds)
        for load in LOADS:
            tasks.append(Task(replace(cell, load=load), load * knee, seeds, WHO, bounded=True))
        if tiers == "three":
            load = HIGHEST_LOAD
            tasks.append(Task(replace(cell, load=load), load * knee, seeds, ("auto",), caps=False))
    for engine, other in UNLIKE:
        first, knee = ENGINES[engine], knees[engine, "chat", "one"]
        if isinstance(other, str):
            second, other_knee = ENGINES[other], knees[other, "chat", "one"]
        else:
            second, other_knee = _slowed(first, other), knee / other
        knee = (knee + other_knee) / 2
        seconds = min(max(ANSWERS / knee / SEEDS, MIN_S), MAX_S)
        cell = Cell(first, seconds=seconds, second=second)
        tasks += [Task(replace(cell, load=load), load * knee, seeds, UNLIKE_WHO) for load in UNLIKE_LOADS]
    return tasks


def _slowed(profile: Profile, factor: float) -> Profile:
    """The profile with steps `factor` times as long, as on a part of a GPU, or on a throttled one."""
    costs: dict[str, Any] = {cost: factor * getattr(profile, cost) for cost in COSTS}
    return replace(profile, name=f"{factor:g} times slower", **costs)


def _judge(found: Sequence[Found], findings: Findings) -> None:
    figures = findings.figures
    for load in dict.fromkeys(one.task.cell.load for one in found):
        capped = [one for one in found if one.task.cell.load == load and one.cap]
        if capped:
            figures[f"least_to_best_cap_{load:g}x"] = _least(map(_to_cap, capped))
        if keeping := [one for one in capped if KEEPING_CAP in one.ran]:
            figures[f"least_to_keeping_cap_{load:g}x"] = _least(_to_cap(one, KEEPING_CAP) for one in keeping)
    if capped := [one for one in found if one.cap]:
        figures["least_less_best_cap"] = _least(_less(one, "auto", CAP) for one in capped)
    zero = [one for one in found if "zero" in one.ran]
    figures["least_zero_less_round_robin"] = _least(_less(one, "zero", "round-robin") for one in zero)
    figures["least_zero_less_round_robin_cold"] = _least(_less(one, "zero", "round-robin", cold=True) for one in zero)
    if below := [one for one in zero if one.task.cell.load < 1.0]:
        figures["most_zero_p99_ttft_above_round_robin_s"] = bare(max(map(_later, below)), len(below))
    if unlike := [one for one in found if "least-requests" in one.ran]:
        figures["least_less_least_requests"] = _least(_less(one, "auto", "least-requests") for one in unlike)
    if warmed := [one for one in found if one.warm]:
        for load in dict.fromkeys(one.task.cell.load for one in warmed):
            at = [one for one in warmed if one.task.cell.load == load]
            figures[f"least_cold_to_warm_{load:g}x"] = _least(map(_to_warm, at))
    seated = [one for one in found if "slots" in one.ran]
    figures["most_slots_off_auto"] = _most(_off(one) for one in seated)
    figures["least_good_of_served"] = bare(min(one.ran["auto"].all.of_served for one in found), len(found))
    if highest := [one for one in found if one.task.cell.tiers == "three"]:
        figures["least_highest_tier"] = _least(mean(_known(one.ran["auto"].highest)) for one in highest)
    if bounded := [one for one in found if one.bound]:
        for load in dict.fromkeys(one.task.cell.load for one in bounded):
            figures[f"least_to_optimum_{load:g}x"] = _least(
                _to_bound(one) for one in bounded if one.task.cell.load == load
            )


def _known(values: Iterable[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]


def _least(of: Iterable[Interval]) -> Interval:
    return min(of, key=lambda one: one.value)


def _most(of: Iterable[Interval]) -> Interval:
    return max(of, key=lambda one: one.value)


def _to_cap(one: Found, which: str = CAP) -> Interval:
    ours, caps = one.ran["auto"].steady, one.ran[which].steady
    return ratio(ours, caps) or bare(math.inf, len(ours))


def _ceiling_to_cap(one: Found) -> float:
    return fmean(one.ceiling) / fmean(one.ran[CAP].whole[: len(one.ceiling)])


def _to_warm(one: Found) -> Interval:
    return ratio(one.ran["auto"].cold, one.warm) or bare(math.inf, len(one.warm))


def _to_bound(one: Found) -> Interval:
    return ratio(one.ran["auto"].whole[: len(one.bound)], one.bound) or bare(math.inf, len(one.bound))


def _less(one: Found, who: str, whom: str, *, cold: bool = False) -> Interval:
    ours, theirs = one.ran[who], one.ran[whom]
    return difference(ours.cold, theirs.cold) if cold else difference(ours.steady, theirs.steady)


def _off(one: Found) -> Interval:
    less = _less(one, "slots", "auto")
    return less if less.value >= 0 else Interval(-less.value, -(less.high or 0.0), -(less.low or 0.0), less.n)


def _later(one: Found) -> float:
    return one.ran["zero"].all.ttft_p99 - one.ran["round-robin"].all.ttft_p99


def _steady(title: str, found: Sequence[Found]) -> Grid:
    columns = ["engine", "load", "requests/s", "auto", "seats", "zero-config", "round robin", "best static cap"]
    columns += ["slots, share waited", "auto / cap", "keeping cap", "auto: good of served", "auto: p50 TTFT, s"]
    tiers = found[0].task.cell.tiers != "one"
    columns += ["highest tier"] if tiers else []
    bounded = bool(found[0].bound)
    columns += ["auto / optimum"] if bounded else []
    rows = []
    for one in found:
        auto = one.ran["auto"]
        row = [*_place(one), *(written(mean(one.ran[who].steady), 3) for who in (*WHO, CAP)), one.cap]
        keeping = f"{mean(one.ran[KEEPING_CAP].steady).value:.3f}" if KEEPING_CAP in one.ran else "none"
        row += [written(_to_cap(one)), keeping, f"{auto.all.of_served:.3f}", f"{auto.all.ttft_p50:.2f}"]
        row += [written(mean(auto.highest))] if tiers else []
        row += [written(_to_bound(one))] if bounded else []
        rows.append(row)
    return Grid(title, columns, rows)


def _cold(title: str, found: Sequence[Found]) -> Grid:
    columns = ["engine", "load", "requests/s", "auto", "seats", "zero-config", "round robin"]
    columns += ["warm", "p99 TTFT, s: zero-config", "round robin"]
    rows = [
        [
            *_place(one),
            *(written(mean(one.ran[who].cold)) for who in WHO),
            written(mean(one.warm)),
            *(f"{one.ran[who].all.ttft_p99:.3f}" for who in ("zero", "round-robin")),
        ]
        for one in found
    ]
    return Grid(title, columns, rows)


def _unlike(found: Sequence[Found]) -> Grid:
    columns = ["engines", "load", "requests/s", "auto", "zero-config", "round robin", "least requests"]
    columns += ["best static cap", "slots, share waited", "auto / cap", "auto: good of served"]
    rows = [
        [
            *_place(one),
            *(written(mean(one.ran[who].steady), 3) for who in (*UNLIKE_WHO, CAP)),
            one.cap,
            written(_to_cap(one)),
            f"{one.ran['auto'].all.of_served:.3f}",
        ]
        for one in found
    ]
    return Grid("Steady: unlike replicas, chat, one tier", columns, rows)


def _place(one: Found) -> list[str]:
    cell = one.task.cell
    return [cell.name, f"{cell.load:g}x", f"{one.task.rate_per_s:.2f}"]


TO_CAP = "auto / best static cap"
WANTED: dict[str, tuple[Callable[[Found], float], Callable[[Found, float], bool]]] = {
    TO_CAP: (
        lambda one: _to_cap(one).value if one.cap else math.inf,
        lambda one, value: value >= (1.0 if one.task.cell.load <= 1.0 else 1.05),
    ),
    "cold / warm, the first 40 s": (
        lambda one: _to_warm(one).value if one.warm else math.inf,
        lambda one, value: value >= (0.98 if one.task.cell.load <= 1.0 else 0.95),
    ),
    "zero-config less round robin, steady": (
        lambda one: _less(one, "zero", "round-robin").value if "zero" in one.ran else 0.0,
        lambda _, value: value >= -0.005,
    ),
    "zero-config less round robin, the first 40 s": (
        lambda one: _less(one, "zero", "round-robin", cold=True).value if "zero" in one.ran else 0.0,
        lambda _, value: value >= -0.005,
    ),
    "seats less auto": (
        lambda one: _less(one, "slots", "auto").value if "slots" in one.ran else 0.0,
        lambda _, value: abs(value) <= 0.02,
    ),
    "good of served": (lambda one: one.ran["auto"].all.of_served, lambda _, value: value >= 0.97),
    "highest tier": (
        lambda one: mean(_known(one.ran["auto"].highest)).value if one.task.cell.tiers == "three" else 1.0,
        lambda _, value: value >= 0.99,
    ),
}


def missed(found: Sequence[Found]) -> Grid:
    """Every cell that misses, by figure."""
    rows = []
    for name, (value_of, is_met) in WANTED.items():
        cells = [(one, value) for one in found if not is_met(one, value := value_of(one))]
        for one, value in sorted(cells, key=lambda pair: pair[1]):
            cell = one.task.cell
            keeping = nobody = ""
            if name == TO_CAP:
                keeping = f"{_to_cap(one, KEEPING_CAP).value:.3f}" if KEEPING_CAP in one.ran else "none keeps"
                nobody = f"{_ceiling_to_cap(one):.3f}" if one.ceiling else ""
            place = [cell.name, cell.workload, cell.tiers, f"{cell.load:g}x"]
            rows.append([name, *place, f"{value:.3f}", keeping, nobody])
    columns = ["figure", "engine", "workload", "tiers", "load", "value", "over the keeping cap", "nobody above"]
    return Grid("Cells that miss a figure", columns, rows)


def _charts(found: Sequence[Found]) -> list[Chart]:
    """Charts: the goodput over all engines, with the worst and the best as bars, and the goodput of each engine over
    that of its cap.
    """
    loads = list(dict.fromkeys(one.task.cell.load for one in found))
    at = {load: [one for one in found if one.task.cell.load == load] for load in loads}
    lines = []
    for who, name in NAMES.items():
        if all(who in one.ran for one in found):
            each = [[mean(one.ran[who].steady).value for one in at[load]] for load in loads]
            means, low, high = ([f(values) for values in each] for f in (fmean, min, max))
            lines.append(Line(name, loads, means, low, high, dashed=who == CAP, bold=who == "auto"))
    x, engines_ = "load, in multiples of round robin's knee", dict.fromkeys(one.task.cell.profile.name for one in found)
    title = f"Goodput on {len(engines_)} engines: their mean, the worst and the best"
    charts = [Chart("engines", title, x, "goodput", lines, most_y=1.02)]
    if all(one.cap for one in found):
        ratios = [
            line(engine, loads, [_to_cap(one) for one in found if one.task.cell.profile.name == engine])
            for engine in engines_
        ]
        title = "Goodput of tailgate, over that of the best static cap in hindsight"
        charts.append(Chart("engines-to-cap", title, x, "ratio", ratios, levels={"the cap": 1.0}))
    return charts
