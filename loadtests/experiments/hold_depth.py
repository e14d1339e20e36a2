"""How many requests an engine should hold, from a sweep over slots per replica, compared with the learned number.

An engine runs 64 requests here. With more slots, requests wait inside the engine, which knows no tiers. The knee is the
number of slots with the best weighted goodput at 1.5x, without admission. Learned slots are the mean of the limits 60 s
after a cold start, with admission.
"""

from __future__ import annotations

from random import Random
from statistics import fmean

from gateway.core.controller import Controller
from gateway.core.policy import Policy
from gateway.sim.analysis.report import mean, summary
from gateway.sim.engine.fleet import FleetSpec
from gateway.sim.engine.profiles import DEFAULT
from gateway.sim.run.options import Options
from gateway.sim.run.simulation import Simulation
from gateway.sim.run.tally import Tally
from gateway.sim.workload.synthetic import Synthetic
from loadtests.experiments.findings import Chart, Findings, Grid, bare, line, written
from loadtests.experiments.runner import Runner, ours, with_slots, without_admission
from loadtests.quantiles import off

SLOTS = (16, 32, 40, 48, 56, 64, 72, 80, 96, 128, 256)
QUICK_SLOTS = (32, 64, 96)
LOAD = 1.5
LEARNED_AT_S = 60.0


def hold_depth(runner: Runner) -> Findings:
    """The sweep, and the learned limit."""
    findings = Findings(runner.seeds)
    sweep = QUICK_SLOTS if runner.effort.quick else SLOTS
    policy, workload = runner.policy(), runner.workload("main").at_rate(runner.one_x("main") * LOAD)
    plain = without_admission(policy)
    candidates = [ours(with_slots(plain, slots), f"{slots} slots") for slots in sweep]
    found = list(runner.compare([*candidates, ours(with_slots(policy, None), "learned")], workload).values())
    runs, learned_runs = found[:-1], found[-1]
    weighted = [mean([run.weighted for run in of]) for of in runs]
    tier_0 = [mean([run.tiers["tier-0"].attainment or 0.0 for run in of]) for of in runs]
    knee = sweep[max(range(len(sweep)), key=lambda i: weighted[i].value)]
    learned = mean(runner.map(learned_slots, [(with_slots(policy, None), workload, seed) for seed in runner.seeds]))
    findings.figures |= {
        "knee": bare(knee, len(runner.seeds)),
        "knee_off_max_num_seqs": bare(off(DEFAULT.max_num_seqs, knee), len(runner.seeds)),
        "learned_slots": learned,
        "learned_off_knee": bare(off(knee, learned.value), len(runner.seeds)),
        "learned_weighted_goodput": mean([run.weighted for run in learned_runs]),
    }
    rows = [[str(s), written(w), written(t)] for s, w, t in zip(sweep, weighted, tier_0, strict=True)]
    columns = ["slots", "weighted goodput", "tier-0 attainment"]
    findings.grids.append(Grid(f"Slots per replica at {LOAD:g}x, admission off", columns, rows))
    findings.charts.append(
        Chart(
            "hold-depth",
            f"Slots per replica at {LOAD:g}x, admission off",
            "slots per replica",
            "share",
            [line("weighted goodput", sweep, weighted), line("tier-0 attainment", sweep, tier_0)],
            log_x=True,
            marks={"max_num_seqs": float(DEFAULT.max_num_seqs), "learned": learned.value},
            most_y=1.02,
        )
    )
    findings.raw |= {f"{slots} slots": summary(of) for slots, of in zip(sweep, runs, strict=True)}
    findings.raw["learned"] = summary(learned_runs)
    return findings


def learned_slots(of: tuple[Policy, Synthetic, int]) -> float:
    """Slots per replica that the controller gives 60 s after its start, from policy, workload and seed."""
    policy, workload, seed = of
    controller = Controller(policy, Random(f"{seed} controller"))
    options = Options(duration_s=LEARNED_AT_S + 1.0)
    engine = Simulation(controller, policy, FleetSpec().hosts(policy), options, Tally(policy.tiers.values(), 0.0), seed)
    slots: list[float] = []

    def read_slots() -> None:
        views = [replica for pool in controller.snapshot(LEARNED_AT_S).pools for replica in pool.replicas]
        slots.append(fmean(view.slots for view in views))

    engine.at(LEARNED_AT_S, read_slots)
    engine.run(workload.arrivals(seed))
    return slots[0]
