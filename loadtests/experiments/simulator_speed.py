"""The speed of the simulator: requests per second of one core, with 16 busy replicas.

The whole production controller serves the main workload. Half of the CPU time is the controller's own.
"""

from __future__ import annotations

from dataclasses import replace

from gateway.core.pool_spec import ReplicaSpec
from gateway.sim.analysis.report import mean, summary
from loadtests.experiments.findings import Findings, Grid, written
from loadtests.experiments.runner import Runner, against, ours

REPLICAS = 16
LOAD = 0.95


def simulator_speed(runner: Runner) -> Findings:
    """Run in one process only, so that no other run disturbs the measurement."""
    runner = replace(runner, jobs=1)
    findings = Findings(runner.seeds)
    policy = runner.policy()
    specs = tuple(ReplicaSpec(f"r{n}", f"http://127.0.0.1:{8000 + n}") for n in range(1, REPLICAS + 1))
    wide = replace(policy, pools={"main": replace(policy.pools["main"], replicas=specs)})
    scale = REPLICAS / len(policy.pools["main"].replicas)
    workload = runner.workload("main").at_rate(runner.one_x("main") * scale * LOAD)
    found = runner.compare([ours(wide), against("static-cap", wide)], workload)
    for name, label in (("ours", ""), ("static-cap", "static_cap_")):
        runs = found[name]
        findings.figures[f"{label}requests_per_cpu_s"] = mean([run.requests_per_cpu_s for run in runs])
        findings.figures[f"{label}slots_in_use"] = mean([run.slots for run in runs])
        findings.raw[name] = summary(runs)
    rows = [[name, written(value, 2)] for name, value in findings.figures.items()]
    findings.grids.append(Grid(f"{REPLICAS} replicas at {LOAD:g}x", ["figure", "value"], rows))
    return findings
