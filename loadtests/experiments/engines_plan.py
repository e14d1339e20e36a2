"""Runs of one cell of `engines` on many seeds: every contender, and the best static cap searched on the same arrivals.

A cell is sent to another process with its load as a rate, and returned as numbers per seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from gateway.core.request import Outcome, Record
from gateway.sim.analysis.bound import bound
from loadtests.experiments.engines_cell import COLD_S, WAITS, Cell, Figures, figures, parts, run, run_warm, weighted

CAP = "best static cap"
SEARCH_REQUESTS = 2500.0
"""Requests on which a cap is searched, which sets the number of seeds. The best few caps are compared on all seeds."""
FEW = 2
NEAR = (1.4, 1.2)
FIRST_WAIT = 0.5
AS_GOOD_AS_ALL = 0.9995
"""Goodput at which the search stops: more candidates would gain nothing."""
BOUND_SEEDS = 2


@dataclass(frozen=True, slots=True)
class Task:
    """One cell, at a rate of requests/s. `caps`: search for a cap, and run *auto* warm; `bounded`: find the optimum."""

    cell: Cell
    rate_per_s: float
    seeds: tuple[int, ...]
    who: tuple[str, ...]
    caps: bool = True
    bounded: bool = False

    @property
    def seconds(self) -> float:
        """Seconds of arrivals."""
        return COLD_S + self.cell.seconds

    @property
    def requests(self) -> float:
        """Expected arrivals, as a measure of the time that the cell takes."""
        return self.rate_per_s * self.seconds * len(self.seeds)


@dataclass(frozen=True, slots=True)
class Ran:
    """One contender in one cell: weighted goodput of each seed, and figures of all seeds together."""

    cold: list[float]
    steady: list[float]
    whole: list[float]
    all: Figures
    highest: list[float]
    """Share of good requests of the highest tier, steady, of each seed."""


@dataclass(frozen=True, slots=True)
class Found:
    """The results of one cell. `bound`: the optimum of the first seeds, whole runs. `warm`: the first 40 s of
    *auto*."""

    task: Task
    ran: dict[str, Ran]
    cap: str
    bound: list[float]
    warm: list[float]


def knee_of(cell: Cell) -> float:
    """The cell's knee with one tier, not from the cache."""
    return cell.find_knee()


def find(task: Task) -> Found:
    """Run every contender of a cell."""
    ran = {who: _ran(task, {seed: _run(task, who, seed) for seed in task.seeds}) for who in task.who}
    cap = ""
    if task.caps:
        cap, ran[CAP] = _best_cap(task)
    optimum: list[float] = []
    if task.bounded:
        policy = task.cell.policy()
        for seed in task.seeds[:BOUND_SEEDS]:
            arrivals = task.cell.arrivals(seed, task.rate_per_s, task.seconds)
            optimum.append(bound(arrivals, policy, task.cell.fleet, bin_s=BOUND_BIN_S).weighted)
    warm = [weighted(task.cell, run_warm(task.cell, seed, task.rate_per_s)) for seed in task.seeds] if task.caps else []
    return Found(task, ran, cap, optimum, warm)


BOUND_BIN_S = 1.0


def _run(task: Task, who: str, seed: int) -> list[Record]:
    return run(task.cell, who, (seed,), task.rate_per_s, task.seconds)


def _ran(task: Task, by_seed: dict[int, list[Record]]) -> Ran:
    cell = task.cell
    both = [parts(records) for records in by_seed.values()]
    first = next(iter(cell.policy().tiers))
    return Ran(
        cold=[weighted(cell, cold) for cold, _ in both],
        steady=[weighted(cell, steady) for _, steady in both],
        whole=[weighted(cell, records) for records in by_seed.values()],
        all=figures(cell, [record for records in by_seed.values() for record in records]),
        highest=[_good_of(first, steady) for _, steady in both],
    )


def _good_of(tier: str, records: Sequence[Record]) -> float:
    counted = [r for r in records if r.request.tier.name == tier and r.outcome.counts]
    return (
        sum(r.good and not r.degraded and r.outcome is Outcome.OK for r in counted) / len(counted)
        if counted
        else math.nan
    )


def _best_cap(task: Task) -> tuple[str, Ran]:
    """The best steady cap: a search from coarse to fine in slots, then in the wait; the best few are run on all
    seeds."""
    cell, searched = task.cell, math.ceil(SEARCH_REQUESTS / (task.rate_per_s * task.seconds))
    first, rest = task.seeds[:searched], task.seeds[searched:]
    seats = cell.profile.max_num_seqs
    kept: dict[tuple[int, float], dict[int, list[Record]]] = {}
    goodput: dict[tuple[int, float], float] = {}

    def look(slots: int, wait: float) -> None:
        if (slots, wait) not in goodput:
            records = {seed: _run(task, _name(cell, slots, wait), seed) for seed in first}
            goodput[slots, wait] = _steady(task, records)
            kept[slots, wait] = records
            for worse in sorted(kept, key=lambda key: goodput[key])[:-FEW]:
                del kept[worse]

    def best() -> tuple[int, float]:
        return max(goodput, key=lambda key: goodput[key])

    for power in range(6):
        look(max(1, seats >> power), FIRST_WAIT)
    for step in NEAR:
        if goodput[best()] < AS_GOOD_AS_ALL:
            slots, wait = best()
            for near in (round(slots / step), round(slots * step)):
                look(min(max(near, 1), seats), wait)
    if goodput[best()] < AS_GOOD_AS_ALL:
        slots, _ = best()
        for wait in WAITS:
            look(slots, wait)
    final: dict[tuple[int, float], float] = {}
    for key, records in kept.items():
        for seed in rest:
            records[seed] = _run(task, _name(cell, *key), seed)
        final[key] = _steady(task, records)
    winner = max(final, key=lambda key: final[key])
    return f"{winner[0]} slots, {winner[1]:g}", _ran(task, kept[winner])


def _name(cell: Cell, slots: int, wait: float) -> str:
    kind = "static-cap" if cell.tiers == "one" else "static-cap-tiers"
    return f"{kind}:slots={slots},wait={wait:g}"


def _steady(task: Task, by_seed: dict[int, list[Record]]) -> float:
    return fmean(weighted(task.cell, parts(records)[1]) for records in by_seed.values())
