"""Weighted goodput from .6x to 3x of what the optimum can serve, compared with the optimum and with static rules.

The static caps are the best of a sweep over slots and patience at each load, in hindsight. The second workload, code,
has the same policy, untuned.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from gateway.sim.analysis.report import Interval, mean, ratio, summary
from gateway.sim.run.results import Result
from loadtests.experiments.cells import Judgement, mean_of_cells, over_cells
from loadtests.experiments.findings import Chart, Findings, Grid, line, written
from loadtests.experiments.runner import Optimum, Runner, against, best_replay, ours
from loadtests.experiments.targets import at_least

LOADS = (0.6, 0.9, 1.5, 2.0, 3.0)
QUICK_LOADS = (0.9, 2.0)
CAPS = tuple(
    f"static-cap:slots={slots},wait={wait:g}" for slots, wait in ((48, 0.5), (64, 0.3), (64, 0.5), (64, 0.9), (96, 0.5))
)
QUICK_CAPS = ("static-cap:slots=64,wait=0.5",)
TIERED = tuple(f"static-cap-tiers:slots={slots},wait={wait:g}" for slots, wait in ((48, 0.5), (64, 0.5), (64, 0.8)))
QUICK_TIERED = ("static-cap-tiers:slots=64,wait=0.8",)
OTHERS = ("llm-d", "least-requests", "round-robin")
WORKLOADS = ("main", "code")
TO_REPLAY = {0.9: at_least(0.99), 1.5: at_least(0.97), 2.0: at_least(0.95), 3.0: at_least(0.91)}
"""Wanted goodput over that of the replay, by load."""

Row = dict[str, Interval | None]


def overload(runner: Runner) -> Findings:
    """Both workloads at every load."""
    findings = Findings(runner.seeds)
    cells = [cell for workload in WORKLOADS for cell in _sweep(runner, workload, findings)]
    findings.figures["mean_goodput"] = mean_of_cells([goodput for _, goodput in cells])
    findings.figures |= over_cells("to_replay", [judged for judged, _ in cells if judged is not None])
    return findings


def _sweep(runner: Runner, name: str, findings: Findings) -> list[tuple[Judgement | None, list[float]]]:
    """For each load: the ratio to the replay where one is wanted, and the weighted goodput of each seed."""
    policy, workload, one_x = runner.policy(), runner.workload(name), runner.one_x(name)
    quick = runner.effort.quick
    loads = QUICK_LOADS if quick else LOADS
    caps, tiered = (QUICK_CAPS, QUICK_TIERED) if quick else (CAPS, TIERED)
    candidates = [ours(policy), *(against(text, policy) for text in (*caps, *tiered, *OTHERS))]
    rows, judged = [], []
    for load in loads:
        scaled = workload.at_rate(one_x * load)
        optima = runner.optima(policy, scaled)
        runs = runner.compare(candidates, scaled)
        rows.append(_row(optima, runs, caps, tiered))
        wanted = Judgement(known(rows[-1]["ours / replay"]), TO_REPLAY[load]) if load in TO_REPLAY else None
        judged.append((wanted, [run.weighted for run in runs["ours"]]))
        findings.raw |= {f"{name} {load:g}x {label}": summary(results) for label, results in runs.items()}
    names = list(rows[0])
    title = f"{name}: weighted goodput by load (1x = {one_x:.1f} requests/s)"
    cells = [[label, *(written(row[label]) for row in rows)] for label in names]
    findings.grids.append(Grid(title, ["", *(f"{load:g}x" for load in loads)], cells))
    lines = [
        line(label, loads, [known(row[label]) for row in rows], dashed="optimum" in label, bold=label == "ours")
        for label in names
        if "/" not in label
    ]
    findings.charts.append(
        Chart(f"overload-{name}", title, "load, as a multiple of 1x", "weighted goodput", lines, most_y=1.02)
    )
    findings.raw[f"{name} 1x requests/s"] = one_x
    return judged


def _row(optima: Sequence[Optimum], runs: dict[str, list[Result]], caps: Sequence[str], tiered: Sequence[str]) -> Row:
    weighted = {label: [result.weighted for result in results] for label, results in runs.items()}
    best = max(caps, key=lambda cap: fmean(weighted[cap]))
    best_tiered = max(tiered, key=lambda cap: fmean(weighted[cap]))
    replay = best_replay(optima)
    bound = [one.constrained for one in optima]
    row: Row = {
        "free optimum": mean([one.free for one in optima]),
        "optimum": mean(bound),
        "replay of what it accepts": mean(replay),
        "ours": mean(weighted["ours"]),
        "best static cap": mean(weighted[best]),
        "best static cap, strict tiers": mean(weighted[best_tiered]),
        "llm-d's rule": mean(weighted["llm-d"]),
        "least requests, no control": mean(weighted["least-requests"]),
        "round robin, no control": mean(weighted["round-robin"]),
        "ours / replay": ratio(weighted["ours"], replay),
        "ours / optimum": ratio(weighted["ours"], bound),
        "best static cap / replay": ratio(weighted[best], replay),
        "best static cap, strict tiers / replay": ratio(weighted[best_tiered], replay),
        "ours, by tokens / offered": mean([result.token_weighted for result in runs["ours"]]),
    }
    return row


def known(value: Interval | None) -> Interval:
    """A ratio that must exist. Raises ValueError if it is None."""
    if value is None:
        raise ValueError("the goodput to compare with is 0 in a seed, so there is no ratio")
    return value
