"""A retry storm: one of four replicas is eight times as slow for twenty seconds, and clients retry up to three times.

The main workload runs without bursts at .9x. Clients leave after ten seconds without an answer, and retry as the OpenAI
SDK does; so do refused clients. Goodput counts first tries, and is compared with the 20 s before. A second run has no
admission, no queue deadline, and no limit of slots or retries.
"""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean

from gateway.core.policy import Hedge, Policy, Retry
from gateway.sim.analysis.report import Interval, mean
from gateway.sim.engine.fleet import Fault, FleetSpec, Harm
from gateway.sim.run.options import Options
from gateway.sim.run.results import Timeline
from gateway.sim.run.run import simulate
from gateway.sim.workload.arrival_process import Steps
from gateway.sim.workload.synthetic import Synthetic
from loadtests.experiments.findings import Chart, Findings, Grid, Line, written
from loadtests.experiments.runner import Runner, without_admission

LOAD, FACTOR, RETRIES, PATIENCE_S = 0.9, 8.0, 3, 10.0
SLOW_AT, WELL_AT, SECONDS = 40, 60, 180
BEFORE_S = 20
WINDOW_S = 5
UNSEEN_S = 10
"""Last seconds of arrivals that are left out, since no requests follow them."""
WHOLE, ABLATED = "ours", "no admission, no budgets"


def retry_storm(runner: Runner) -> Findings:
    """Run every arm with every seed."""
    findings = Findings(runner.seeds)
    findings.how = f"{len(runner.seeds)} seeds of {SECONDS} s, the replica slow from {SLOW_AT} s to {WELL_AT} s."
    workload = replace(
        runner.workload("main"),
        duration_s=float(SECONDS),
        rate_per_s=runner.one_x("main") * LOAD,
        shape=Steps(((float(SECONDS), 1.0),)),
    )
    arms = _arms(runner.policy())
    found = iter(runner.map(_run, [(policy, workload, seed) for policy in arms.values() for seed in runner.seeds]))
    runs = {arm: [next(found) for _ in runner.seeds] for arm in arms}
    rows = []
    for arm, of in runs.items():
        after = [mean([to_before(run, WELL_AT + at, WELL_AT + at + 10) for run in of]) for at in (0, 10, 30, 60, 90)]
        back = [back_after_s(run) for run in of]
        rows.append([arm, *(written(one) for one in after), f"{fmean(back):.0f}", f"{max(back):.0f}"])
    columns = ["", *(f"{at} to {at + 10} s" for at in (0, 10, 30, 60, 90)), "back for good after, s", "longest"]
    findings.grids.append(Grid("Goodput after the recovery, over what it was before", columns, rows))
    findings.figures |= {
        "goodput_10_s_after_to_before": _after(runs[WHOLE]),
        "without_ejection_10_s_after_to_before": _after(runs[f"{WHOLE}, no ejection"]),
        "ablation_10_s_after_to_before": _after(runs[ABLATED]),
        "ablation_60_s_after_to_before": mean([to_before(run, WELL_AT + 60, WELL_AT + 70) for run in runs[ABLATED]]),
    }
    findings.charts.append(_chart(runs))
    return findings


def to_before(run: Timeline, begin: int, end: int) -> float:
    """Goodput of the arrivals of these seconds, over the goodput before the slowdown."""
    return _goodput(run, begin, end) / _goodput(run, SLOW_AT - BEFORE_S, SLOW_AT)


def back_after_s(run: Timeline) -> float:
    """Seconds from the recovery until all later windows of five seconds have at least .95 of the goodput before."""
    last = WELL_AT
    for begin in range(WELL_AT, SECONDS - UNSEEN_S - WINDOW_S + 1):
        if to_before(run, begin, begin + WINDOW_S) < 0.95:
            last = begin + WINDOW_S
    return float(last - WELL_AT)


def _after(runs: list[Timeline]) -> Interval:
    """Goodput of the ten seconds that begin 10 s after the recovery, over that before the slowdown."""
    return mean([to_before(run, WELL_AT + 10, WELL_AT + 20) for run in runs])


def _goodput(run: Timeline, begin: int, end: int) -> float:
    return sum(run.good[begin:end]) / sum(run.offered[begin:end])


def _arms(policy: Policy) -> dict[str, Policy]:
    hedged = replace(policy, tiers={name: replace(tier, hedge=Hedge()) for name, tier in policy.tiers.items()})
    arms = {WHOLE: hedged, ABLATED: _ablated(hedged)}
    return arms | {f"{arm}, no ejection": _without_ejection(of) for arm, of in arms.items()}


def _ablated(policy: Policy) -> Policy:
    policy = without_admission(policy)
    tiers = {
        name: replace(tier, timeouts=replace(tier.timeouts, queue_s=math.inf), retry=Retry(1.0), hedge=None)
        for name, tier in policy.tiers.items()
    }
    pools = {
        name: replace(
            pool,
            slots=10**6,
            queue_limit=10**9,
            queue_bytes=10**15,
            router="least-requests",
            timeouts=replace(pool.timeouts, queue_s=math.inf),
        )
        for name, pool in policy.pools.items()
    }
    return replace(policy, tiers=tiers, pools=pools)


def _without_ejection(policy: Policy) -> Policy:
    pools = {name: replace(pool, health=replace(pool.health, ejection=None)) for name, pool in policy.pools.items()}
    return replace(policy, pools=pools)


def _run(asked: tuple[Policy, Synthetic, int]) -> Timeline:
    policy, workload, seed = asked
    faults = (Fault(float(SLOW_AT), "r1", Harm.SLOW, FACTOR), Fault(float(WELL_AT), "r1", Harm.RECOVER))
    options = Options(duration_s=float(SECONDS), patience_s=PATIENCE_S, retries=RETRIES)
    fleet = FleetSpec(faults=faults)
    return simulate(policy, workload.arrivals(seed), seed=seed, options=options, fleet=fleet).timeline


def _chart(runs: dict[str, list[Timeline]]) -> Chart:
    ends = list(range(SLOW_AT - BEFORE_S + WINDOW_S, SECONDS - UNSEEN_S + 1))
    lines = [
        Line(
            arm,
            [float(end - WELL_AT) for end in ends],
            [fmean(_goodput(run, end - WINDOW_S, end) for run in of) for end in ends],
            bold=arm == WHOLE,
            dashed="no ejection" in arm,
        )
        for arm, of in runs.items()
    ]
    title = f"One replica of four {FACTOR:g} times as slow for {WELL_AT - SLOW_AT} s, mean of {len(runs[WHOLE])} seeds"
    marks = {"slow": float(SLOW_AT - WELL_AT), "well": 0.0}
    return Chart("retry-storm", title, "seconds from the recovery", "goodput, by arrival", lines, marks=marks)
