"""Faults in a fleet: a slow, a refusing and a hung replica at once, and replicas that die one by one.

Twelve replicas serve the main workload at .75x. After a minute one replica takes three times as long, one answers every
request with a fast 503, and one never answers. Their health checks pass. A replica counts as out from the time after
which it never gets more than two requests in five seconds. An hour without faults shows how often a healthy replica is
ejected. Then one replica dies every half minute; goodput is compared with that of all twelve, times the share of
replicas left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import fmean

from gateway.core.commands import Command, Dispatch
from gateway.core.controller import Controller
from gateway.core.policy import Policy
from gateway.core.pool_spec import ReplicaSpec
from gateway.core.snapshot import Snapshot
from gateway.sim.analysis.report import Interval, mean
from gateway.sim.engine.fleet import Fault, FleetSpec, Harm
from gateway.sim.run.decider import Overheard
from gateway.sim.run.options import Options
from gateway.sim.run.run import simulate
from gateway.sim.workload.synthetic import Synthetic
from loadtests.experiments.findings import Chart, Findings, Grid, Line, bare, line, written
from loadtests.experiments.runner import Runner

REPLICAS = 12
LOAD = 0.75
BEFORE_S, AFTER_S = 60, 120
WINDOW_S, MAX = 5, 2
STRICKEN = {"slow": "r3", "busy": "r6", "hung": "r9"}
HARMS = (
    Fault(float(BEFORE_S), STRICKEN["slow"], Harm.SLOW, 3.0),
    Fault(float(BEFORE_S), STRICKEN["busy"], Harm.BUSY),
    Fault(float(BEFORE_S), STRICKEN["hung"], Harm.HUNG),
)
HOUR_S, QUICK_HOUR_S = 3600.0, 300.0
STAGE_S, SETTLED_S = 30, 15
MIN_ALIVE = 4
"""Fewest replicas that stay alive. With fewer, the load is more than three times their capacity, which the overload
sweep covers.
"""


class Counted:
    """Counts the requests sent to each replica in each second."""

    def __init__(self, policy: Policy, seed: int) -> None:
        self.controller = Controller(policy, Random(f"{seed} controller"))
        self.decider = Overheard(self.controller, self._count)
        self.sent_to: Counter[tuple[str, int]] = Counter()

    def _count(self, commands: list[Command], now: float) -> None:
        for command in commands:
            if isinstance(command, Dispatch):
                self.sent_to[command.replica, int(now)] += 1


@dataclass(frozen=True, slots=True)
class Drilled:
    """Results of one run."""

    sent: dict[str, list[int]]
    """Requests that each replica was sent in each second."""
    good: list[int]
    """Good requests by the second in which they arrived."""
    finished: int
    ejections: dict[str, dict[str, int]]
    """Number of ejections, by replica and reason."""
    p99_ttft_s: float
    """p99 TTFT of tier 0, which waits for no other tier. In other tiers the queue dominates."""


Run = tuple[Policy, Synthetic, int, tuple[Fault, ...], float, float]
"""Policy, workload, seed, faults, seconds, and the first seconds, which latencies and completions leave out."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """Runs that differ in their seeds alone. `rate`: requests per second. Latencies leave out the first `warmup_s`."""

    policy: Policy
    rate: float
    faults: tuple[Fault, ...]
    seconds: float
    warmup_s: float = 0.0


def fault_drill(runner: Runner) -> Findings:
    """Run the drill, the hour without faults, and the fleet that dies."""
    findings = Findings(runner.seeds)
    policy = _fleet(runner.policy())
    one_x = runner.one_x("main") * REPLICAS / 4
    hour_s = QUICK_HOUR_S if runner.effort.quick else HOUR_S
    findings.how = (
        f"{len(runner.seeds)} seeds: {BEFORE_S + AFTER_S} s with faults, {hour_s / 60:g} minutes without, and "
        f"{STAGE_S} s for each replica that dies."
    )
    stages = range(REPLICAS, MIN_ALIVE - 1, -1)
    deaths = tuple(Fault(float(STAGE_S * (2 + n)), f"r{REPLICAS - n}", Harm.DEAD) for n in range(REPLICAS - MIN_ALIVE))
    drill = _Kind(policy, one_x * LOAD, HARMS, float(BEFORE_S + AFTER_S), float(BEFORE_S + SETTLED_S))
    kinds = {  # the longest come first, so that none is left alone at the end
        "hour": _Kind(policy, one_x * LOAD, (), hour_s),
        "dying": _Kind(policy, one_x, deaths, float(STAGE_S * (2 + REPLICAS - MIN_ALIVE))),
        "drill": drill,
        "no faults": replace(drill, faults=()),
        "no ejection": replace(drill, policy=_without_ejection(policy)),
    }
    runs = _runs(runner, kinds)
    _drill(runs["drill"], runs["no faults"], runs["no ejection"], findings)
    _quiet(runs["hour"], hour_s, findings)
    _dying(runs["dying"], stages, findings)
    return findings


# ---- one slow, one that refuses, one that hangs


def _drill(runs: list[Drilled], quiet: list[Drilled], off: list[Drilled], findings: Findings) -> None:
    late = BEFORE_S + SETTLED_S
    findings.figures["completions_per_replica_and_s"] = mean(
        [run.finished / (AFTER_S - SETTLED_S) / REPLICAS for run in quiet]
    )
    for harm, name in STRICKEN.items():
        worst = max(out_after_s(run.sent[name][BEFORE_S:]) for run in runs)
        findings.figures[f"{harm}_out_after_s"] = bare(worst, len(runs))
    wrong = [_mistaken(run.ejections, tuple(STRICKEN.values())) for run in runs]
    findings.figures["healthy_ejected_in_the_drill"] = bare(max(wrong), len(runs))
    for key, of in (("drill", runs), ("no_faults", quiet), ("no_ejection", off)):
        findings.figures[f"good_per_s_{key}"] = mean([fmean(run.good[late:-5]) for run in of])
        findings.figures[f"p99_ttft_{key}_s"] = mean([run.p99_ttft_s for run in of])
    healthy = [name for name in runs[0].sent if name not in STRICKEN.values()]
    seconds = [float(second - BEFORE_S) for second in range(BEFORE_S - 20, BEFORE_S + 60)]
    lines = [
        _per_second(name, seconds, [run.sent[at] for run in runs])
        for name, at in (("takes three times as long", "r3"), ("answers 503", "r6"), ("hangs", "r9"))
    ]
    of_healthy = [run.sent[name] for run in runs for name in healthy]
    lines.append(_per_second("a healthy one", seconds, of_healthy, bold=True))
    findings.charts.append(
        Chart(
            "fault-drill",
            f"Requests that a replica is sent, mean of {len(runs)} seeds",
            "seconds from the faults",
            "requests per second",
            lines,
        )
    )
    findings.raw["drill"] = [run.ejections for run in runs]


def out_after_s(sent: Sequence[int]) -> float:
    """Seconds until the replica is out of rotation: from then on no `WINDOW_S` seconds bring more than `MOST`
    requests."""
    last = 0
    for start in range(len(sent) - WINDOW_S + 1):
        if sum(sent[start : start + WINDOW_S]) > MAX:
            last = start + next(n for n in range(WINDOW_S - 1, -1, -1) if sent[start + n]) + 1
    return float(last)


def _per_second(name: str, seconds: list[float], of: Sequence[Sequence[int]], *, bold: bool = False) -> Line:
    return Line(name, seconds, [fmean(sent[int(at) + BEFORE_S] for sent in of) for at in seconds], bold=bold)


# ---- an hour without faults


def _quiet(runs: list[Drilled], seconds: float, findings: Findings) -> None:
    findings.figures["healthy_ejected_in_an_hour"] = bare(sum(_mistaken(run.ejections, ()) for run in runs), len(runs))
    findings.figures["hours"] = bare(seconds * len(runs) / 3600.0, len(runs))
    findings.raw["quiet"] = [run.ejections for run in runs]


def _mistaken(ejections: dict[str, dict[str, int]], stricken: tuple[str, ...]) -> int:
    return sum(sum(by_reason.values()) for name, by_reason in ejections.items() if name not in stricken)


# ---- one after the other dies


def _dying(runs: list[Drilled], stages: Sequence[int], findings: Findings) -> None:
    ends = [STAGE_S * (2 + n) for n in range(len(stages))]
    good = [[fmean(run.good[end - SETTLED_S : end]) for run in runs] for end in ends]
    shares: list[Interval] = []
    for alive, of in zip(stages, good, strict=True):
        shares.append(mean([here * REPLICAS / (alive * all_of) for here, all_of in zip(of, good[0], strict=True)]))
    least = min(shares[1:], key=lambda share: share.value)
    findings.figures["least_goodput_to_proportion"] = least
    rows = [
        [str(alive), written(mean(of), 1), written(share)]
        for alive, of, share in zip(stages, good, shares, strict=True)
    ]
    findings.grids.append(Grid("As replicas die", ["alive", "good requests per second", "over their share"], rows))
    alive_at = [float(alive) for alive in stages]
    full = fmean(good[0])
    findings.charts.append(
        Chart(
            "fault-drill-dying",
            f"Goodput as replicas die, load of {REPLICAS}, mean of {len(runs)} seeds",
            "replicas alive",
            "good requests per second",
            [
                line("ours", alive_at, [mean(of) for of in good], bold=True),
                Line("in proportion", alive_at, [full * alive / REPLICAS for alive in stages], dashed=True),
            ],
        )
    )


# ---- running


def _fleet(policy: Policy) -> Policy:
    specs = tuple(ReplicaSpec(f"r{n}", f"http://127.0.0.1:{8000 + n}") for n in range(1, REPLICAS + 1))
    return replace(policy, pools={"main": replace(policy.pools["main"], replicas=specs)})


def _without_ejection(policy: Policy) -> Policy:
    pool = policy.pools["main"]
    return replace(policy, pools={"main": replace(pool, health=replace(pool.health, ejection=None))})


def _runs(runner: Runner, kinds: Mapping[str, _Kind]) -> dict[str, list[Drilled]]:
    """The runs of each kind, one a seed."""
    asked: list[Run] = []
    for kind in kinds.values():
        workload = replace(runner.workload("main"), duration_s=kind.seconds).at_rate(kind.rate)
        asked += [(kind.policy, workload, seed, kind.faults, kind.seconds, kind.warmup_s) for seed in runner.seeds]
    found = iter(runner.map(drilled, asked))
    return {name: [next(found) for _ in runner.seeds] for name in kinds}


def drilled(of: Run) -> Drilled:
    """Run one case to its end."""
    policy, workload, seed, faults, seconds, warmup_s = of
    counted = Counted(policy, seed)
    options = Options(duration_s=seconds, warmup_s=warmup_s)
    result = simulate(
        policy,
        workload.arrivals(seed),
        seed=seed,
        options=options,
        decider=counted.decider,
        fleet=FleetSpec(faults=faults),
    )
    snapshot: Snapshot = counted.controller.snapshot(seconds)
    replicas = [replica for pool in snapshot.pools for replica in pool.replicas]
    return Drilled(
        sent={r.name: [counted.sent_to[r.name, second] for second in range(int(seconds))] for r in replicas},
        good=list(result.timeline.good[: int(seconds)]),
        finished=result.finished,
        ejections={r.name: dict(r.health.ejections) for r in replicas if r.health.ejections},
        p99_ttft_s=result.tiers["tier-0"].ttft.p99 or 0.0,
    )
