"""A canary behind a split: how soon a bad arm is detected, and how often an equal one is called worse.

Nine replicas serve one model, and a tenth replica serves its successor. A split gives the successor a tenth of the
sessions. The successor is equal, slower in every step, or fails some answers. In all cases 0.2% fail on both sides. The
verdict is read from `/admin/state` after every fifty requests until it is "worse", as by an operator. Errors are drawn.
Queues, refusals and latencies come from the simulator, at a quarter of what the fleet can serve. There a single replica
has a median TTFT 4% longer than nine replicas that share their load; 5% are tolerated. One case is at 70%, where a
single equal engine really is slower. So judge a canary while the fleet is not busy, or give it spare replicas.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from gateway.core.commands import Ended
from gateway.core.journal.recorder import Raised, Recorded, Told
from gateway.core.policy import AdmissionSpec, Model, Objective, Policy, PoolSpec, ReplicaSpec, Slo
from gateway.core.request import Outcome, Record
from gateway.observe.metrics.arms import Arms, ArmVerdict
from gateway.observe.metrics.differences import share
from gateway.observe.metrics.facts import Edges
from gateway.policy.builtin import builtin
from gateway.sim.analysis.report import Interval
from gateway.sim.analysis.tally import Tally
from gateway.sim.run.fleet import FleetSpec
from gateway.sim.run.profiles import DEFAULT, Profile
from gateway.sim.run.simulation import Options, Simulation
from gateway.sim.workload.arrivals import Arrival
from gateway.sim.workload.synthetic import Synthetic
from loadtests.experiments.findings import Chart, Findings, Grid, bare, line
from loadtests.experiments.runner import Runner
from loadtests.quantiles import rank

OLD, NEW = "v1", "v2"
SPLIT = ((OLD, 90), (NEW, 10))
REPLICAS = 9
RATE = 20.0
"""Requests per second."""
BUSY_RATE = 60.0
"""Requests per second in the busy case."""
REQUESTS = 3000
LOOK_EVERY = 50
FAILING = 0.002
"""Share of answers that fail in either arm."""
EQUAL_RUNS = 30
RUNS = 6
Z = 1.96


@dataclass(frozen=True, slots=True)
class Case:
    """A successor: each step takes `slowdown` times as long, and a share of its answers fails."""

    name: str
    slowdown: float = 1.0
    failing: float = 0.0
    rate: float = RATE

    @property
    def engine(self) -> Profile:
        """The engine of the successor's replica."""
        times = ("step_base_s", "prefill_s_per_token", "decode_s_per_sequence", "kv_s_per_token")
        return replace(DEFAULT, **{name: getattr(DEFAULT, name) * self.slowdown for name in times})


EQUAL = Case("equal")
CASES = (
    EQUAL,
    Case("equal, busy", rate=BUSY_RATE),
    Case("1.2 times as slow", slowdown=1.2),
    Case("1.5 times as slow", slowdown=1.5),
    Case("twice as slow", slowdown=2.0),
    Case("5% more errors", failing=0.05),
    Case("20% more errors", failing=0.2),
)


def canary(runner: Runner) -> Findings:
    """Every case, with many seeds."""
    runs = (4, 4) if runner.effort.quick else (EQUAL_RUNS, RUNS)
    findings = Findings(range(1, max(runs) + 1))
    findings.how = f"{runs[0]} runs of the equal arm and {runs[1]} of each other, of {REQUESTS} requests each."
    traffic = replace(runner.workload("main"), duration_s=2 * REQUESTS / RATE)
    looks = [LOOK_EVERY * look for look in range(1, REQUESTS // LOOK_EVERY + 1)]
    rows, lines = [], []
    for case in CASES:
        count = runs[case is not EQUAL]
        seen = runner.map(first_accused, [(case, traffic, seed) for seed in range(1, count + 1)])
        accused = [at for at in seen if at is not None]
        estimate = share(len(accused), count, Z)
        part = Interval(estimate.value, estimate.low, estimate.high, count)
        name = case.name.replace(" ", "_").replace("%", "").replace(",", "")
        findings.figures["accused_equal" if case is EQUAL else f"seen_{name}"] = part
        at = rank(sorted(float(one) for one in accused), 0.9) if accused else None
        if case is not EQUAL and at is not None:
            findings.figures[f"requests_until_seen_{name}"] = bare(at, count)
        rows.append([case.name, str(count), f"{part.value:.2f}", *_times(accused)])
        lines.append(line(case.name, looks, [bare(sum(n <= at for n in accused) / count, count) for at in looks]))
        findings.raw[case.name] = {"first_accused_at": seen}
    columns = ["successor", "runs", "called worse", "after, median", "after, 9 of 10"]
    findings.grids.append(Grid("Requests of the split until its tenth is called worse", columns, rows))
    title = "Runs in which the canary has been called worse"
    findings.charts.append(Chart("canary", title, "requests of the split", "share of runs", lines, most_y=1.02))
    return findings


def _times(accused: list[int]) -> list[str]:
    values = sorted(float(at) for at in accused)
    return [f"{rank(values, q):.0f}" if values else "never" for q in (0.5, 0.9)]


def first_accused(of: tuple[Case, Synthetic, int]) -> int | None:
    """The number of finished requests of the split when its canary was first called worse, from case, traffic and
    seed.
    """
    case, traffic, seed = of
    policy = _policy()
    watch = Watch(policy, case, seed)
    controller = Recorded(policy, Random(f"{seed} controller"), watch.tell)
    hosts = FleetSpec({NEW: case.engine}).hosts(policy)
    options = Options(duration_s=2 * REQUESTS / RATE)
    engine = Simulation(controller, policy, hosts, options, Tally(policy.tiers.values(), 0.0), seed)
    engine.run(_sessions(traffic.at_rate(case.rate), seed, watch))
    return watch.accused_at


class Watch:
    """Counts finished requests, and reads the verdict now and then."""

    def __init__(self, policy: Policy, case: Case, seed: int) -> None:
        self.accused_at: int | None = None
        self._model = policy.models["chat"]
        self._arms = Arms(Edges.of(policy))
        self._arms.configure(policy)
        self._failing = {OLD: FAILING, NEW: FAILING + case.failing}
        self._random = Random(f"{seed} errors")
        self._over = 0

    def tell(self, told: Told) -> None:
        """Handle one call of the controller and its answer."""
        _, _, answer = told
        if isinstance(answer, Raised):
            raise RuntimeError(f"the controller raised {answer.error}")
        for command in answer:
            if isinstance(command, Ended):
                self._ended(command.record)

    def _ended(self, record: Record) -> None:
        if record.outcome is Outcome.OK and self._random.random() < self._failing[record.request.model.name]:
            record = replace(record, outcome=Outcome.ERROR, good=False)
        self._arms.ended(record)
        self._over += 1
        is_look = self.accused_at is None and self._over <= REQUESTS and self._over % LOOK_EVERY == 0
        if is_look and self._arms.differences(self._model)[NEW].verdict() is ArmVerdict.WORSE:
            self.accused_at = self._over


def _sessions(traffic: Synthetic, seed: int, watch: Watch) -> Iterator[Arrival]:
    """Requests, each with a session of its own, until there were enough or the canary is called worse."""
    for number, arrival in zip(range(REQUESTS + LOOK_EVERY), traffic.arrivals(seed), strict=False):
        if watch.accused_at is not None:
            return
        session = seed * 1_000_000 + number
        yield replace(arrival, tier="default", tenant="clients", model="chat", session=session)


def _policy() -> Policy:
    """A split of two models, each with a pool of its own, under one tier with objectives."""
    rules = builtin(["http://127.0.0.1:9001"])
    slo = Slo(ttft=(Objective(0.99, 2.0),), tpot=(Objective(0.99, 0.15),))
    tier = replace(rules.tiers["default"], admission=AdmissionSpec(), slo=slo)
    counts = {OLD: REPLICAS, NEW: 1}
    pools = {
        name: PoolSpec(name, tuple(ReplicaSpec(f"{name}-{n}", f"http://10.0.0.{n}:8000") for n in range(count)))
        for name, count in counts.items()
    }
    models = {name: Model(name, (name,)) for name in counts}
    models["chat"] = Model("chat", (OLD, NEW), split=SPLIT)
    return replace(rules, models=models, pools=pools, tiers={"default": tier}, default_tier="default")
