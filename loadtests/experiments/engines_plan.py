"""Runs of one cell of `engines` on many seeds: every contender, and the best static cap searched on the same arrivals.

A cell is sent to another process with its load as a rate, and returned as numbers per seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from gateway.core.results import Record
from gateway.sim.analysis.bound import bound
from loadtests.experiments.cap_search import CapSearch, Key, best_of
from loadtests.experiments.engines_cell import (
    COLD_S,
    Cell,
    Figures,
    figures,
    is_good,
    parts,
    run,
    run_warm,
    share,
    weighted,
)

CAP = "best static cap"
KEEPING_CAP = "best static cap that keeps its promises"
KEPT = 0.95
"""Share of the windows in which a cap must keep each objective."""
GOOD_OF_SERVED = 0.97
"""Share of the served requests that must be good under a cap."""
SEARCH_REQUESTS = 2500.0
"""Requests on which a cap is searched, which sets the number of seeds. The best few caps are compared on all seeds."""
FEW = 2
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
    """The results of one cell. `bound`: the optimum of the first seeds, whole runs; `ceiling`: what nobody exceeds
    there. `warm`: the first 40 s of *auto*."""

    task: Task
    ran: dict[str, Ran]
    cap: str
    bound: list[float]
    ceiling: list[float]
    warm: list[float]


def knee_of(cell: Cell) -> float:
    """The cell's knee with one tier, not from the cache."""
    return cell.find_knee()


def find(task: Task) -> Found:
    """Run every contender of a cell."""
    ran = {who: _ran(task, {seed: _run(task, who, seed) for seed in task.seeds}) for who in task.who}
    cap = ""
    if task.caps:
        cap, found = _best_caps(task)
        ran |= found
    optimum: list[float] = []
    ceiling: list[float] = []
    if task.bounded:
        policy = task.cell.policy()
        for seed in task.seeds[:BOUND_SEEDS]:
            arrivals = task.cell.arrivals(seed, task.rate_per_s, task.seconds)
            fleet = task.cell.fleet
            optimum.append(bound(arrivals, policy, fleet, bin_s=BOUND_BIN_S).weighted)
            ceiling.append(bound(arrivals, policy, fleet, bin_s=BOUND_BIN_S, constrained=False).ceiling)
    warm = [weighted(task.cell, run_warm(task.cell, seed, task.rate_per_s)) for seed in task.seeds] if task.caps else []
    return Found(task, ran, cap, optimum, ceiling, warm)


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
    return share(is_good(one) for one in records if one.request.tier.name == tier and one.outcome.counts)


class _Search(CapSearch):
    """Caps that were tried on the first seeds of a cell: their goodput, and the records of the best few."""

    def __init__(self, task: Task) -> None:
        searched = math.ceil(SEARCH_REQUESTS / (task.rate_per_s * task.seconds))
        super().__init__(task.cell.profile.max_num_seqs)
        self._task, self._first, self._rest = task, task.seeds[:searched], task.seeds[searched:]
        self._kept: dict[Key, dict[int, list[Record]]] = {}
        self.all: dict[Key, float] = {}
        self.keeping: dict[Key, float] = {}
        """Goodput of caps that keep their promises."""

    def run(self, key: Key) -> None:
        records = {seed: _run(self._task, self._task.cell.cap(key), seed) for seed in self._first}
        self.all[key], self._kept[key] = _steady(self._task, records), records
        if _keeps(self._task, records):
            self.keeping[key] = self.all[key]
        few = {key for found in (self.all, self.keeping) for key in sorted(found, key=found.__getitem__)[-FEW:]}
        self._kept = {key: records for key, records in self._kept.items() if key in few}

    def best(self, found: dict[Key, float]) -> tuple[Key, Ran]:
        """Run the best few of these caps on all seeds. Returns the best of them, with its results."""
        final: dict[Key, float] = {}
        for key in sorted(found, key=found.__getitem__)[-FEW:]:
            records = self._kept[key]
            for seed in self._rest:
                if seed not in records:
                    records[seed] = _run(self._task, self._task.cell.cap(key), seed)
            final[key] = _steady(self._task, records)
        winner = best_of(final)
        return winner, _ran(self._task, self._kept[winner])


def _best_caps(task: Task) -> tuple[str, dict[str, Ran]]:
    """The best steady cap, and the best that keeps its promises if any does. The best few are run on all seeds."""
    search = _Search(task)
    search.begin()
    search.refine(search.all)
    search.refine(search.keeping)
    (slots, wait), ran = search.best(search.all)
    found = {CAP: ran}
    if search.keeping:
        found[KEEPING_CAP] = search.best(search.keeping)[1]
    return f"{slots} slots, {wait:g}", found


def _keeps(task: Task, by_seed: dict[int, list[Record]]) -> bool:
    """Whether each objective is kept in most windows, and most of the served are good, after the first 40 s."""
    steady = [figures(task.cell, parts(records)[1]) for records in by_seed.values()]
    for objective in steady[0].kept:
        windows = sum(of.windows[objective] for of in steady)
        kept = sum(of.kept[objective] * of.windows[objective] for of in steady if of.windows[objective])
        if windows and kept < KEPT * windows:
            return False
    return min(of.of_served for of in steady) >= GOOD_OF_SERVED


def _steady(task: Task, by_seed: dict[int, list[Record]]) -> float:
    return fmean(weighted(task.cell, parts(records)[1]) for records in by_seed.values())
