"""Tests whether P(breach) is a true probability, above all with everything admitted.

In shadow mode each forecast at arrival is compared with its outcome: was the request good in the end? The load is 1.25x
on average, with bursts of 2.2 times that. Bins have equal mass over all seeds together. For comparison, the same
forecast is made with a log-normal of fixed width.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from gateway.core.commands import Command, Ended
from gateway.core.controller import Controller
from gateway.core.estimators.spread import DIRECT, Spread
from gateway.core.policy import AdmissionMode, AdmissionSpec, Policy
from gateway.core.prediction import Forecast
from gateway.core.request import Request
from gateway.core.snapshot import Trust
from gateway.sim.analysis.report import Interval, bootstrap
from gateway.sim.run.decider import Overheard
from gateway.sim.run.options import Options
from gateway.sim.run.run import simulate
from gateway.sim.workload.arrival_process import OnOff
from gateway.sim.workload.synthetic import Synthetic
from loadtests.experiments.cells import Judgement, over_cells
from loadtests.experiments.findings import Chart, Findings, Grid, Line, bare, written
from loadtests.experiments.runner import Runner
from loadtests.experiments.targets import at_most

BURSTS = OnOff(on_s=10.0, off_s=20.0, burst=2.2)
LOAD = 1.25
SECONDS = 600.0
WARMUP_S = 60.0
BINS = 15
KINDS = ("with the learned spread", "with a fixed spread")


@dataclass(frozen=True, slots=True)
class Case:
    """One run."""

    policy: Policy
    workload: Synthetic
    seed: int
    options: Options


@dataclass(frozen=True, slots=True)
class Labels:
    """Forecasts and outcomes of every request of one run, by kind of probability. `trusted`: share (0-1) of the
    arrivals at which forecasts were trusted.
    """

    said: tuple[list[float], ...]
    missed: list[bool]
    trusted: float


class Witness(Overheard):
    """The production controller. It keeps every forecast until its request is over."""

    def __init__(self, policy: Policy, seed: int, since: float) -> None:
        self._controller = Controller(policy, Random(f"{seed} controller"))
        super().__init__(self._controller, self._label)
        self._pool = next(iter(policy.pools))
        self._since = since
        self._open: dict[int, Forecast] = {}
        self._arrived = self._trusted = 0
        self.labels = Labels(tuple([] for _ in KINDS), [], 0.0)

    @property
    def trusted(self) -> float:
        return self._trusted / max(1, self._arrived)

    def arrive(self, request: Request, now: float) -> list[Command]:
        commands = super().arrive(request, now)
        live = self._controller.state.requests.get(request.id)
        if now >= self._since:
            self._arrived += 1
            self._trusted += self._controller.forecaster.trust(self._pool) is Trust.TRUSTED
            if live is not None and live.forecast is not None:
                self._open[request.id] = live.forecast
        return commands

    def _label(self, commands: list[Command], _: float) -> None:
        for command in commands:
            if isinstance(command, Ended):
                record = command.record
                forecast = self._open.pop(record.request.id, None)
                if forecast is not None and record.outcome.counts:
                    bound_s = record.request.tier.slo.ttft_bound_s
                    said = forecast.breach, Spread().over(DIRECT, forecast.ttft_s, bound_s)
                    for column, value in zip(self.labels.said, said, strict=True):
                        column.append(value)
                    self.labels.missed.append(not record.good)


def witnessed(case: Case) -> Labels:
    """The labels of one run."""
    witness = Witness(case.policy, case.seed, case.options.warmup_s)
    arrivals = case.workload.arrivals(case.seed)
    simulate(case.policy, arrivals, seed=case.seed, options=case.options, decider=witness)
    return replace(witness.labels, trusted=witness.trusted)


@dataclass(frozen=True, slots=True)
class Bin:
    """The requests whose forecast probability lies in one bin, counted by seed: their number, the sum of their
    forecasts, and the number of misses.
    """

    requests: tuple[int, ...]
    said: tuple[float, ...]
    missed: tuple[int, ...]


def _trusted(runs: Sequence[Labels], seeds: Sequence[int]) -> float:
    """The share of arrivals at which forecasts were trusted, as a mean over runs."""
    return sum(runs[s].trusted for s in seeds) / len(seeds)


class Reliability:
    """One kind of probability over all seeds."""

    def __init__(self, runs: Sequence[Labels], kind: int) -> None:
        self.n = len(runs)
        pooled = sorted(p for run in runs for p in run.said[kind])
        edges = [pooled[len(pooled) * b // BINS] for b in range(1, BINS)]
        counts = [[[0, 0.0, 0] for _ in runs] for _ in range(BINS)]
        squares = [0.0] * self.n
        for seed, run in enumerate(runs):
            for p, missed in zip(run.said[kind], run.missed, strict=True):
                cell = counts[bisect_right(edges, p)][seed]
                cell[0] += 1
                cell[1] += p
                cell[2] += missed
                squares[seed] += (p - missed) ** 2
        self._squares = squares
        self.bins = [
            Bin(tuple(int(c[0]) for c in row), tuple(c[1] for c in row), tuple(int(c[2]) for c in row))
            for row in counts
            if any(c[0] for c in row)
        ]

    def ece(self) -> Interval:
        """Mean |forecast - observed share| over requests."""

        def statistic(seeds: Sequence[int]) -> float:
            total = sum(b.requests[s] for b in self.bins for s in seeds)
            return sum(abs(sum(b.said[s] - b.missed[s] for s in seeds)) for b in self.bins) / total

        return bootstrap(statistic, self.n)

    def skill(self) -> Interval:
        """1 - Brier score / Brier score of always forecasting the base rate."""

        def statistic(seeds: Sequence[int]) -> float:
            total = sum(b.requests[s] for b in self.bins for s in seeds)
            base = sum(b.missed[s] for b in self.bins for s in seeds) / total
            reference = base * (1.0 - base)
            return 1.0 - sum(self._squares[s] for s in seeds) / total / reference if reference else 0.0

        return bootstrap(statistic, self.n)

    def line(self, name: str) -> Line:
        """Outcomes against forecasts, bin by bin."""
        said, came = [], []
        for each in self.bins:

            def share(seeds: Sequence[int], b: Bin = each) -> float:
                return sum(b.missed[s] for s in seeds) / max(1, sum(b.requests[s] for s in seeds))

            said.append(sum(each.said) / sum(each.requests))
            came.append(bootstrap(share, self.n))
        lows = [c.low for c in came if c.low is not None]
        highs = [c.high for c in came if c.high is not None]
        whole = len(lows) == len(came)
        return Line(name, said, [c.value for c in came], lows if whole else (), highs if whole else ())


def calibration(runner: Runner) -> Findings:
    """Bursts on the main workload, then other loads, the other workload, and enforcement."""
    findings = Findings(runner.seeds)
    run = f"{SECONDS:g} s of arrivals each after a warm-up of {WARMUP_S:g} s"
    findings.how = f"{len(runner.seeds)} seeds, {run}."
    shadow, enforce = _mode(runner.policy(), AdmissionMode.SHADOW), runner.policy()
    bursts = replace(runner.workload("main"), shape=BURSTS)
    main, one_x = runner.workload("main"), runner.one_x("main")
    cases = {f"bursts, {LOAD:g}x": (shadow, bursts.at_rate(one_x * LOAD))}
    if not runner.effort.quick:
        cases |= {
            "main, 1x": (shadow, main.at_rate(one_x)),
            "main, 1.5x": (shadow, main.at_rate(one_x * 1.5)),
            "code, 1.25x": (shadow, runner.workload("code").at_rate(runner.one_x("code") * 1.25)),
            "enforcing, bursts, 2x": (enforce, bursts.at_rate(one_x * 2.0)),
        }
    options = Options(duration_s=WARMUP_S + SECONDS, warmup_s=WARMUP_S)
    timed = [(policy, replace(workload, duration_s=options.duration_s)) for policy, workload in cases.values()]
    found_all = iter(runner.map(witnessed, [Case(*case, seed, options) for case in timed for seed in runner.seeds]))
    rows = []
    errors: list[Judgement] = []
    for name in cases:
        runs = [next(found_all) for _ in runner.seeds]
        kinds = [Reliability(runs, kind) for kind in range(len(KINDS))]
        errors.append(Judgement(kinds[0].ece(), at_most(0.06)))
        labels = sum(len(run.missed) for run in runs)
        base = sum(map(sum, (run.missed for run in runs))) / labels
        trusted = bootstrap(partial(_trusted, runs), len(runs))
        rows += [
            [name, kind, str(labels), f"{base:.2f}", written(found.ece()), written(found.skill()), written(trusted, 2)]
            for kind, found in zip(KINDS, kinds, strict=True)
        ]
        if not findings.figures:
            findings.figures |= {
                "ece": kinds[0].ece(),
                "brier_skill": kinds[0].skill(),
                "labels": bare(labels, runner.effort.seeds),
                "base_rate": bare(base, runner.effort.seeds),
                "trusted_share": trusted,
                "ece_with_a_fixed_spread": kinds[1].ece(),
                "brier_skill_with_a_fixed_spread": kinds[1].skill(),
            }
            findings.notes.append(_note(findings))
            honest = Line("honest", (0.0, 1.0), (0.0, 1.0), dashed=True)
            lines = [honest, *(found.line(kind) for kind, found in zip(KINDS, kinds, strict=True))]
            findings.charts.append(
                Chart("calibration", f"Reliability: {name}", "P(breach) that was said", "share that missed", lines)
            )
    findings.figures |= over_cells("ece", errors)
    columns = ["case", "probability", "labels", "base rate", "ECE", "Brier skill", "trusted"]
    findings.grids.append(Grid(f"{BINS} bins of equal mass", columns, rows))
    return findings


def _note(findings: Findings) -> str:
    figures = findings.figures
    return (
        f"Of {figures['labels'].value:,.0f} requests {figures['base_rate'].value:.0%} missed. P(breach) is off by "
        f"{figures['ece'].value:.3f} in the mean; with a spread that is not learned, it "
        f"is off by {figures['ece_with_a_fixed_spread'].value:.3f}."
    )


def _mode(policy: Policy, mode: AdmissionMode) -> Policy:
    admission = AdmissionSpec(mode)
    return replace(policy, tiers={name: replace(tier, admission=admission) for name, tier in policy.tiers.items()})
