"""Admission when the load steps from .8x to 2x: how soon the admitted rate settles, and how much it swings.

The admitted rate is the number of requests of each second that were dispatched in the end. The rate has settled when it
stays within 10% of its level in the last 30 s. The swing is the largest distance from that level after 10 s.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

from gateway.sim.analysis.report import mean
from gateway.sim.run.results import Result
from gateway.sim.workload.arrival_process import Steps
from gateway.sim.workload.synthetic import Synthetic
from loadtests.experiments.findings import Chart, Findings, Line, bare
from loadtests.experiments.runner import Runner, against, ours

BEFORE, AFTER = 0.8, 2.0
LED_S, STEPPED_S, UNSEEN_S = 60, 100, 10
SETTLING_S, LEVEL_S, WINDOW_S = 10, 30, 5
BAND = 0.1
SEEDS, QUICK_SEEDS = 40, 6


def step_response(runner: Runner) -> Findings:
    """The step with the gateway and with the tuned cap."""
    seeds = QUICK_SEEDS if runner.effort.quick else SEEDS
    steps = Runner(
        replace(runner.effort, seeds=seeds, warmup_s=0.0, seconds=float(LED_S + STEPPED_S)), runner.jobs, runner.tell
    )
    policy = runner.policy()
    runs = steps.compare(
        [ours(policy), against("static-cap-tiers:slots=64,wait=0.8", policy)], _stepped(steps, runner.one_x("main"))
    )
    findings = Findings(steps.seeds)
    findings.how = f"{seeds} seeds, {LED_S} s before the step and {STEPPED_S} s after it."
    smooth = {name: _moving(_admitted(of)) for name, of in runs.items()}
    settled_s, swing, level = _read(smooth["ours"])
    findings.figures |= {
        "settled_s": bare(settled_s, seeds),
        "swing": bare(swing, seeds),
        "level_per_s": bare(level, seeds),
        "weighted_goodput": mean([run.weighted for run in runs["ours"]]),
    }
    seconds = [float(second - LED_S) for second in range(WINDOW_S, LED_S + STEPPED_S - UNSEEN_S)]
    offered = _moving([fmean(values) for values in zip(*(run.timeline.offered for run in runs["ours"]), strict=False)])
    lines = [Line(name, seconds[: len(of)], of, bold=name == "ours") for name, of in smooth.items()]
    findings.charts.append(
        Chart(
            "step-response",
            f"A step from {BEFORE:g}x to {AFTER:g}x, mean of {seeds} seeds",
            "seconds from the step",
            "requests per second",
            [*lines, Line("offered", seconds[: len(offered)], offered, dashed=True)],
            marks={"settled": settled_s},
        )
    )
    return findings


def _stepped(runner: Runner, one_x: float) -> Synthetic:
    """The main workload without its bursts, stepping up once."""
    shape = Steps(((float(LED_S), BEFORE), (float(STEPPED_S), AFTER)))
    return replace(runner.workload("main"), rate_per_s=one_x, shape=shape)


def _admitted(runs: list[Result]) -> list[float]:
    """Requests of each second that were dispatched, mean over runs."""
    return [fmean(values) for values in zip(*(run.timeline.dispatched for run in runs), strict=False)]


def _moving(values: list[float]) -> list[float]:
    """Moving means of `WINDOW_S` values; the first one ends with second `WINDOW_S`."""
    return [fmean(values[end - WINDOW_S : end]) for end in range(WINDOW_S, LED_S + STEPPED_S - UNSEEN_S)]


def _read(smooth: list[float]) -> tuple[float, float, float]:
    """(seconds until it stays in the band, swing, level), from moving means that begin at `WINDOW_S`."""
    level = fmean(smooth[-LEVEL_S:])
    after = [abs(value / level - 1.0) for value in smooth[LED_S - WINDOW_S :]]
    last_out = max((second for second, off in enumerate(after) if off > BAND), default=-1)
    return float(last_out + 1), max(after[SETTLING_S + WINDOW_S :]), level
