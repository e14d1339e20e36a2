"""Does `load find` find a known knee, and is a verdict of `load certify` wrong?

Fleets are drawn: an engine, one or two replicas with round robin, lengths, a p95 of TTFT, a goodput. Time is virtual;
search and trial are those of the commands. Long runs know the knee. `certify` is asked 5% below and above it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from random import Random

from gateway.core.commands import Command, Commit, Ended
from gateway.core.policy import Policy
from gateway.core.results import Outcome as Ending
from gateway.core.results import Record
from gateway.policy import load_text
from gateway.sim.baselines import baselines
from gateway.sim.engine.fleet import FleetSpec
from gateway.sim.engine.profiles import ENGINES
from gateway.sim.run.decider import Overheard
from gateway.sim.run.options import Options
from gateway.sim.run.run import simulate
from gateway.sim.workload.arrivals import Arrival
from gateway.sim.workload.lengths import Mixture, Part
from gateway.sim.workload.synthetic import Synthetic, TierTraffic
from loadtests.experiments.bisection import highest_rate
from loadtests.experiments.findings import Chart, Findings, Line, bare
from loadtests.experiments.runner import Runner
from loadtests.experiments.targets import SET_ASIDE_ENGINE
from loadtests.replay.request import Outcome, Request
from loadtests.verdict.promises import Promise, Tally, Verdict, promises_of
from loadtests.verdict.search import search
from loadtests.verdict.step import CERTIFY_WRONG, FIND_WRONG, Step, stretch_of
from loadtests.verdict.trial import Trial

FLEETS, QUICK_FLEETS = 20, 2
CERTIFIED, QUICK_CERTIFIED = 3, 1
"""Tests of `certify` on each side of the knee of each fleet."""
ASIDE = 0.05
"""The share of the knee by which these rates are off it."""
WITHIN = 0.05
KNEE_REQUESTS, QUICK_KNEE_REQUESTS = 24_000, 1000
KNEE_PRECISION = 1.01
FIND_S, CERTIFY_S = 120.0, 600.0
"""Longest time at one rate: the defaults of the commands, as the next two."""
BUDGET_S, COOL_S = 1800.0, 5.0
FROM_PER_S, UP_TO_PER_S = 1.0, 1000.0
LOOK_S = 0.5
KNEE_WARMUP = 0.2
KNEE_S, QUICK_KNEE_S = 1200.0, 60.0
KNEE_SEEDS = 4
ROUGHLY = 1.1
TIER = "standard"
POLICY = """\
apiVersion: tailgate/v1
models: {{default: {{pools: [main]}}}}
pools: {{main: {{replicas: [{replicas}]}}}}
tiers: {{standard: {{slo: {{ttft: {{p95: {ttft_ms}ms}}}}}}}}
"""


@dataclass(frozen=True, slots=True)
class DrawnFleet:
    """A fleet, its traffic, and the promises about it."""

    number: int
    name: str
    policy: Policy
    engines: FleetSpec
    traffic: Synthetic
    promises: list[Promise]
    answer_s: float
    """About the time of a slow answer while nothing else runs."""

    @property
    def stretch_s(self) -> float:
        """The stretch that the commands would take."""
        return stretch_of(self.answer_s)


def known_knee(runner: Runner) -> Findings:
    """All fleets, each with a long run, a search, and some certificates."""
    quick = runner.effort.quick
    count = QUICK_FLEETS if quick else FLEETS
    findings = Findings(tuple(range(1, count + 1)))
    found = runner.map(_of_fleet, [(number, quick) for number in findings.seeds])
    off = [row.found_per_s / row.knee_per_s - 1.0 for row in found]
    complete = [abs(each) <= WITHIN for each, row in zip(off, found, strict=True) if row.is_complete]
    held = sum(row.low_per_s <= row.knee_per_s <= row.high_per_s for row in found)
    wrong, decided, tests = (sum(getattr(row, of) for row in found) for of in ("wrong", "decided", "tests"))
    findings.figures |= {
        "complete": bare(len(complete) / count, count),
        "complete_within_5_percent": bare(sum(complete) / max(1, len(complete)), len(complete)),
        "within_5_percent": bare(sum(abs(each) <= WITHIN for each in off) / count, count),
        "interval_holds_knee": bare(held / count, count),
        "certify_wrong": bare(wrong / tests, tests),
        "certify_decided": bare(decided / tests, tests),
    }
    lows, highs = ([end / row.knee_per_s for row, end in zip(found, ends, strict=True)] for ends in _ends(found))
    line = Line("found / known", list(findings.seeds), [1.0 + each for each in off], lows, highs, apart=True)
    findings.charts.append(
        Chart("known-knee", "Found rate, over the known knee", "fleet", "of the known knee", [line], log_y=True)
    )
    findings.how = (
        f"{count} fleets. Knees are from {length_of(quick)[0]:,} requests at each rate, or more. {len(complete)} "
        f"searches ended within their budget; {decided} of {tests} certificates are decided."
    )
    findings.raw["fleets"] = found
    return findings


@dataclass(frozen=True, slots=True)
class KneeRow:
    """Results of both commands for one fleet."""

    name: str
    knee_per_s: float
    found_per_s: float
    low_per_s: float
    high_per_s: float
    is_complete: bool
    """Whether the search ended with a narrow interval, not with its budget."""
    tests: int
    decided: int
    wrong: int


def _ends(found: Sequence[KneeRow]) -> tuple[list[float], list[float]]:
    return [row.low_per_s for row in found], [row.high_per_s for row in found]


def _of_fleet(of: tuple[int, bool]) -> KneeRow:
    number, quick = of
    fleet = drawn(number)
    knee = known(fleet, *length_of(quick))
    spent_s = [0.0]

    async def ask(rate_per_s: float, number: int) -> Step:
        one = trial_at(fleet, rate_per_s, FIND_WRONG, FIND_S, seed=101 + number)
        spent_s.append(one.seconds + COOL_S)
        return one

    found = asyncio.run(search(ask, FROM_PER_S, UP_TO_PER_S, lambda: sum(spent_s) < BUDGET_S))
    verdicts: list[tuple[Verdict, Verdict]] = []
    for seed in range(2, 2 + (QUICK_CERTIFIED if quick else CERTIFIED)):
        for factor, wrong in ((1.0 - ASIDE, Verdict.FAIL), (1.0 + ASIDE, Verdict.PASS)):
            verdicts.append((trial_at(fleet, factor * knee, CERTIFY_WRONG, CERTIFY_S, seed).verdict, wrong))
    return KneeRow(
        fleet.name,
        knee,
        found.rate_per_s,
        found.knee.low_per_s,
        found.knee.high_per_s,
        found.is_narrow,
        len(verdicts),
        sum(said is not Verdict.UNDECIDED for said, _ in verdicts),
        sum(said is wrong for said, wrong in verdicts),
    )


def drawn(number: int) -> DrawnFleet:
    """The fleet of this number: the same in each run."""
    draw = Random(f"fleet {number}")
    profile = draw.choice([each for name, each in ENGINES.items() if name != SET_ASIDE_ENGINE])
    replicas = draw.choice((1, 1, 2))
    prompt, answer = (round(math.exp(draw.uniform(*map(math.log, ends)))) for ends in ((100, 1500), (20, 150)))
    goodput = draw.choice((0.9, 0.95, 0.99))
    answer_s = 2.0 * answer * (profile.step_base_s + profile.decode_s_per_sequence)
    ttft_s = max(0.2, 5.0 * (profile.step_base_s + prompt * profile.prefill_s_per_token))
    names = [f"r{each}" for each in range(1, replicas + 1)]
    listed = ", ".join(f'{{name: {name}, url: "http://127.0.0.1:{9000 + i}"}}' for i, name in enumerate(names))
    policy = load_text(POLICY.format(replicas=listed, ttft_ms=round(1000 * ttft_s)), "policy.yaml", {})
    most = profile.max_model_len // 2
    lengths = (Mixture((Part(1.0, prompt, 0.5),), most), Mixture((Part(1.0, answer, 0.5),), most))
    return DrawnFleet(
        number,
        f"{replicas} {profile.name}, {prompt} + {answer} tokens, goodput {goodput:g}",
        policy,
        FleetSpec(dict.fromkeys(names, profile)),
        Synthetic(1.0, math.inf, (TierTraffic(TIER, 1.0, lengths[0], lengths[1]),)),
        promises_of(policy, {TIER}, goodput),
        answer_s,
    )


@dataclass(slots=True)
class Known:
    """Counts the requests of a long run but those at its beginning. Ends it once more of them missed than `allowed`."""

    fleet: DrawnFleet
    until_s: float
    allowed: list[float]
    """By promise."""
    tally: Tally = field(init=False)
    is_over: bool = False

    def __post_init__(self) -> None:
        self.tally = Tally(self.fleet.policy, self.fleet.promises, self.until_s, KNEE_WARMUP * self.until_s)

    def arrivals(self, traffic: Iterable[Arrival]) -> Iterator[Arrival]:
        """The traffic until the end of the run."""
        for arrival in takewhile(lambda one: one.at < self.until_s and not self.is_over, traffic):
            self.tally.due(arrival.at)
            yield arrival

    def look(self, now_s: float, under_way: Iterable[Request]) -> None:
        """Count what is over."""
        self.is_over = any(missed > most for missed, most in zip(self.misses(), self.allowed, strict=True))

    def ended(self, request: Request) -> None:
        """A request is over."""
        self.tally.ended(request)

    def misses(self) -> list[int]:
        """By promise."""
        counts = self.tally.counts.values()
        return [sum(of[number][1] for of in counts) for number in range(len(self.allowed))]


def length_of(quick: bool) -> tuple[int, float]:
    """Least requests, and least seconds, of a run that knows the knee."""
    return (QUICK_KNEE_REQUESTS, QUICK_KNEE_S) if quick else (KNEE_REQUESTS, KNEE_S)


def known(fleet: DrawnFleet, requests: int, least_s: float) -> float:
    """The rate at which a promise is just kept, over at least so many requests and seconds."""

    def is_kept(rate_per_s: float, seeds: int) -> bool:
        counted_s = max(least_s, requests / rate_per_s) / KNEE_SEEDS
        allowed = [(1.0 - promise.share) * rate_per_s * counted_s * seeds for promise in fleet.promises]
        for seed in range(seeds):
            counts = Known(fleet, counted_s / (1.0 - KNEE_WARMUP), allowed)
            Play(fleet, counts).run(rate_per_s, seed)
            allowed = [most - missed for most, missed in zip(allowed, counts.misses(), strict=True)]
            if min(allowed) < 0.0:
                return False
        return True

    about = highest_rate(lambda rate: is_kept(rate, 1), FROM_PER_S, ROUGHLY)
    return highest_rate(lambda rate: is_kept(rate, KNEE_SEEDS), about / ROUGHLY, KNEE_PRECISION)


def trial_at(fleet: DrawnFleet, rate_per_s: float, wrong: float, budget_s: float, seed: int) -> Step:
    """One rate, tested until all promises are decided, as `loadtests.verdict.step` tests a live target."""
    trial = Trial(fleet.policy, fleet.promises, fleet.stretch_s, budget_s, wrong, fleet.stretch_s)
    play = Play(fleet, trial)
    play.run(rate_per_s, seed)
    found = trial.decided or trial.judgements(math.inf)
    return Step(rate_per_s, play.seconds, play.sent, found, True, False)


@dataclass(slots=True)
class Play:
    """One run of a fleet, watched by a trial or a count."""

    fleet: DrawnFleet
    counts: Trial | Known
    sent: int = 0
    seconds: float = 0.0
    under_way: dict[int, Request] = field(default_factory=dict)
    """By number of the arrival, from 1: the id that the simulation gives it."""
    looked_at: float = 0.0

    def run(self, rate_per_s: float, seed: int) -> None:
        """Send the traffic of this seed at a rate."""
        fleet = self.fleet
        setup = baselines.setup("round-robin", fleet.policy)
        simulate(
            setup.policy,
            self._arrivals(fleet.traffic.at_rate(rate_per_s), seed),
            seed=seed,
            fleet=fleet.engines,
            options=Options(watched=False),
            decider=Overheard(setup.decider(setup.policy, Random(seed)), self._hear),
        )

    def _arrivals(self, traffic: Synthetic, seed: int) -> Iterator[Arrival]:
        most = min(profile.max_model_len for profile in self.fleet.engines.profiles.values()) // 2
        for number, arrival in enumerate(self.counts.arrivals(traffic.arrivals(seed)), 1):
            self.sent, self.seconds = number, arrival.at
            self.under_way[number] = Request(number, arrival, arrival.at, arrival.at)
            yield replace(arrival, prompt_tokens=min(arrival.prompt_tokens, most))

    def _hear(self, commands: list[Command], now: float) -> None:
        for command in commands:
            if isinstance(command, Commit):
                self.under_way[command.request_id].first_s = now
            elif isinstance(command, Ended):
                self._ended(command.record)
        if now >= self.looked_at + LOOK_S:
            self.looked_at = now
            self.counts.look(now, self.under_way.values())

    def _ended(self, record: Record) -> None:
        request = self.under_way.pop(record.request.id)
        at = request.arrival.at
        request.outcome = Outcome.FINISHED if record.outcome is Ending.OK else Outcome.SHED
        request.first_s = None if record.ttft_s is None else at + record.ttft_s
        request.last_s = request.ended_s = at + record.e2e_s
        request.output_tokens = request.chunks = record.output_tokens
        self.counts.ended(request)
