"""The p99 TTFT of each router at high load, and what a stale view of the load adds to it.

Eight replicas have Poisson arrivals, no admission and no slots, so the router alone decides. Load is a share of
saturation, the rate at which these engines finish requests when far more arrive. `snapshot` routers read the counts of
least-requests only once in a period. `one queue` holds requests in front of all engines, and sends the oldest to the
first free slot of 64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random as Seeded
from typing import TypeVar

from gateway.core.commands import Command
from gateway.core.fleet import routing
from gateway.core.policy import Policy
from gateway.core.pool_spec import ReplicaSpec
from gateway.core.request import NO_PREFIX, Prefix, Random, Request
from gateway.sim.analysis.report import Interval, bootstrap, mean, ratio
from gateway.sim.baselines import baselines
from gateway.sim.baselines.balancer import Balancer
from gateway.sim.engine.fleet import FleetSpec
from gateway.sim.run.decider import Decider
from gateway.sim.run.options import Options
from gateway.sim.run.results import Result
from gateway.sim.run.run import simulate
from gateway.sim.run.simulation import Simulation
from gateway.sim.run.tally import Tally
from gateway.sim.workload.arrival_process import Constant
from gateway.sim.workload.synthetic import Synthetic
from loadtests.experiments.findings import Chart, Findings, Grid, bare, line, written
from loadtests.experiments.runner import Runner

REPLICAS = 8
ONE_QUEUE = "one queue, 64 slots"
LOADS = (0.8, 0.9, 0.97)
JUDGED = 0.97
C = TypeVar("C", bound=routing.RoutingTarget)


class _Frozen:
    """Picks the replica with the fewest requests in flight at the last reading; one comes every `period_s`. Ties are
    broken at random.
    """

    def __init__(self, period_s: float) -> None:
        self.now = 0.0
        self._period_s = period_s
        self._read_at = 0.0
        self._counts: dict[int, int] = {}

    def pick(
        self,
        free: list[C],
        random: float,
        prefix: Prefix = NO_PREFIX,
        request_tokens: float = 0.0,
        home: C | None = None,
    ) -> C:
        if self.now >= self._read_at:
            self._counts = {replica.rank: replica.in_flight for replica in free}
            self._read_at = self.now + self._period_s
        least = min(self._counts.values())
        lightest = [replica for replica in free if self._counts[replica.rank] == least]
        return lightest[int(random * len(lightest))]

    def sent(self, replica: routing.RoutingTarget) -> None:
        pass


class Snapshots(Balancer):
    """A balancer to the fewest requests, whose counts are read only every `period_s`."""

    def __init__(self, policy: Policy, period_s: float, random: Random) -> None:
        super().__init__(policy, routing.ROUTERS["least-requests"], random)
        self._frozen = _Frozen(period_s)
        self._routers = dict.fromkeys(policy.pools, self._frozen)

    def arrive(self, request: Request, now: float) -> list[Command]:
        self._frozen.now = now
        return super().arrive(request, now)


Made = Callable[[Policy, Random], Balancer]


def _by(router: str) -> Made:
    return lambda policy, random: Balancer(policy, routing.ROUTERS[router], random)


def _every(period_s: float) -> Made:
    return lambda policy, random: Snapshots(policy, period_s, random)


ROUTERS: dict[str, Made] = {
    "least-prefill": _by("least-prefill"),
    "least-requests": _by("least-requests"),
    "round-robin": _by("round-robin"),
    "snapshot 200 ms": _every(0.2),
    "snapshot 1 s": _every(1.0),
    "snapshot 5 s": _every(5.0),
}


NAMES = (*ROUTERS, ONE_QUEUE)


def routing_staleness(runner: Runner) -> Findings:
    """Run both workloads with every router at every load."""
    findings = Findings(runner.seeds)
    for name, prefix in (("code", ""), ("main", "main_")):
        _sweep(runner, name, prefix, findings)
    return findings


def _sweep(runner: Runner, workload_name: str, prefix: str, findings: Findings) -> None:
    policy, workload = _fleet(runner.policy()), replace(runner.workload(workload_name), cv=1.0, shape=Constant())
    full = mean(runner.map(_saturated, [(policy, workload, seed) for seed in runner.seeds])).value
    findings.figures[f"{prefix}requests_per_s_at_saturation"] = bare(full, len(runner.seeds))
    loads = (JUDGED,) if runner.effort.quick else LOADS
    p99s: dict[str, list[list[float]]] = {}
    for name in NAMES:
        at = [workload.at_rate(full * load) for load in loads]
        asks = [(name, policy, scaled, seed, runner.options) for scaled in at for seed in runner.seeds]
        runs = runner.map(_run, asks)
        by_load = [runs[i * len(runner.seeds) : (i + 1) * len(runner.seeds)] for i in range(len(loads))]
        p99s[name] = [[_p99(run) for run in of] for of in by_load]
        for load, of in zip(loads, by_load, strict=True):
            findings.raw[f"{workload_name} {name} {load:g}"] = [run.tiers for run in of]
    last = {name: values[-1] for name, values in p99s.items()}
    below = _below(last["least-prefill"], last["least-requests"])
    findings.figures[f"{prefix}p99_ttft_below_least_requests_{JUDGED:g}"] = below
    most = _below(last[ONE_QUEUE], last["least-requests"])
    findings.figures[f"{prefix}p99_ttft_of_one_queue_below_least_requests_{JUDGED:g}"] = most
    stale = ratio(last["snapshot 1 s"], last["least-requests"])
    assert stale is not None  # no p99 is 0
    findings.figures[f"{prefix}p99_ttft_snapshot_1s_to_live"] = stale
    means = {name: [mean(values) for values in by] for name, by in p99s.items()}
    rows = [[name, *(written(value) for value in by)] for name, by in means.items()]
    title = f"{workload_name}: p99 TTFT by router, {REPLICAS} replicas"
    findings.grids.append(Grid(f"{title}, in seconds", ["router", *(f"load {load:g}" for load in loads)], rows))
    lines = [line(name, loads, by, bold=name == "least-prefill") for name, by in means.items()]
    findings.charts.append(
        Chart(
            f"routing-staleness-{workload_name}",
            title,
            "load, as a share of saturation",
            "p99 TTFT (s)",
            lines,
            log_y=True,
        )
    )


def _fleet(policy: Policy) -> Policy:
    """The policy with eight replicas and a single tier, since routers do not see tiers."""
    pool = replace(
        policy.pools["main"],
        replicas=tuple(ReplicaSpec(f"r{n}", f"http://127.0.0.1:{8000 + n}") for n in range(1, REPLICAS + 1)),
    )
    return replace(policy, pools={"main": pool})


def _saturated(of: tuple[Policy, Synthetic, int]) -> float:
    """Requests per second that finish from 30 s to 90 s, while far more arrive."""
    policy, workload, seed = of
    options = Options(duration_s=91.0, give_up_s=0.0)
    decider, tally = Balancer(policy, routing.ROUTERS["least-prefill"], Seeded(seed)), Tally(policy.tiers.values(), 0.0)
    engine = Simulation(decider, policy, FleetSpec().hosts(policy), options, tally, seed)
    finished: list[int] = []
    for at in (30.0, 90.0):
        engine.at(at, lambda: finished.append(engine.arrived - len(engine.requests)))
    engine.run(workload.at_rate(150.0).arrivals(seed))
    return (finished[1] - finished[0]) / 60.0


def _run(of: tuple[str, Policy, Synthetic, int, Options]) -> Result:
    name, policy, workload, seed, options = of
    random = Seeded(f"{seed} router")
    decider: Decider
    if name == ONE_QUEUE:
        setup = baselines.setup("static-cap:slots=64,wait=600", policy)
        policy = setup.policy
        decider = setup.decider(policy, random)
    else:
        decider = ROUTERS[name](policy, random)
    served = simulate(policy, workload.arrivals(seed), seed=seed, options=options, decider=decider)
    return replace(served, policy=name)


def _p99(result: Result) -> float:
    """p99 TTFT of the largest tier; all tiers are routed alike."""
    largest = max(result.tiers.values(), key=lambda tier: tier.ttft.n)
    assert largest.ttft.p99 is not None
    return largest.ttft.p99


def _below(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    return bootstrap(lambda drawn: 1 - sum(ours[i] for i in drawn) / sum(theirs[i] for i in drawn), len(ours))
