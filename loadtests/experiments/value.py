"""Values of requests in overload: weights of one priority, value by tokens, acceptance of each prompt length.

Two engines serve chat. Loads are multiples of the knee of one tier with round robin. The first 40 s from cold are left
out.

Two tiers of one priority have weights 4 and 1; 3 of 10 requests have weight 4. Both are compared with two tiers of
equal weight. One tier has `fairness: 100%`, which lets admission refuse prompts of any length. This tier is compared
with the default and with `value: tokens`. Prompts are grouped in powers of two, with at least 100 requests in a group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean

from gateway.core.policy import AdmissionMode, Policy, Value
from gateway.core.results import Outcome, Record
from gateway.core.slo import Objective, Slo
from gateway.sim.analysis.report import Interval, mean
from gateway.sim.engine.profiles import ENGINES
from loadtests.experiments.engines_cell import COLD_S, MIXES, Cell, is_good, parts, run
from loadtests.experiments.engines_plan import knee_of
from loadtests.experiments.findings import Chart, Findings, Grid, bare, line, written
from loadtests.experiments.runner import Runner

SEEDS = 3
SECONDS = 120.0
PROFILES = ("llama3-70b-a100-tp4", "llama3-8b-a100")
LOADS = (0.8, 1.5, 2.0)
WEIGHTS = {"gold": 4.0, "bronze": 1.0}
EQUALS = {"gold": 0.3, "bronze": 0.7}
SLO = Slo(ttft=(Objective(0.99, 2.0),), tpot=(Objective(0.99, 0.15),))
EQUAL, WEIGHED = "equal weights", "weights 4 and 1"
ANY, FAIR, TOKENS = "fairness: 100%", "fairness: 25%", "value: tokens"
TWO_TIERS, ONE_TIER = (EQUAL, WEIGHED), (ANY, FAIR, TOKENS)
ENOUGH = 100
"""Requests of a length that make its acceptance known to 5 points."""
QUICK_RATE_PER_S = 13.0


@dataclass(frozen=True, slots=True)
class ValueCell(Cell):
    """A cell under one of the policies that are compared."""

    variant: str = FAIR

    @property
    def mix(self) -> dict[str, float]:
        """The two tiers for the comparison of weights."""
        return EQUALS if self.variant in TWO_TIERS else MIXES[self.tiers]

    def policy(self, mode: AdmissionMode = AdmissionMode.ENFORCE) -> Policy:
        """Two replicas, learned slots."""
        rules = Cell.policy(self, mode)
        (tier,) = rules.tiers.values()
        tier = replace(
            tier,
            slo=SLO,
            fairness=1.0 if self.variant == ANY else tier.fairness,
            value=Value.TOKENS if self.variant == TOKENS else Value.REQUEST,
        )
        if self.variant not in TWO_TIERS:
            return replace(rules, tiers={tier.name: tier})
        weights = WEIGHTS if self.variant == WEIGHED else dict.fromkeys(WEIGHTS, 1.0)
        tiers = {name: replace(tier, name=name, weight=weight) for name, weight in weights.items()}
        return replace(rules, tiers=tiers, default_tier="bronze")


@dataclass(frozen=True, slots=True)
class Task:
    """One cell at one rate."""

    cell: ValueCell
    rate_per_s: float
    seeds: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ran:
    """Shares (0-1) of each seed, and acceptance by length over all seeds."""

    weighted: list[float]
    """Goodput weighted by `WEIGHTS`."""
    good: dict[str, list[float]]
    """Share of good requests, by tier."""
    tokens: list[float]
    """Prompt tokens of good requests."""
    lengths: dict[int, tuple[int, float]]
    """Number of requests and the share that was answered, by length of prompt in powers of two."""


def measure(task: Task) -> Ran:
    """Run one cell."""
    runs = []
    for seed in task.seeds:
        _, steady = parts(run(task.cell, "auto", (seed,), task.rate_per_s, COLD_S + task.cell.seconds))
        runs.append([record for record in steady if record.outcome.counts])
    by_length: defaultdict[int, list[bool]] = defaultdict(list)
    for record in (record for records in runs for record in records):
        by_length[_prompt(record).bit_length()].append(record.outcome is Outcome.OK)
    tiers = task.cell.policy().tiers
    return Ran(
        [_share(records, _weight) for records in runs],
        {name: [_share([r for r in of if r.request.tier.name == name]) for of in runs] for name in tiers},
        [_share(records, _prompt) for records in runs],
        {length: (len(of), fmean(of)) for length, of in sorted(by_length.items())},
    )


def _prompt(record: Record) -> int:
    return record.request.prompt_bytes // 4


def _weight(record: Record) -> float:
    return WEIGHTS.get(record.request.tier.name, 1.0)


def _one(record: Record) -> float:
    return 1.0


def _share(records: Sequence[Record], worth: Callable[[Record], float] = _one) -> float:
    worths = [worth(record) for record in records]
    return sum(of for of, record in zip(worths, records, strict=True) if is_good(record)) / sum(worths)


def value(runner: Runner) -> Findings:
    """Run all cells."""
    tasks = _tasks(runner)
    found = dict(zip(tasks, runner.map(measure, tasks), strict=True))
    findings = Findings(tasks[0].seeds)
    findings.how = f"{len(tasks[0].seeds)} seeds of {tasks[0].cell.seconds:g} s after the first {COLD_S:g}."
    two = {_key(task): ran for task, ran in found.items() if task.cell.variant in TWO_TIERS}
    one = {_key(task): ran for task, ran in found.items() if task.cell.variant in ONE_TIER}
    places = list(dict.fromkeys(key[:2] for key in two))
    gains = {place: fmean(two[*place, WEIGHED].weighted) - fmean(two[*place, EQUAL].weighted) for place in places}
    over = [gain for (_, load), gain in gains.items() if load > 1.0]
    under = [abs(gain) for (_, load), gain in gains.items() if load < 1.0]
    findings.figures["least_gain_by_weight"] = bare(min(over), len(over))
    if under:
        findings.figures["most_change_by_weight_below_the_knee"] = bare(max(under), len(under))
    shares = {key: behind(ran) for key, ran in one.items()}
    for name, variant in (("any", ANY), ("fair", FAIR), ("tokens", TOKENS)):
        of = [share for key, share in shares.items() if key[2] == variant]
        findings.figures[f"most_behind_{name}"] = bare(max(of), len(of))
    findings.grids += [_weights(two), _worths(one), _lengths(one)]
    findings.charts += _charts(one)
    return findings


Key = tuple[str, float, str]
"""(engine, load, variant)."""


def _key(task: Task) -> Key:
    return task.cell.profile.name, task.cell.load, task.cell.variant


def _tasks(runner: Runner) -> list[Task]:
    if runner.effort.quick:
        cell = ValueCell(ENGINES[PROFILES[0]], load=2.0, seconds=30.0)
        return [Task(replace(cell, variant=variant), QUICK_RATE_PER_S, (1,)) for variant in (*TWO_TIERS, *ONE_TIER)]
    seeds = tuple(range(1, SEEDS + 1))
    knees = dict(zip(PROFILES, runner.map(knee_of, [Cell(ENGINES[name]) for name in PROFILES]), strict=True))
    return [
        Task(
            ValueCell(ENGINES[name], load=load, seconds=SECONDS, variant=variant),
            load * knees[name],
            seeds,
        )
        for variants in (TWO_TIERS, ONE_TIER)
        for name, load, variant in product(PROFILES, LOADS, variants)
    ]


def behind(ran: Ran) -> float:
    """The share of requests that a tier accepts, minus the share at the prompt length with the lowest acceptance."""
    total = sum(count for count, _ in ran.lengths.values())
    accepted = sum(count * share for count, share in ran.lengths.values()) / total
    return accepted - min(share for count, share in ran.lengths.values() if count >= ENOUGH)


def _weights(two: Mapping[Key, Ran]) -> Grid:
    rows = [
        [*_place(key), written(_mean(ran.weighted)), *(written(_mean(ran.good[name])) for name in WEIGHTS)]
        for key, ran in two.items()
    ]
    columns = ["engine", "load", "policy", "weighted goodput", *(f"good, {name}" for name in WEIGHTS)]
    return Grid("Two tiers of one priority, weights 4 and 1", columns, rows)


def _worths(one: Mapping[Key, Ran]) -> Grid:
    rows = [
        [*_place(key), written(_mean(*ran.good.values())), written(_mean(ran.tokens)), f"{behind(ran):.3f}"]
        for key, ran in one.items()
    ]
    columns = ["engine", "load", "policy", "good", "good, by tokens of the prompt", "most that a length is behind"]
    return Grid("One tier", columns, rows)


def _lengths(one: Mapping[Key, Ran]) -> Grid:
    lengths = sorted({length for ran in one.values() for length, (count, _) in ran.lengths.items() if count >= ENOUGH})
    rows = [
        [*_place(key), *(f"{ran.lengths[length][1]:.2f}" if length in ran.lengths else "" for length in lengths)]
        for key, ran in one.items()
        if key[1] > 1.0
    ]
    return Grid(
        "One tier: share accepted, by length of the prompt in tokens, from",
        ["engine", "load", "policy", *map(_from, lengths)],
        rows,
    )


def _charts(one: Mapping[Key, Ran]) -> list[Chart]:
    charts = []
    most = max(load for _, load, _ in one)
    for profile in dict.fromkeys(key[0] for key in one):
        of = {key[2]: ran for key, ran in one.items() if key[:2] == (profile, most)}
        lines = [
            line(variant, list(known), [bare(share, 1) for share in known.values()], bold=variant == FAIR)
            for variant, ran in of.items()
            if (known := {length - 1: share for length, (count, share) in ran.lengths.items() if count >= ENOUGH})
        ]
        title = f"One tier, {profile}, {most:g}x: accepted by length of the prompt"
        x = "tokens of the prompt, as a power of two"
        charts.append(Chart(f"value-{profile}", title, x, "accepted", lines, most_y=1.02))
    return charts


def _place(key: Key) -> list[str]:
    profile, load, variant = key
    return [profile, f"{load:g}x", variant]


def _from(length: int) -> str:
    return f"{2 ** (length - 1):,}"


def _mean(values: Sequence[float]) -> Interval:
    return mean(list(values))
