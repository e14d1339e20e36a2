"""Two objectives, two knees: TTFT and the time between tokens collapse at different loads.

There is no admission. The same requests are judged once by a TTFT objective of 1 s alone, and once by a TPOT objective
of 30 ms alone. A knee is the interpolated load at which attainment falls below 90%, or the last load if it never does.
In code, chunks of long prompts stretch every step, so TPOT breaks long before TTFT.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gateway.core.policy import Policy
from gateway.core.slo import Objective, Slo
from gateway.sim.analysis.report import Interval, bootstrap, mean
from loadtests.experiments.findings import Chart, Findings, Grid, line, written
from loadtests.experiments.runner import Runner, ours, without_admission

LOADS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1)
QUICK_LOADS = (0.3, 0.6, 0.9, 1.1)
KNEE = 0.9
OBJECTIVES = {
    "ttft": Slo(ttft=(Objective(0.99, 1.0),)),
    "tpot": Slo(tpot=(Objective(0.99, 0.030),)),
}


def slo_knees(runner: Runner) -> Findings:
    """Run both workloads, and judge them by both objectives."""
    findings = Findings(runner.seeds)
    loads = QUICK_LOADS if runner.effort.quick else LOADS
    for name in ("main", "code"):
        workload, one_x = runner.workload(name), runner.one_x(name)
        candidates = [ours(_judged_by(runner.policy(), slo), metric) for metric, slo in OBJECTIVES.items()]
        found = [runner.compare(candidates, workload.at_rate(one_x * load)) for load in loads]
        goodput = {metric: [[run.goodput for run in at[metric]] for at in found] for metric in OBJECTIVES}
        for metric, by_load in goodput.items():
            findings.figures[f"{name}_{metric}_knee"] = _knee(loads, by_load)
        means = {metric: [mean(values) for values in by_load] for metric, by_load in goodput.items()}
        rows = [[f"{metric} alone", *map(written, values)] for metric, values in means.items()]
        findings.grids.append(Grid(f"{name}: attainment", ["objective", *(f"{load:g}x" for load in loads)], rows))
        lines = [line(f"{metric} objective alone", loads, values) for metric, values in means.items()]
        title = f"{name}: attainment of one objective alone"
        findings.charts.append(
            Chart(f"slo-knees-{name}", title, "load, as a multiple of 1x", "good / offered", lines, most_y=1.02)
        )
        findings.raw[name] = {"loads": loads, "goodput by metric, load and seed": goodput}
    return findings


def _judged_by(policy: Policy, slo: Slo) -> Policy:
    plain = without_admission(policy)
    patient = {
        name: replace(tier, slo=slo, priority=0, floor=0.0, timeouts=replace(tier.timeouts, queue_s=60.0))
        for name, tier in plain.tiers.items()
    }
    return replace(plain, tiers=patient)


def _knee(loads: Sequence[float], by_load: Sequence[Sequence[float]]) -> Interval:
    """The load at which the mean over seeds falls below KNEE; the last load if it never does, the first if it is below
    at once."""

    def knee(drawn: Sequence[int]) -> float:
        before = (loads[0], 1.0)
        for load, values in zip(loads, by_load, strict=True):
            share = sum(values[i] for i in drawn) / len(drawn)
            if share < KNEE:
                gone = (before[1] - KNEE) / (before[1] - share)
                return before[0] + gone * (load - before[0])
            before = (load, share)
        return loads[-1]

    return bootstrap(knee, len(by_load[0]))
