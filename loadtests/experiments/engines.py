"""The gateway on real engines, beside round robin and the best static cap in hindsight.

Each cell has two replicas, of one engine unless two are named. `small-2` is `small-4` with two seats. Loads are
multiples of the knee: the highest rate at which 97% are good with round robin. *auto* enforces with learned slots.
*zero-config* is `tailgate serve --replica`, in shadow mode. The best cap of each cell is searched on the same arrivals,
with strict priorities. The best *keeping* cap also keeps each percentile in 95% of the windows of 10 s, and 97% of its
served requests are good. *Cold* figures cover the first 40 s. *Warm* is *auto* on the same arrivals after a minute at
.8x or less.
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
from loadtests.experiments.cells import Judgement, mean_of_cells, over_cells
from loadtests.experiments.engines_cell import FEW_SEATS, Cell
from loadtests.experiments.engines_plan import CAP, KEEPING_CAP, Found, Task, find, knee_of
from loadtests.experiments.findings import Chart, Findings, Grid, Line, bare, line, written
from loadtests.experiments.runner import Runner
from loadtests.experiments.targets import Target, at_least, at_most

SEEDS = 5
LOADS = (0.8, 1.0, 1.5, 2.0)
HIGHEST_LOAD = 3.0
"""The load of an additional run of *auto* with three tiers. Only its highest tier has a target there."""
WORKLOADS = ("code", "reasoning", "summaries")
PROFILES = {**ENGINES, "small-2": replace(ENGINES["small-4"], name="small-2", max_num_seqs=2)}
PAIR = ("llama3-8b-a100", "llama3-70b-a100-tp4")
"""Engines on which the other workloads and three tiers are run."""
WHO = ("auto", "slots", "zero", "round-robin")
UNLIKE = (("llama3-8b-a100", 2.0), ("llama3-8b-a100", 4.0), ("llama2-7b-h100", "llama2-7b-a40"))
"""The engine of one replica, and either the engine of the other replica or the factor by which it is slower."""
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
        f"{len(tasks[0].seeds)} seeds; {MIN_S:g} to {MAX_S:g} s of arrivals each after the first 40 s, "
        "longer for slower engines."
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
    kinds: list[Key] = [(engine, "chat", "one") for engine in PROFILES]
    kinds += [(engine, workload, "one") for engine, workload in product(PAIR, WORKLOADS)]
    kinds += [(engine, "chat", "three") for engine in PAIR]
    kinds = [kind for kind in kinds if runner.runs(engines=kind[:1], workload=kind[1])]
    unlike = [pair for pair in UNLIKE if runner.runs(engines=[str(part) for part in pair])]
    alone = [name for pair in unlike for name in pair if isinstance(name, str)]
    needed = [*((engine, workload, "one") for engine, workload, _ in kinds), *((name, "chat", "one") for name in alone)]
    known: list[Key] = list(dict.fromkeys(needed))
    cells = [Cell(PROFILES[engine], workload) for engine, workload, _ in known]
    knees = dict(zip(known, runner.map(knee_of, cells), strict=True))
    tasks = []
    for engine, workload, tiers in kinds:
        knee = knees[engine, workload, "one"]
        seconds = min(max(ANSWERS / knee / SEEDS, MIN_S), MAX_S)
        cell = Cell(PROFILES[engine], workload, tiers, seconds=seconds)
        for load in LOADS:
            tasks.append(Task(replace(cell, load=load), load * knee, seeds, WHO, bounded=True))
        if tiers == "three":
            load = HIGHEST_LOAD
            tasks.append(Task(replace(cell, load=load), load * knee, seeds, ("auto",), caps=False))
    for engine, other in unlike:
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
    findings.figures["mean_goodput"] = mean_of_cells([one.ran["auto"].steady for one in found])
    for name, judge in JUDGED.items():
        findings.figures |= over_cells(name, [cell for one in found if (cell := judge(one)) is not None])


def _known(values: Iterable[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]


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


TO_CAP = "to_best_cap"


def _by_load(one: Found, upto_knee: float, above: float) -> Target:
    return at_least(upto_knee if one.task.cell.load <= 1.0 else above)


JUDGED: dict[str, Callable[[Found], Judgement | None]] = {
    TO_CAP: lambda one: Judgement(_to_cap(one), _by_load(one, 1.0, 1.05)) if one.cap else None,
    "to_keeping_cap": lambda one: (
        Judgement(_to_cap(one, KEEPING_CAP), _by_load(one, 1.0, 1.05)) if KEEPING_CAP in one.ran else None
    ),
    "few_seats_to_best_cap": lambda one: (
        Judgement(_to_cap(one), at_least(0.97)) if one.cap and one.task.cell.profile.max_num_seqs <= FEW_SEATS else None
    ),
    "cold_to_warm": lambda one: Judgement(_to_warm(one), _by_load(one, 0.98, 0.95)) if one.warm else None,
    "zero_less_round_robin": lambda one: (
        Judgement(_less(one, "zero", "round-robin"), at_least(-0.01)) if "zero" in one.ran else None
    ),
    "zero_less_round_robin_cold": lambda one: (
        Judgement(_less(one, "zero", "round-robin", cold=True), at_least(-0.01)) if "zero" in one.ran else None
    ),
    "zero_p99_ttft_above_round_robin_s": lambda one: (
        Judgement(bare(_later(one), 1), at_most(0.02)) if "zero" in one.ran and one.task.cell.load < 1.0 else None
    ),
    # Where replicas are unlike.
    "less_least_requests": lambda one: (
        Judgement(_less(one, "auto", "least-requests"), at_least(0.0)) if "least-requests" in one.ran else None
    ),
    "slots_off_auto": lambda one: Judgement(_off(one), at_most(0.02)) if "slots" in one.ran else None,
    "good_of_served": lambda one: Judgement(bare(one.ran["auto"].all.of_served, 1), at_least(0.97)),
    "highest_tier": lambda one: (
        Judgement(mean(_known(one.ran["auto"].highest)), at_least(0.99)) if one.task.cell.tiers == "three" else None
    ),
}
"""The value of a cell, and what is wanted of it, by figure; None where a cell has no such figure."""


def missed(found: Sequence[Found]) -> Grid:
    """Every cell that falls short by more than its interval, by figure."""
    rows = []
    for name, judge in JUDGED.items():
        short = [(one, judged) for one in found if (judged := judge(one)) is not None and judged.short]
        for one, judged in sorted(short, key=lambda pair: pair[1].margin):
            cell = one.task.cell
            keeping = nobody = ""
            if name == TO_CAP:
                keeping = f"{_to_cap(one, KEEPING_CAP).value:.3f}" if KEEPING_CAP in one.ran else "none keeps"
                nobody = f"{_ceiling_to_cap(one):.3f}" if one.ceiling else ""
            place = [cell.name, cell.workload, cell.tiers, f"{cell.load:g}x"]
            rows.append([name, *place, written(judged.found), keeping, nobody])
    columns = ["figure", "engine", "workload", "tiers", "load", "value", "over the keeping cap", "nobody above"]
    return Grid("Cells that fall short by more than their interval", columns, rows)


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
