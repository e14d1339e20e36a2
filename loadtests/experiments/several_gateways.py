"""Several gateways in front of the same engines: what must they tell each other?

Four engines of 4, 32 or 256 seats, and as many slots. Each request goes to a random gateway. 1x is the load that the
optimum can serve. Gateways share nothing, divide the slots by their number, or tell their loads at intervals through a
store. Figures are ratios of all gateways together to a single gateway: weighted goodput, and the attainment of tier 0.
Slots are not leased: the overshoot of one interval waits in the engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random

from gateway.core.commands import Command
from gateway.core.controller import Controller
from gateway.core.policy import Policy
from gateway.core.sample import GatewayLoad
from gateway.sim.analysis.bound import capacity
from gateway.sim.analysis.report import Interval, ratio, summary
from gateway.sim.engine.fleet import FleetSpec
from gateway.sim.engine.profiles import DEFAULT
from gateway.sim.run.options import Options
from gateway.sim.run.results import Result, Window, result
from gateway.sim.run.simulation import Simulation
from gateway.sim.run.tally import Tally
from gateway.sim.workload.synthetic import Synthetic
from loadtests.charts.grid import Grid, grid_as_markdown
from loadtests.experiments.findings import Findings, bare, written
from loadtests.experiments.gateways import Gateways
from loadtests.experiments.runner import Runner, with_slots

SEATS = (4, 32, 256)
LOADS = (1.5, 2.0)
GATEWAYS = (2, 4)
TOLD_S = (0.025, 0.1, 0.25)
CHOSEN_S = 0.025
"""The interval at which gateways tell their loads. Figures without a name of another way are of this one."""


@dataclass(frozen=True, slots=True)
class Way:
    """How gateways share. `told_s`: interval (seconds) at which loads are told; 0 if they are not."""

    name: str
    divided: bool = False
    told_s: float = 0.0


ONE = Way("one gateway")
WAYS = (
    Way("nothing shared"),
    Way("slots divided", divided=True),
    *(Way(f"told/{1e3 * told_s:.0f} ms", told_s=told_s) for told_s in TOLD_S),
)
WARMUP_S = 60.0
"""Each of four gateways learns from a quarter of the requests."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One case: seats of each engine, load as a multiple of 1x, gateways, and how they share."""

    seats: int
    load: float
    gateways: int = 1
    way: Way = ONE


class Telling(Gateways):
    """Gateways that tell each other their loads. A store has the latest load of each."""

    def __init__(self, controllers: list[Controller], balancer: Random) -> None:
        super().__init__(controllers, lambda _: int(balancer.random() * len(controllers)))
        self._all = controllers
        self._store: dict[int, GatewayLoad] = {}

    def tell(self, at: int, interval_s: float, now: float) -> list[Command]:
        """Let gateway `at` write its load and read those of the others."""
        self._store[at] = self._all[at].load(interval_s, now)
        commands: list[Command] = []
        for other, load in self._store.items():
            if other != at:
                commands += self.outside(at, self._all[at].told(str(other), load, now))
        return commands


def several_gateways(runner: Runner) -> Findings:
    """All cells, each short: the least of them decides."""
    quick = runner.effort.quick
    if not quick:
        runner = replace(runner, effort=replace(runner.effort, seeds=2, seconds=30.0, warmup_s=WARMUP_S))
    seats = SEATS[:2] if quick else SEATS
    loads, counts = (LOADS[1:], GATEWAYS[:1]) if quick else (LOADS, GATEWAYS)
    effort = runner.effort
    how = f"{effort.seeds} seeds, {effort.seconds:g} s of arrivals each after a warm-up of {effort.warmup_s:g} s"
    findings = Findings(runner.seeds, how=f"{how} (quick)." if quick else f"{how}.")
    policy, workload = runner.policy(), runner.workload("main")
    longer = replace(workload, duration_s=100.0)
    one_x = {n: capacity(longer, policy, _fleet(n), seeds=(1,), precision=0.05) for n in seats}
    cells = [Cell(n, load) for n in seats for load in loads]
    cells += [Cell(n, load, count, way) for n in seats for load in loads for count in counts for way in WAYS]
    runs = [
        (cell, policy, workload.at_rate(one_x[cell.seats] * cell.load), seed, runner.options)
        for cell in cells
        for seed in runner.seeds
    ]
    found: dict[Cell, list[Result]] = {}
    for (cell, *_), run in zip(runs, runner.map(served, runs), strict=True):
        found.setdefault(cell, []).append(run)
    goodput = {cell: _to_one(found, cell, _weighted) for cell in cells if cell.gateways > 1}
    tier_0 = {cell: _to_one(found, cell, _tier_0) for cell in cells if cell.gateways > 1}
    for way in WAYS:
        name = way.name.replace(" ", "_") + "_"
        name = "" if way.told_s == CHOSEN_S else name
        of = [cell for cell in goodput if cell.way is way]
        findings.figures |= {
            f"{name}least_goodput_to_one": _least(goodput, of),
            f"{name}least_tier_0_to_one": _least(tier_0, of),
        }
    columns = ["seats", "load", "gateways", *(way.name for way in WAYS)]
    for title, values in (("Weighted goodput to one gateway's", goodput), ("Tier 0 to one gateway's", tier_0)):
        rows = [
            [str(n), f"{load:g}x", str(count), *(written(values[Cell(n, load, count, way)]) for way in WAYS)]
            for n in seats
            for load in loads
            for count in counts
        ]
        findings.grids.append(Grid(title, columns, rows))
    # Pages are short: one table, without intervals.
    short = [
        [*goods[:3], *(f"{good[:5]}, {tier[:5]}" for good, tier in zip(goods[3:], tiers[3:], strict=True))]
        for goods, tiers in zip(*(grid.rows for grid in findings.grids), strict=True)
    ]
    table = grid_as_markdown(Grid("", columns, short))
    findings.notes.append(f"Weighted goodput and attainment of tier 0, divided by those of one gateway:\n\n{table}")
    (chosen,) = (way for way in WAYS if way.told_s == CHOSEN_S)
    findings.notes.append(" ".join([_sentence(found, goodput, tier_0, chosen, count) for count in counts]))
    findings.raw |= {
        f"{cell.seats} seats, {cell.load:g}x, {cell.gateways}, {cell.way.name}": summary(of)
        for cell, of in found.items()
    }
    return findings


def _sentence(
    found: Mapping[Cell, list[Result]],
    goodput: Mapping[Cell, Interval],
    tier_0: Mapping[Cell, Interval],
    way: Way,
    count: int,
) -> str:
    """The least figures of the cells of so many gateways."""
    of = [cell for cell in goodput if cell.way is way and cell.gateways == count]
    good, tier = _least(goodput, of), _least(tier_0, of)
    in_time = min(run.tiers["tier-0"].attainment_served or 0.0 for cell in of for run in found[cell])
    least = f"at least {good.value:.3f}, {tier.value:.3f}; of the tier 0 served, {in_time:.3f} is in time."
    return f"{way.name.capitalize()}, {count} gateways: {least}"


def served(of: tuple[Cell, Policy, Synthetic, int, Options]) -> Result:
    """One run of a cell, from policy, workload, seed and options."""
    cell, policy, workload, seed, options = of
    slots = max(1, cell.seats // cell.gateways) if cell.way.divided else cell.seats
    policy = with_slots(policy, slots)
    hosts = _fleet(cell.seats).hosts(policy)
    controllers = [Controller(policy, Random(f"{seed} controller {number}")) for number in range(cell.gateways)]
    decider = Telling(controllers, Random(f"{seed} balancer"))
    engine = Simulation(decider, policy, hosts, options, Tally(policy.tiers.values(), options.warmup_s), seed)
    told_s = cell.way.told_s

    def tell_again(at: int) -> None:
        engine.tell(decider.tell, at, told_s)
        engine.at(engine.now + told_s, lambda: tell_again(at))

    def begin(at: int) -> None:
        engine.at(told_s * (at + 0.5) / cell.gateways, lambda: tell_again(at))

    for at in range(cell.gateways if told_s else 0):
        begin(at)
    engine.run(workload.arrivals(seed))
    for request in engine.requests.values():
        engine.tally.given_up(request.tier, request.arrival)
    opened, closed = engine.watch.opened, engine.watch.closed
    assert opened is not None
    assert closed is not None
    return result(engine, Window(opened, closed), seed, 0.0)


def _fleet(seats: int) -> FleetSpec:
    return FleetSpec({"main": replace(DEFAULT, name=f"{seats} seats", max_num_seqs=seats)})


def _weighted(run: Result) -> float:
    return run.weighted


def _tier_0(run: Result) -> float:
    return run.tiers["tier-0"].attainment or 0.0


def _to_one(found: Mapping[Cell, list[Result]], cell: Cell, figure: object) -> Interval:
    assert callable(figure)
    one = found[Cell(cell.seats, cell.load)]
    to = ratio([figure(run) for run in found[cell]], [figure(run) for run in one])
    return bare(0.0, len(one)) if to is None else to


def _least(values: Mapping[Cell, Interval], of: list[Cell]) -> Interval:
    return min([values[cell] for cell in of], key=lambda value: value.value)
