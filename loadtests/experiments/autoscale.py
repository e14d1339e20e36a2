"""A day and a night with a fleet that follows the demand that the gateway tells.

The rate of the main workload is a sine: a day in two hours. A scaler with the rules of Kubernetes reads the demand
every fifteen seconds. Its target, a demand of .9 for each replica, suits this engine. The fleet shrinks after five
minutes. New replicas serve 90 s later; surplus ones are drained, the youngest first. A replica is paid for from its
start to its drain. The optimum has, in each second, the fewest replicas with which 99% are good (`tailgate plan`).
"Short" is the share of the day below it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from statistics import fmean

from gateway.core.commands import Command
from gateway.core.controller import Controller
from gateway.core.policy import Policy
from gateway.core.request import Request
from gateway.core.results import AttemptResult
from gateway.core.sample import Sample
from gateway.plan.knee import Search, scaled
from gateway.sim.analysis.report import mean
from gateway.sim.run.options import Options
from gateway.sim.run.results import Result
from gateway.sim.run.run import simulate
from gateway.sim.workload.arrival_process import Constant, Diurnal
from gateway.sim.workload.synthetic import Synthetic
from loadtests.experiments.findings import Chart, Findings, Grid, Line, bare
from loadtests.experiments.runner import Runner

DAY_S, QUICK_DAY_S = 2 * 3600.0, 900.0
SEEDS, QUICK_SEEDS = 3, 2
RATE_PER_S, QUICK_RATE_PER_S = 40.0, 12.0
DEPTH = 0.7
MAX, AT_FIRST = 16, 4
READING_S = 15.0
START_S = 90.0
TARGET = 0.99
KNEES_OF = (1, 3, 8)
DEMAND_PER_REPLICA = 0.9
HOLD_S = 300.0
"""The fleet falls to the most that it needed in so many seconds."""
TOLERANCE = 0.1
"""A number of replicas whose demand is this near to the target (as a share of it) stays."""
POOL = "main"


@dataclass(frozen=True, slots=True)
class FleetReading:
    """The fleet, as the scaler reads it."""

    at: float
    wanted: int
    paid: int
    serving: int
    demand: float


@dataclass(frozen=True, slots=True)
class Day:
    """Results of one run."""

    result: Result
    readings: tuple[FleetReading, ...]


class Scaled:
    """A controller whose fleet follows its demand: the decider of a simulation.

    Its policy has the largest fleet. Replicas that do not run are drained, so they get no new requests; requests on a
    drained replica continue.
    """

    def __init__(self, policy: Policy, random: Random) -> None:
        self._inner = Controller(policy, random)
        self._names = [replica.name for replica in policy.pools[POOL].replicas]
        self._serve_at = [0.0] * AT_FIRST
        """The time at which each paid replica begins to serve."""
        self._undrained = len(self._names)
        self._next = 0.0
        self._needed: deque[tuple[float, int]] = deque()
        self.readings: list[FleetReading] = []

    def arrive(self, request: Request, now: float) -> list[Command]:
        return self._inner.arrive(request, now)

    def sent(self, attempt_id: int, now: float) -> list[Command]:
        return self._inner.sent(attempt_id, now)

    def first_token(self, attempt_id: int, now: float) -> list[Command]:
        return self._inner.first_token(attempt_id, now)

    def progress(self, attempt_id: int, tokens: int, now: float) -> list[Command]:
        return self._inner.progress(attempt_id, tokens, now)

    def finish(self, attempt_id: int, finish: AttemptResult, now: float) -> list[Command]:
        return self._inner.finish(attempt_id, finish, now)

    def leave(self, request_id: int, now: float) -> list[Command]:
        return self._inner.leave(request_id, now)

    def observe(self, replica_name: str, sample: Sample, now: float) -> list[Command]:
        return self._inner.observe(replica_name, sample, now)

    def wake_at(self) -> float:
        return min(self._next, self._inner.wake_at())

    def wake(self, now: float) -> list[Command]:
        out = self._inner.wake(now)
        if now >= self._next:
            self._next = now + READING_S
            out += self._scale(now)
        return out

    def _scale(self, now: float) -> list[Command]:
        (pool,) = self._inner.snapshot(now).pools
        demand = 0.0 if pool.demand is None else pool.demand.replicas
        wanted = len(self._serve_at) if pool.demand is None else self._wanted(demand, now)
        del self._serve_at[wanted:]
        self._serve_at += [now + START_S] * (wanted - len(self._serve_at))
        serving = bisect_left(self._serve_at, True, key=lambda at: at > now)
        out: list[Command] = []
        for n in range(min(serving, self._undrained), max(serving, self._undrained)):
            out += self._inner.drain(self._names[n], n >= serving, now)
        self._undrained = serving
        self.readings.append(FleetReading(now, wanted, len(self._serve_at), serving, demand))
        return out

    def _wanted(self, demand: float, now: float) -> int:
        """Replicas by the rules of a HorizontalPodAutoscaler."""
        paid = len(self._serve_at)
        is_near = abs(demand / (DEMAND_PER_REPLICA * paid) - 1.0) <= TOLERANCE
        needed = paid if is_near else min(MAX, max(1, math.ceil(demand / DEMAND_PER_REPLICA)))
        self._needed.append((now, needed))
        while self._needed[0][0] < now - HOLD_S:
            self._needed.popleft()
        return max(needed, min(paid, max(most for _, most in self._needed)))


def autoscale(runner: Runner) -> Findings:
    """Run the day with each seed, and find the optimum."""
    quick = runner.effort.quick
    day_s, seeds = (QUICK_DAY_S, QUICK_SEEDS) if quick else (DAY_S, SEEDS)
    workload = replace(
        runner.workload(POOL),
        rate_per_s=QUICK_RATE_PER_S if quick else RATE_PER_S,
        duration_s=day_s,
        shape=Diurnal(day_s, DEPTH),
    )
    policy = scaled(runner.policy(), {POOL: MAX})
    findings = Findings(tuple(range(1, seeds + 1)))
    findings.how = f"{seeds} seeds of {day_s / 3600:g} h at {workload.rate_per_s:g}/s in the mean."
    knees = dict(
        runner.map(_knee_of, [(runner.policy(), workload, n, quick) for n in KNEES_OF[: 2 if quick else None]])
    )
    days = runner.map(_day, [(policy, workload, seed) for seed in findings.seeds])
    needed = [_needed(knees, _rate(workload, reading.at)) for reading in days[0].readings]
    _figures(findings, days, needed)
    _draw(findings, days[0], needed, workload)
    findings.grids.append(
        Grid(
            "The knee by number of replicas, from searches at a constant rate",
            ["replicas", "requests/s", "by replica"],
            [[f"{n}", f"{rate:.1f}", f"{rate / n:.2f}"] for n, rate in knees.items()],
        )
    )
    findings.raw = {"looks": [day.readings for day in days], "needed": needed, "knees": knees}
    return findings


def _figures(findings: Findings, days: Sequence[Day], needed: Sequence[int]) -> None:
    optimum = sum(needed)
    most = max(needed)
    findings.figures |= {
        "goodput": mean([day.result.goodput for day in days]),
        "weighted_goodput": mean([day.result.weighted for day in days]),
        "replica_hours_to_optimum": mean([sum(reading.paid for reading in day.readings) / optimum for day in days]),
        "replica_hours_to_fleet_for_noon": mean(
            [sum(reading.paid for reading in day.readings) / (most * len(day.readings)) for day in days]
        ),
        "short_share": mean([_short(day.readings, needed) for day in days]),
        "most_turns": bare(max(_turns([reading.wanted for reading in day.readings]) for day in days), len(days)),
        "most_changes": bare(max(_changes([reading.wanted for reading in day.readings]) for day in days), len(days)),
        "changes_of_optimum": bare(_changes(needed), len(days)),
    }


def _draw(findings: Findings, day: Day, needed: Sequence[int], workload: Synthetic) -> None:
    hours = [reading.at / 3600 for reading in day.readings]
    findings.charts.append(
        Chart(
            "autoscale",
            "One day (seed 1): replicas",
            "hours",
            "replicas",
            [
                Line("wanted", hours, [float(reading.wanted) for reading in day.readings], bold=True),
                Line("serving", hours, [float(reading.serving) for reading in day.readings]),
                Line("optimum", hours, [float(n) for n in needed], dashed=True),
                Line(
                    "requests/s / 10",
                    hours,
                    [_rate(workload, reading.at) / 10 for reading in day.readings],
                    dashed=True,
                ),
            ],
        )
    )


def _day(of: tuple[Policy, Synthetic, int]) -> Day:
    policy, workload, seed = of
    decider = Scaled(policy, Random(f"{seed} controller"))
    options = Options(duration_s=workload.duration_s, warmup_s=0.0)
    result = simulate(policy, workload.arrivals(seed), seed=seed, options=options, decider=decider)
    return Day(result, tuple(reading for reading in decider.readings if reading.at < workload.duration_s))


def _knee_of(of: tuple[Policy, Synthetic, int, bool]) -> tuple[int, float]:
    """A number of replicas, and the highest constant rate at which enough requests are good."""
    policy, workload, n, quick = of
    steady = replace(workload, rate_per_s=7.0 * n, duration_s=40.0 if quick else 100.0, shape=Constant())
    options = Options(duration_s=steady.duration_s, warmup_s=10.0 if quick else 20.0)
    return n, Search(policy, steady, {}, TARGET, (1, 2, 3), options).limit({POOL: n}).rate_per_s


def _rate(workload: Synthetic, at: float) -> float:
    """Requests per second at that time of the day."""
    assert isinstance(workload.shape, Diurnal)
    return workload.rate_per_s * (1.0 - DEPTH * math.cos(2 * math.pi * at / workload.shape.period_s))


def _needed(knees: dict[int, float], rate_per_s: float) -> int:
    """The fewest replicas whose knee is above the rate; knees between searched fleets are interpolated linearly."""
    n = 1
    while _knee_at(knees, n) < rate_per_s:
        n += 1
    return n


def _knee_at(knees: dict[int, float], n: int) -> float:
    counts = sorted(knees)
    above = min(bisect_left(counts, n), len(counts) - 1)
    if counts[above] == n or not above:
        return knees[counts[above]] * n / counts[above]
    low, high = counts[above - 1], counts[above]
    each = knees[low] / low + (knees[high] / high - knees[low] / low) * min(1.0, (n - low) / (high - low))
    return each * n


def _short(readings: Sequence[FleetReading], needed: Sequence[int]) -> float:
    """The readings after the first quarter of an hour, in which the gateway knows nothing yet."""
    pairs = [(reading.serving, n) for reading, n in zip(readings, needed, strict=False) if reading.at >= 900.0]
    return fmean(serving < n for serving, n in pairs) if pairs else 0.0


def _turns(wanted: Sequence[int]) -> int:
    steps = [after - before for before, after in pairwise(wanted) if after != before]
    return sum((a > 0) != (b > 0) for a, b in pairwise(steps))


def _changes(wanted: Sequence[int]) -> int:
    return sum(a != b for a, b in pairwise(wanted))
