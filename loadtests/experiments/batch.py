"""Three batch jobs beside an interactive tier whose load comes and goes, and which should not notice them.

In a public benchmark, 3,000 batch requests are sent at once and have 12 minutes. Interactive requests come at a high
and a 15 times lower rate in turns of 90 s. All prompts have 512 tokens, all answers 128. There are two replicas.

*Tight* bounds are the benchmark's on `llama3-8b-a100`: TTFT p95 100 ms and p99 200 ms, TPOT p99 40 ms. On other engines
the bounds are scaled with the latencies of a lone request. *Loose* bounds are four times as long. The high rate is 65%
of the highest at which round robin keeps each percentile alone: the benchmark's 15/s on that engine. The best static
cap serves tiers in strict order. This cap has the largest share of good requests, in the mean of both tiers.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from random import Random
from statistics import fmean

from gateway.core.commands import Command, Ended
from gateway.core.policy import AdmissionSpec, Policy
from gateway.core.pool_spec import Timeouts
from gateway.core.results import Outcome, Record
from gateway.core.slo import Metric, Objective, Slo
from gateway.policy.builtin import builtin
from gateway.sim.analysis.report import mean, ratio
from gateway.sim.baselines import baselines
from gateway.sim.engine.fleet import FleetSpec
from gateway.sim.engine.profiles import ENGINES, Profile
from gateway.sim.run.decider import Overheard
from gateway.sim.run.options import Options
from gateway.sim.run.run import simulate
from gateway.sim.workload.arrivals import Arrival
from loadtests.experiments.bisection import highest_rate
from loadtests.experiments.cells import Judgement, over_cells
from loadtests.experiments.findings import Chart, Findings, Grid, bare, line, written
from loadtests.experiments.runner import Runner
from loadtests.experiments.targets import SET_ASIDE_ENGINE, at_least
from loadtests.quantiles import rank

SEEDS = 2
SECONDS = 720.0
TURN_S = 90.0
JOBS, JOB_REQUESTS = 3, 1000
SENT_AT_S, DUE_S = 10.0, 720.0
PROMPT_TOKENS, ANSWER_TOKENS = 512, 128
FIRST = "llama3-8b-a100"
"""The engine on which the bounds are those of the benchmark."""
PROFILES = (FIRST, "llama3-70b-a100-tp4", "llama2-7b-h100", "llama2-70b-h100-tp8", SET_ASIDE_ENGINE)
BOUNDS = {"tight": 1.0, "loose": 4.0}
HIGH, LOW = 0.65, 0.65 / 15.0
"""Rates, as shares of the highest that round robin keeps."""
KNEE_S, PRECISION = 120.0, 1.05
CAPS = (8, 16, 32, 64, 128)
REPLICAS = ("127.0.0.1:9001", "127.0.0.1:9002")
INTERACTIVE, BATCH = "interactive", "batch"
WINDOW_S = 30.0
ALONE, BESIDE, CAPPED = "alone", "beside the batch", "beside the batch, best static cap"


@dataclass(frozen=True, slots=True)
class Benchmark:
    """The benchmark on one engine."""

    profile: Profile
    bounds: str = "tight"
    seeds: tuple[int, ...] = tuple(range(1, SEEDS + 1))
    seconds: float = SECONDS
    """Seconds of interactive arrivals."""
    job_requests: int = JOB_REQUESTS
    """Requests of each of the three jobs."""
    caps: tuple[int, ...] = CAPS
    knee_s: float = KNEE_S
    """Length of the runs that find the high rate."""

    @property
    def slo(self) -> Slo:
        """The interactive objectives."""
        first, times = ENGINES[FIRST], BOUNDS[self.bounds]
        to_first_token = times * _alone_s(self.profile) / _alone_s(first)
        to_next_token = times * _token_s(self.profile) / _token_s(first)
        return Slo(
            ttft=(Objective(0.95, 0.1 * to_first_token), Objective(0.99, 0.2 * to_first_token)),
            tpot=(Objective(0.99, 0.04 * to_next_token),),
        )

    def policy(self) -> Policy:
        """Two replicas, learned slots, no floor for the batch."""
        rules = builtin([f"http://{replica}" for replica in REPLICAS])
        bare_tier = replace(rules.tiers["default"], admission=AdmissionSpec())
        patient = Timeouts(queue_s=DUE_S, ttft_s=600.0, idle_s=600.0, total_s=900.0)
        tiers = {
            INTERACTIVE: replace(bare_tier, name=INTERACTIVE, priority=0, slo=self.slo),
            BATCH: replace(
                bare_tier, name=BATCH, priority=10, slo=Slo(e2e=(Objective(0.99, DUE_S),)), timeouts=patient
            ),
        }
        pools = {name: replace(p, queue_limit=10_000, queue_bytes=2**30) for name, p in rules.pools.items()}
        return replace(rules, tiers=tiers, pools=pools, default_tier=INTERACTIVE)

    def interactive(self, seed: int, high_per_s: float, low_per_s: float, seconds: float) -> list[Arrival]:
        """Poisson arrivals at two rates in turn, the high one first."""
        draw, at, found = Random(f"{seed} interactive"), 0.0, list[Arrival]()
        while True:
            at += draw.expovariate((high_per_s, low_per_s)[int(at // TURN_S) % 2])
            if at >= seconds:
                return found
            found.append(_arrival(at, INTERACTIVE, len(found) % 8))

    def jobs(self) -> list[Arrival]:
        """All batch requests, a tenth of a millisecond apart."""
        return [_arrival(SENT_AT_S + n * 1e-4, BATCH, n % JOBS) for n in range(JOBS * self.job_requests)]


def _alone_s(profile: Profile) -> float:
    """Time of a step that reads one prompt."""
    return profile.step_base_s + PROMPT_TOKENS * profile.prefill_s_per_token


def _token_s(profile: Profile) -> float:
    """Time of a step that decodes one answer, about half of it written."""
    context = PROMPT_TOKENS + ANSWER_TOKENS / 2
    return profile.step_base_s + profile.decode_s_per_sequence + profile.kv_s_per_token * context


def _arrival(at: float, tier: str, tenant: int) -> Arrival:
    return Arrival(at, tier, f"{tier}-{tenant}", "any", PROMPT_TOKENS, ANSWER_TOKENS)


def served(benchmark: Benchmark, arrivals: Sequence[Arrival], seed: int, who: str = "") -> list[Record]:
    """All ended requests that count, under the gateway or a baseline."""
    records: list[Record] = []

    def hear(commands: list[Command], _: float) -> None:
        records.extend(c.record for c in commands if isinstance(c, Ended) and c.record.outcome.counts)

    policy = benchmark.policy()
    setup = baselines.setup(who, policy) if who else baselines.Setup(policy)
    simulate(
        setup.policy,
        arrivals,
        seed=seed,
        fleet=FleetSpec(dict.fromkeys(REPLICAS, benchmark.profile)),
        options=Options(prompts_known=False),
        decider=Overheard(setup.decider(setup.policy, Random(f"{seed} controller")), hear),
    )
    return records


def keeps(slo: Slo, records: Sequence[Record]) -> bool:
    """Whether all were answered, and each percentile was kept over all of them."""
    if any(record.outcome is not Outcome.OK for record in records):
        return False
    for metric, objective in slo.objectives():
        values = sorted((r.tpot_s if metric is Metric.TPOT else r.ttft_s) or 0.0 for r in records)
        if rank(values, objective.quantile) > objective.threshold_s:
            return False
    return True


def highest_per_s(benchmark: Benchmark) -> float:
    """The highest steady rate at which round robin keeps each percentile of the interactive tier, by bisection."""

    def is_kept(rate: float) -> bool:
        arrivals = benchmark.interactive(1, rate, rate, benchmark.knee_s)
        return keeps(benchmark.slo, served(benchmark, arrivals, 1, "round-robin"))

    return highest_rate(is_kept, 4.0, PRECISION)


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Shares of good requests of each seed, and the last end of a batch request in seconds after the jobs were sent."""

    interactive: list[float]
    batch: list[float]
    ended_s: float
    by_time: Mapping[float, float]
    """Share of good interactive requests, by time of arrival, over all seeds."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The benchmark's results on one engine."""

    benchmark: Benchmark
    high_per_s: float
    slots: int
    """Those of the best static cap."""
    of: Mapping[str, Outcomes]


def measure(benchmark: Benchmark) -> Measured:
    """Run the benchmark with each server. The cap is searched on the first seed."""
    knee = highest_per_s(benchmark)
    arrivals = {
        seed: benchmark.interactive(seed, HIGH * knee, LOW * knee, benchmark.seconds) for seed in benchmark.seeds
    }
    beside = {seed: sorted([*of, *benchmark.jobs()], key=lambda arrival: arrival.at) for seed, of in arrivals.items()}

    def run(arrivals: Mapping[int, Sequence[Arrival]], who: str = "") -> Outcomes:
        return _outcomes({seed: served(benchmark, of, seed, who) for seed, of in arrivals.items()})

    first = {seed: beside[seed] for seed in benchmark.seeds[:1]}
    tried = {slots: run(first, _cap(slots)) for slots in benchmark.caps if slots <= benchmark.profile.max_num_seqs}
    slots = max(tried, key=lambda slots: tried[slots].interactive[0] + tried[slots].batch[0])
    found = {ALONE: run(arrivals), BESIDE: run(beside), CAPPED: run(beside, _cap(slots))}
    return Measured(benchmark, HIGH * knee, slots, found)


def _cap(slots: int) -> str:
    return f"static-cap-tiers:slots={slots},wait=0.5"


def _outcomes(by_seed: Mapping[int, Sequence[Record]]) -> Outcomes:
    of = {
        tier: [[r for r in records if r.request.tier.name == tier] for records in by_seed.values()]
        for tier in (INTERACTIVE, BATCH)
    }
    windows: defaultdict[float, list[bool]] = defaultdict(list)
    for record in (record for records in of[INTERACTIVE] for record in records):
        windows[record.request.head_at // WINDOW_S * WINDOW_S].append(record.good)
    ends = [r.request.body_at + r.e2e_s - SENT_AT_S for records in of[BATCH] for r in records]
    return Outcomes(
        [fmean(r.good for r in records) for records in of[INTERACTIVE]],
        [fmean(r.good for r in records) for records in of[BATCH] if records],
        max(ends, default=math.nan),
        {at: fmean(good) for at, good in sorted(windows.items())},
    )


def batch(runner: Runner) -> Findings:
    """The benchmark on each engine, with tight and with loose bounds."""
    benchmarks = _benchmarks(runner)
    found = runner.map(measure, benchmarks)
    findings = Findings(benchmarks[0].seeds)
    findings.how = f"{len(findings.seeds)} seeds of {benchmarks[0].seconds:g} s."
    ratios = {one.benchmark: ratio(one.of[BESIDE].interactive, one.of[ALONE].interactive) for one in found}
    beside = [Judgement(of or bare(0.0, len(findings.seeds)), at_least(0.98)) for of in ratios.values()]
    findings.figures |= over_cells("beside_to_alone", beside)
    capped = [ratio(one.of[CAPPED].interactive, one.of[ALONE].interactive) for one in found]
    findings.figures |= over_cells(
        "capped_to_alone", [Judgement(of, at_least(0.98)) for of in capped if of is not None]
    )
    findings.figures |= over_cells(
        "batch_good", [Judgement(mean(one.of[BESIDE].batch), at_least(0.99)) for one in found]
    )
    findings.figures["latest_batch_end_s"] = bare(max(one.of[BESIDE].ended_s for one in found), len(found))
    findings.grids.append(_table(found))
    findings.charts.append(_chart(min(found, key=lambda one: _cost(one)[0])))
    return findings


def _cost(one: Measured) -> tuple[float, str]:
    return fmean(one.of[BESIDE].interactive) / fmean(one.of[ALONE].interactive), one.benchmark.profile.name


def _benchmarks(runner: Runner) -> list[Benchmark]:
    if runner.effort.quick:
        short = Benchmark(ENGINES[FIRST], seeds=(1, 2), seconds=TURN_S, job_requests=300, caps=(32,), knee_s=30.0)
        return [short]
    names = [name for name in PROFILES if runner.runs(engines=[name])]
    return [Benchmark(ENGINES[name], bounds) for name, bounds in product(names, BOUNDS)]


def _table(found: Sequence[Measured]) -> Grid:
    columns = ["engine", "bounds", "high rate, 1/s", *(f"interactive good, {who}" for who in (ALONE, BESIDE, CAPPED))]
    columns += ["slots of the cap", "batch good", "with the cap", "batch ends, s", "with the cap"]
    rows = [
        [
            one.benchmark.profile.name,
            one.benchmark.bounds,
            f"{one.high_per_s:.1f}",
            *(written(mean(one.of[who].interactive)) for who in (ALONE, BESIDE, CAPPED)),
            str(one.slots),
            *(written(mean(one.of[who].batch)) for who in (BESIDE, CAPPED)),
            *(f"{one.of[who].ended_s:.0f}" for who in (BESIDE, CAPPED)),
        ]
        for one in found
    ]
    return Grid("Interactive requests beside three batch jobs", columns, rows)


def _chart(one: Measured) -> Chart:
    lines = [
        line(who, list(of.by_time), [bare(share, 1) for share in of.by_time.values()], bold=who == BESIDE)
        for who, of in one.of.items()
    ]
    title = f"Interactive requests in time, {one.benchmark.profile.name}, {one.benchmark.bounds} bounds"
    return Chart("batch", title, "seconds", "good", lines, marks={"batch": SENT_AT_S}, most_y=1.02)
