"""Hedging with queues: the effect of duplicates on a busy fleet, with and without the rules that hold them back.

Eight servers serve one request at a time. With rules off, the gateway sees no queue, and only the budget limits
duplicates. With rules on, a server has two slots, and other requests wait in the gateway. Then no duplicate is sent
while a request waits, or while more than .8 of the slots are in use.
"""

from __future__ import annotations

from gateway.core.policy import Hedge
from gateway.sim.analysis.report import Interval, mean, ratio
from loadtests.experiments.drawn import Run, Servers, Times, policy_of
from loadtests.experiments.findings import Chart, Findings, Grid, bare, line, written
from loadtests.experiments.runner import Runner

SERVERS, FEW, MANY = 8, 2, 10**6
REQUESTS, FULL_REQUESTS, WARMUP = 40_000, 100_000, 10_000
LOADS = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
QUICK = (0.5, 0.7)
TIMES = Times()
ARMS: dict[str, tuple[int, Hedge | None]] = {
    "no hedge": (MANY, None),
    "rules off": (MANY, Hedge(holdout=0.0)),
    "no hedge, 2 slots": (FEW, None),
    "rules on": (FEW, Hedge(holdout=0.0)),
}
LITERATURE = {0.5: (258.0, 125.0), 0.7: (289.0, 151.0)}
"""p99 in ms, without and with duplicates, in the model behind the targets."""


def hedge_utilisation(runner: Runner) -> Findings:
    """Every load, every arm, over seeds."""
    findings = Findings(runner.seeds)
    loads = QUICK if runner.effort.quick else LOADS
    requests = REQUESTS // 2 if runner.effort.quick else FULL_REQUESTS if runner.effort.full else REQUESTS
    findings.how = f"{len(runner.seeds)} seeds of {requests:,} requests each."
    asks = [(arm, load, seed, requests) for arm in ARMS for load in loads for seed in runner.seeds]
    found = iter(runner.map(_run, asks))
    runs = {arm: {load: [next(found) for _ in runner.seeds] for load in loads} for arm in ARMS}
    for load, (without_ms, with_ms) in LITERATURE.items():
        for name, arm, wanted in (("without", "no hedge", without_ms), ("with", "rules off", with_ms)):
            off = abs(_p99(runs[arm][load]).value / wanted - 1.0)
            findings.figures[f"p99_{name}_{load:g}_off_literature"] = bare(off, len(runner.seeds))
    kept = [_ratio(runs["rules on"][load], runs["no hedge, 2 slots"][load]) for load in loads]
    findings.figures["worst_p99_to_no_hedge"] = max(kept, key=lambda one: one.value)
    findings.figures["p99_to_no_hedge_0.5"] = kept[loads.index(0.5)]
    rows = [
        [f"{load:g}", *(written(_p99(runs[arm][load]), 0) for arm in ARMS), *_duplicates(runs, load), written(of, 3)]
        for load, of in zip(loads, kept, strict=True)
    ]
    columns = [
        "utilisation",
        *(f"{arm}, p99 ms" for arm in ARMS),
        "duplicates, rules off",
        "duplicates, rules on",
        "rules on / no hedge",
    ]
    findings.grids.append(Grid("p99 of TTFT by utilisation", columns, rows))
    lines = [
        line(arm, loads, [_p99(runs[arm][load]) for load in loads], dashed="no hedge" in arm, bold=arm == "rules on")
        for arm in ARMS
    ]
    findings.charts.append(Chart("utilisation", "Duplicates under load", "utilisation", "p99 of TTFT, ms", lines))
    return findings


def _run(asked: tuple[str, float, int, int]) -> Run:
    arm, load, seed, requests = asked
    slots, hedge = ARMS[arm]
    rate = load * SERVERS / TIMES.mean_s
    return Servers(policy_of(SERVERS, slots, hedge), TIMES, seed, fifo=True).run(rate, requests, WARMUP)


def _p99(runs: list[Run]) -> Interval:
    return mean([run.quantile(0.99) * 1000.0 for run in runs])


def _ratio(ours: list[Run], others: list[Run]) -> Interval:
    found = ratio([run.quantile(0.99) for run in ours], [run.quantile(0.99) for run in others])
    assert found is not None
    return found


def _duplicates(runs: dict[str, dict[float, list[Run]]], load: float) -> list[str]:
    return [f"{mean([run.duplicates for run in runs[arm][load]]).value:.1%}" for arm in ("rules off", "rules on")]
