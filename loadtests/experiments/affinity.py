"""Conversations and prefix caches: hit rate, TTFT and goodput by router, on eight replicas of 8B on an A100.

The names of figures end in the rate of requests/s. Without affinity the first promises break at about 18/s. The oracle
is a gateway that sees the caches of all engines. `trace` is in Mooncake's format, and does not fit into the caches.

Several gateways do not know of each other. Each request, or each connection, goes to a random gateway. With keys,
requests name their conversation in `x-session-id`. In `shared` traffic, 60% of the prompts begin with one system prompt
of 4,096 tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from gateway.core.controller import Controller
from gateway.core.policy import AdmissionSpec, Policy
from gateway.core.request import Affinity, Request
from gateway.core.sessions import Session, key_of
from gateway.core.slo import Objective, Slo
from gateway.policy.builtin import builtin
from gateway.sim.analysis.compare import Contender, OfModel
from gateway.sim.analysis.report import Interval, mean, ratio, summary
from gateway.sim.engine.fleet import FleetSpec
from gateway.sim.engine.profiles import ENGINES, Profile
from gateway.sim.run.decider import Decider
from gateway.sim.run.options import Options
from gateway.sim.run.results import Result
from gateway.sim.workload.arrivals import Arrival
from gateway.sim.workload.load import load_workload
from gateway.sim.workload.synthetic import Synthetic
from gateway.sim.workload.traces import Mix, open_trace
from loadtests.experiments.findings import Chart, Findings, Grid, line, written
from loadtests.experiments.gateways import Gateways, SeesCaches, played
from loadtests.experiments.runner import Effort, Runner
from loadtests.experiments.shared_prompt import shared

REPLICAS = 8
RATES = (18.0, 27.0)
ENGINE = replace(ENGINES["llama3-8b-a100"], max_model_len=32_768)
SERVERS = ("affinity", "no affinity", "cache-aware", "round-robin")
SEEDS = 3
WARMUP_S = 90.0
"""Conversations take 80 s on average, so the first 80 s have fewer turns than later ones."""
LOADED = 18.0
TALK_RATES = (170.0, 255.0)
TALKS = Effort(seeds=SEEDS, seconds=30.0, warmup_s=45.0)
SHARED_RATES = (60.0, 120.0)
SHARED = Effort(seeds=SEEDS, seconds=40.0, warmup_s=20.0)
SMALL_CACHE_TOKENS = 60_000
"""KV cache of the engines for the trace, in tokens: too small for all conversations of a replica."""


@dataclass(frozen=True, slots=True)
class Case:
    """Gateways, and how conversations reach them."""

    gateways: int = 1
    by_connection: bool = True
    """Whether a conversation keeps its gateway."""
    keys: bool = False
    """Whether requests name their conversation."""
    oracle: bool = False
    """Whether the one gateway sees the caches of all engines."""
    trace: bool = False
    """Whether the conversations are a trace, played to engines with a small KV cache."""

    def __str__(self) -> str:
        if self.oracle:
            return "1, sees the caches"
        by = "" if self.gateways == 1 else ", by connection" if self.by_connection else ", by request"
        return f"{self.gateways}{by}{', with keys' if self.keys else ''}"


ONE = Case()
SEVERAL = tuple(Case(n, by, keys) for n in (2, 4) for by in (True, False) for keys in (True, False))
CASES = (ONE, Case(oracle=True), Case(keys=True), *SEVERAL)
TRACED = (Case(trace=True), Case(oracle=True, trace=True))


def affinity(runner: Runner) -> Findings:
    """Every server at every rate."""
    if not runner.effort.quick:
        runner = replace(runner, effort=replace(runner.effort, seeds=SEEDS, warmup_s=WARMUP_S))
    findings = Findings(runner.seeds)
    findings.how = (
        f"{len(runner.seeds)} seeds, {runner.effort.seconds:g} s of arrivals after {runner.effort.warmup_s:g} s."
    )
    rates = (LOADED,) if runner.effort.quick else RATES
    found = _compared(findings, runner, runner.workload("agents"), rates)
    columns = ["requests/s", "server", "cached", "goodput", "by tokens", "p50 TTFT, s", "p99 TTFT, s"]
    title = "Prompt tokens found in prefix caches"
    lines = [line(name, rates, [_cached(found[rate][name]) for rate in rates]) for name in SERVERS]
    findings.charts.append(Chart("affinity", title, "requests/s", "share", lines, most_y=1.0))
    findings.grids.append(Grid(f"{title}, and what comes of it", columns, _rows(found)))
    _add_gateways(findings, runner, runner.workload("agents").at_rate(LOADED))
    of_talks = runner if runner.effort.quick else replace(runner, effort=TALKS)
    talks = load_workload("conversations", duration_s=of_talks.options.duration_s)
    assert isinstance(talks, Synthetic)
    found = _compared(
        findings, of_talks, talks, TALK_RATES[:1] if runner.effort.quick else TALK_RATES, "conversations_"
    )
    title = f"The workload `conversations`, {len(of_talks.seeds)} seeds, {of_talks.effort.seconds:g} s"
    findings.grids.append(Grid(title, columns, _rows(found)))
    _add_shared(findings, runner if runner.effort.quick else replace(runner, effort=SHARED))
    return findings


def _compared(
    findings: Findings, runner: Runner, workload: Synthetic, rates: Sequence[float], prefix: str = ""
) -> dict[float, dict[str, list[Result]]]:
    """All servers at all rates; names of the figures begin with `prefix`."""
    policy, fleet = _policy(), FleetSpec({"default": ENGINE})
    apart = _apart(policy)
    contenders = [Contender("affinity", policy, fleet), Contender("no affinity", apart, fleet)]
    contenders += [Contender(name, apart, fleet, name) for name in SERVERS[2:]]
    found = {rate: runner.compare(contenders, OfModel(workload.at_rate(rate), "any")) for rate in rates}
    for rate, runs in found.items():
        ours, theirs = runs["affinity"], runs["no affinity"]
        findings.figures |= {
            f"{prefix}cached_{rate:g}": _cached(ours),
            f"{prefix}cached_above_cache_aware_{rate:g}": mean(_less(ours, runs["cache-aware"])),
            f"{prefix}goodput_{rate:g}": mean([run.goodput for run in ours]),
        }
        ratios = {
            "goodput": ratio([r.goodput for r in ours], [r.goodput for r in theirs]),
            "p50_ttft": ratio([_ttft(r)[0] for r in ours], [_ttft(r)[0] for r in theirs]),
            "p99_ttft": ratio([_ttft(r)[1] for r in ours], [_ttft(r)[1] for r in theirs]),
        }
        findings.figures |= {
            f"{prefix}{name}_to_no_affinity_{rate:g}": value for name, value in ratios.items() if value is not None
        }
        findings.raw |= {f"{prefix}{name}, {rate:g}/s": summary(of) for name, of in runs.items()}
    return found


def _rows(found: dict[float, dict[str, list[Result]]]) -> list[list[str]]:
    return [[f"{rate:g}", name, *_row(runs[name])] for rate, runs in found.items() for name in SERVERS]


def _apart(policy: Policy) -> Policy:
    """The policy without affinity."""
    return replace(policy, pools={name: replace(pool, affinity=False) for name, pool in policy.pools.items()})


def _add_shared(findings: Findings, runner: Runner) -> None:
    """One system prompt in most of the traffic, with and without affinity."""
    policy, fleet, workload = _policy(), FleetSpec({"default": ENGINE}), runner.workload("shared-prompt")
    rows = []
    for rate in SHARED_RATES[:1] if runner.effort.quick else SHARED_RATES:
        goodput = {}
        for name, rules in (("affinity", policy), ("no affinity", _apart(policy))):
            runs = runner.map(
                shared, [(rules, fleet, workload.at_rate(rate), seed, runner.options) for seed in runner.seeds]
            )
            busiest = mean([load for _, load in runs])
            goodput[name] = [run.goodput for run, _ in runs]
            rows.append([f"{rate:g}", name, written(busiest), *_row([run for run, _ in runs])])
            if name == "affinity":
                findings.figures[f"shared_busiest_{rate:g}"] = busiest
        to = ratio(goodput["affinity"], goodput["no affinity"])
        if to is not None:
            findings.figures[f"shared_goodput_to_no_affinity_{rate:g}"] = to
    columns = ["requests/s", "router", "busiest", "cached", "goodput", "by tokens", "p50 TTFT, s", "p99 TTFT, s"]
    title = "One system prompt in 60% of the traffic, and requests at the busiest replica by those at the mean one"
    findings.grids.append(Grid(title, columns, rows))


def _add_gateways(findings: Findings, runner: Runner, traffic: Synthetic) -> None:
    """One gateway, one that sees the caches, and several, at one rate."""
    runs = [(case, traffic, seed, runner.options) for case in (*CASES, *TRACED) for seed in runner.seeds]
    found: dict[Case, list[Result]] = {}
    for (case, *_), run in zip(runs, runner.map(served, runs), strict=True):
        found.setdefault(case, []).append(run)

    def to(case: Case, other: Case) -> Interval | None:
        return ratio([run.cached for run in found[case]], [run.cached for run in found[other]])

    ratios = {
        "cached_to_oracle": to(ONE, CASES[1]),
        "cached_to_oracle_trace": to(*TRACED),
        "cached_with_keys_to_without": to(CASES[2], ONE),
    }
    for case in SEVERAL:
        by, keys = "connection" if case.by_connection else "request", "_keys" if case.keys else ""
        ratios[f"cached_{case.gateways}_gateways_by_{by}{keys}"] = to(case, ONE)
    findings.figures |= {name: value for name, value in ratios.items() if value is not None}
    columns = ["gateways", "cached", "goodput", "by tokens", "p50 TTFT, s", "p99 TTFT, s"]
    for title, cases in ((f"Gateways, at {LOADED:g} requests/s", CASES), ("A trace, and small KV caches", TRACED)):
        findings.grids.append(Grid(title, columns, [[str(case), *_row(found[case])] for case in cases]))


def served(of: tuple[Case, Synthetic, int, Options]) -> Result:
    """One run of a case, from its traffic, seed and options. The tenant of a request is its conversation."""
    case, traffic, seed, options = of
    policy = _policy()
    hosts = FleetSpec({"default": _engine(case)}).hosts(policy)
    controllers = [Controller(policy, Random(f"{seed} controller {number}")) for number in range(case.gateways)]
    balancer = Random(f"{seed} balancer")

    def chosen(request: Request) -> int:
        key = key_of(request.tenant)
        if case.keys:
            request.affinity = Affinity(request.affinity.prefix, Session(request.tenant, key))
        return key % case.gateways if case.by_connection else int(balancer.random() * case.gateways)

    decider: Decider = SeesCaches(controllers[0], hosts) if case.oracle else Gateways(controllers, chosen)
    arrivals = _traced(traffic, seed) if case.trace else _conversations(traffic, seed)
    return played(decider, policy, hosts, arrivals, seed, options)


def _engine(case: Case) -> Profile:
    return replace(ENGINE, kv_capacity_tokens=SMALL_CACHE_TOKENS) if case.trace else ENGINE


def _conversations(traffic: Synthetic, seed: int) -> Iterator[Arrival]:
    for arrival in traffic.arrivals(seed):
        yield replace(arrival, tenant=f"conversation {arrival.session}")


def _traced(traffic: Synthetic, seed: int) -> Iterator[Arrival]:
    """The same arrivals, written as a trace in Mooncake's format and read back: a hash for each 512 tokens, no
    conversations."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "mooncake.jsonl"
        with path.open("w") as file:
            for arrival in traffic.arrivals(seed):
                row = {
                    "timestamp": round(1000 * arrival.at),
                    "input_length": arrival.prompt_tokens,
                    "output_length": arrival.output_tokens,
                    "hash_ids": arrival.prefix,
                }
                file.write(json.dumps(row) + "\n")
        yield from open_trace(path, Mix()).arrivals(seed)


def _policy() -> Policy:
    """One tier with objectives for TTFT and TPOT."""
    rules = builtin([f"http://127.0.0.1:{9001 + number}" for number in range(REPLICAS)])
    slo = Slo(ttft=(Objective(0.99, 2.0),), tpot=(Objective(0.99, 0.15),))
    tier = replace(rules.tiers["default"], admission=AdmissionSpec(), slo=slo)
    return replace(rules, tiers={"default": tier}, default_tier="default")


def _cached(runs: list[Result]) -> Interval:
    return mean([run.cached for run in runs])


def _less(ours: list[Result], theirs: list[Result]) -> list[float]:
    return [a.cached - b.cached for a, b in zip(ours, theirs, strict=True)]


def _ttft(run: Result) -> tuple[float, float]:
    """The median TTFT and the p99 of the served requests."""
    of = run.tiers["default"].ttft
    return of.p50 or 0.0, of.p99 or 0.0


def _row(runs: list[Result]) -> list[str]:
    return [
        written(_cached(runs)),
        written(mean([run.goodput for run in runs])),
        written(mean([run.token_weighted for run in runs])),
        *(written(mean([_ttft(run)[i] for run in runs]), 2) for i in range(2)),
    ]
