"""Recorded traffic with its own arrival times, beside round robin and a cache-aware router.

The traces are Azure's code and conversations (2023) and Mooncake's conversations, as far as prompts fit the context.
Stretches of a trace are played at one speed. 1x is the rate at which round robin has 99.5% good. Each fleet has one to
four engines, of one or two profiles. Objectives are TTFT (p99 5 s), TPOT (p99 150 ms), e2e (p99 60 s), or all.
`TAILGATE_TRACES` names the folder of the traces.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from random import Random
from statistics import fmean, median

from gateway.core.commands import Command, Ended
from gateway.core.policy import Policy
from gateway.core.results import Outcome, Record
from gateway.core.slo import Objective, Slo
from gateway.policy.builtin import NO_CAP
from gateway.policy.document import Document
from gateway.policy.load import load_document
from gateway.sim.analysis.report import Interval, difference, mean, ratio
from gateway.sim.baselines import baselines
from gateway.sim.engine.fleet import FleetSpec
from gateway.sim.engine.profiles import ENGINES
from gateway.sim.run.decider import Overheard
from gateway.sim.run.options import Options
from gateway.sim.run.run import simulate
from gateway.sim.workload.arrivals import Arrival
from gateway.sim.workload.traces import Mix, open_trace
from loadtests.experiments.bisection import highest_rate
from loadtests.experiments.cells import Judgement, over_cells
from loadtests.experiments.findings import Chart, Findings, Grid, Line, bare, written
from loadtests.experiments.runner import Runner
from loadtests.experiments.targets import SET_ASIDE_ENGINE, at_least, at_most

FOLDER = "TAILGATE_TRACES"
"""The variable of the environment that names the folder with the traces."""
TRACES = {
    "code": "azure_llm_2023_code.csv",
    "conversations": "azure_llm_2023_conv.csv",
    "mooncake": "mooncake_conversation.jsonl",
}
TTFT, TPOT, E2E = (Objective(0.99, 5.0),), (Objective(0.99, 0.15),), (Objective(0.99, 60.0),)
OBJECTIVES = {"TTFT": Slo(ttft=TTFT), "TPOT": Slo(tpot=TPOT), "e2e": Slo(e2e=E2E), "all": Slo(TTFT, TPOT, E2E)}
FLEETS = (
    ("llama3-8b-a100",),
    ("llama3-8b-a100", "llama3-70b-a100-tp4"),
    ("llama3-70b-a100-tp4",) * 4,
    (SET_ASIDE_ENGINE,) * 2,
)
LOADS = (0.6, 1.0, 1.5)
OURS, ROUND_ROBIN, CACHE_AWARE = "tailgate", "round-robin", "cache-aware"
WHO = (ROUND_ROBIN, CACHE_AWARE, OURS)
STRETCHES, REQUESTS, SECONDS = 3, 600, 240.0
"""Stretches of a trace, and the least requests and seconds of each: several times the e2e bound, else the end of the
arrivals would save those that wait."""
GOOD_AT_1X, PRECISION = 0.995, 1.06
QUICK_REQUESTS, QUICK_S = 200, 0.0


@dataclass(frozen=True, slots=True)
class Case:
    """A trace on a fleet, under some objectives."""

    trace: str
    fleet: tuple[str, ...]
    objectives: str
    requests: int = REQUESTS
    seconds: float = SECONDS
    loads: tuple[float, ...] = LOADS

    @property
    def names(self) -> list[str]:
        """The names of the replicas."""
        return [f"127.0.0.1:{9001 + n}" for n in range(len(self.fleet))]

    def policy(self) -> Policy:
        """One enforced tier, learned slots. Queue timeout and queue limit follow from the objectives."""
        objectives = OBJECTIVES[self.objectives].objectives()
        slo = {metric.value: {each.percentile: f"{each.threshold_s:g}s"} for metric, each in objectives}
        data = {
            "apiVersion": "tailgate/v1",
            "models": {"*": {"pools": ["default"]}},
            "pools": {"default": {"replicas": [f"http://{name}" for name in self.names]}},
            "tiers": {"default": {"slo": slo, "max_tokens": {"default": "none", "limit": NO_CAP}}},
        }
        return load_document(Document("real-traces", data), "")

    def stretches(self, rate_per_s: float) -> list[list[Arrival]]:
        """Arrivals of each stretch, evenly spread over the trace, at one speed for all."""
        fitting = _fitting(
            Path(os.environ[FOLDER]) / TRACES[self.trace], min(ENGINES[name].max_model_len for name in self.fleet)
        )
        times = len(fitting) / (fitting[-1].at - fitting[0].at) / rate_per_s
        requests = min(max(self.requests, round(rate_per_s * self.seconds)), len(fitting))
        found = []
        for n in range(STRETCHES):
            first = n * (len(fitting) - requests) // (STRETCHES - 1)
            part = fitting[first : first + requests]
            found.append([replace(arrival, at=(arrival.at - part[0].at) * times) for arrival in part])
        return found


@lru_cache
def _fitting(path: Path, max_model_len: int) -> list[Arrival]:
    workload = open_trace(path, Mix(tenants=8, model="any"))
    return [
        arrival for arrival in workload.arrivals(1) if arrival.prompt_tokens + arrival.output_tokens < max_model_len
    ]


@dataclass(frozen=True, slots=True)
class Played:
    """Share of good requests and median TTFT (s) of each stretch."""

    good: list[float]
    ttft_p50_s: list[float]


@dataclass(frozen=True, slots=True)
class Measured:
    """A case, its 1x in requests/s, and what was played by load and server."""

    case: Case
    rate_per_s: float
    played: Mapping[tuple[float, str], Played]


def play(case: Case, rate_per_s: float, who: str) -> Played:
    """Play every stretch under a server."""
    policy = case.policy()
    setup = baselines.Setup(policy) if who == OURS else baselines.setup(who, policy)
    fleet = FleetSpec({name: ENGINES[engine] for name, engine in zip(case.names, case.fleet, strict=True)})
    good, medians = [], []
    for seed, arrivals in enumerate(case.stretches(rate_per_s), 1):
        records: list[Record] = []

        def hear(commands: list[Command], _: float, records: list[Record] = records) -> None:
            records.extend(c.record for c in commands if isinstance(c, Ended) and c.record.outcome.counts)

        decider = Overheard(setup.decider(setup.policy, Random(f"{seed} controller")), hear)
        options = Options(prompts_known=False)
        simulate(setup.policy, arrivals, seed=seed, fleet=fleet, options=options, decider=decider)
        good.append(fmean(record.good for record in records))
        ttft = [r.ttft_s for r in records if r.outcome is Outcome.OK and r.ttft_s is not None]
        medians.append(median(ttft) if ttft else math.inf)
    return Played(good, medians)


def rate_1x(case: Case) -> float:
    """The highest rate (requests/s) at which round robin has 99.5% good, by bisection."""

    def is_good(rate: float) -> bool:
        return fmean(play(case, rate, ROUND_ROBIN).good) >= GOOD_AT_1X

    return highest_rate(is_good, 1.0, PRECISION)


def measure(case: Case) -> Measured:
    """Find 1x, and play every load under every server."""
    rate = rate_1x(case)
    return Measured(case, rate, {(load, who): play(case, load * rate, who) for load in case.loads for who in WHO})


def real_traces(runner: Runner) -> Findings:
    """Every trace on every fleet under every objective; nothing where the traces are not at hand."""
    cases = _cases(runner)
    findings = Findings(range(1, STRETCHES + 1))
    least = f"{cases[0].requests:,} requests or more, and {cases[0].seconds:g} s or more"
    findings.how = f"{STRETCHES} stretches of each trace, of {least}."
    if FOLDER not in os.environ:
        findings.notes.append(f"Nothing was measured: {FOLDER} names no folder with the traces.")
        return findings
    found = runner.map(measure, cases)
    upto = [(one, load) for one in found for load in one.case.loads if load <= 1.0]
    above = [(one, load) for one in found for load in one.case.loads if load > 1.0]
    for name, of in {
        "less_round_robin": [Judgement(_less(one, load), at_least(-0.005)) for one, load in upto],
        "p50_ttft_to_better": [Judgement(_later(one, load), at_most(1.1)) for one, load in upto],
        "to_better_1.5x": [Judgement(_gain(one, load), at_least(1.05)) for one, load in above],
    }.items():
        findings.figures |= over_cells(name, of)
    findings.grids.append(_table(found))
    findings.charts.append(_chart(found))
    return findings


def _cases(runner: Runner) -> list[Case]:
    if runner.effort.quick:
        return [Case("conversations", FLEETS[0], "all", QUICK_REQUESTS, QUICK_S, (1.0, 1.5))]
    fleets = [fleet for fleet in FLEETS if runner.runs(engines=fleet)]
    return [Case(*parts) for parts in product(TRACES, fleets, OBJECTIVES)]


def _less(one: Measured, load: float) -> Interval:
    return difference(one.played[load, OURS].good, one.played[load, ROUND_ROBIN].good)


def _later(one: Measured, load: float) -> Interval:
    """Median TTFT over that of the better of the two others."""
    others = [one.played[load, who].ttft_p50_s for who in (ROUND_ROBIN, CACHE_AWARE)]
    return ratio(one.played[load, OURS].ttft_p50_s, min(others, key=fmean)) or bare(math.inf, STRETCHES)


def _gain(one: Measured, load: float) -> Interval:
    """Goodput over that of the better of the two others."""
    others = [one.played[load, who].good for who in (ROUND_ROBIN, CACHE_AWARE)]
    return ratio(one.played[load, OURS].good, max(others, key=fmean)) or bare(math.inf, STRETCHES)


def _table(found: Sequence[Measured]) -> Grid:
    columns = ["trace", "engines", "objectives", "load", "requests/s"]
    columns += [f"{who}: {what}" for who in WHO for what in ("good", "p50 TTFT, s")]
    rows = []
    for one in found:
        fleet = " + ".join(f"{one.case.fleet.count(name)} x {name}" for name in dict.fromkeys(one.case.fleet))
        for load in one.case.loads:
            row = [one.case.trace, fleet, one.case.objectives, f"{load:g}x", f"{load * one.rate_per_s:.2f}"]
            for who in WHO:
                played = one.played[load, who]
                row += [written(mean(played.good)), f"{fmean(played.ttft_p50_s):.2f}"]
            rows.append(row)
    return Grid("Recorded traffic", columns, rows)


def _chart(found: Sequence[Measured]) -> Chart:
    loads = found[0].case.loads
    lines = []
    for who in WHO:
        each = [[fmean(one.played[load, who].good) for one in found] for load in loads]
        means, low, high = ([f(values) for values in each] for f in (fmean, min, max))
        lines.append(Line(who, loads, means, low, high, bold=who == OURS))
    title = f"Recorded traffic: goodput in {len(found)} cases, their mean, the worst and the best"
    return Chart("real-traces", title, "load, in multiples of 1x", "good", lines, most_y=1.02)
