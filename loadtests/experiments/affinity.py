"""Conversations and prefix caches: hit rate, TTFT and goodput by router, on eight replicas of 8B on an A100.

Coding agents share long instructions and send all that was said before with each turn. An engine has a part of that in
its prefix cache, if it served the turn before. `cache-aware` is the default rule of vllm-router and SGLang's gateway
without a limit on what it remembers; it admits everything, as round robin does. The gateway runs with its default
router, with and without `affinity`. Rates are in requests/s: without affinity the first promises break at about 18.
"""

from __future__ import annotations

from dataclasses import replace

from gateway.core.policy import AdmissionSpec, Objective, Policy, Slo
from gateway.policy.builtin import builtin
from gateway.sim.analysis.compare import Contender, OfModel
from gateway.sim.analysis.report import Interval, mean, ratio, summary
from gateway.sim.analysis.results import Result
from gateway.sim.run.fleet import FleetSpec
from gateway.sim.run.profiles import ENGINES
from loadtests.experiments.findings import Chart, Findings, Grid, line, written
from loadtests.experiments.lab import Lab

REPLICAS = 8
RATES = (8.0, 18.0, 27.0)
ENGINE = replace(ENGINES["llama3-8b-a100"], max_model_len=32_768)
SERVERS = ("affinity", "no affinity", "cache-aware", "round-robin")
SEEDS = 5
WARMUP_S = 90.0
"""Conversations take 80 s in the mean: before that there are fewer turns than later."""
LOADED = 18.0
OVERLOADED = 27.0


def affinity(lab: Lab) -> Findings:
    """Every server at every rate."""
    if not lab.effort.quick:
        lab = replace(lab, effort=replace(lab.effort, seeds=SEEDS, warmup_s=WARMUP_S))
    findings = Findings(lab.seeds)
    findings.how = f"{len(lab.seeds)} seeds, {lab.effort.seconds:g} s of arrivals after {lab.effort.warmup_s:g} s."
    policy, workload = _policy(), lab.workload("agents")
    fleet = FleetSpec({"default": ENGINE})
    apart = replace(policy, pools={name: replace(pool, affinity=False) for name, pool in policy.pools.items()})
    contenders = [Contender("affinity", policy, fleet), Contender("no affinity", apart, fleet)]
    contenders += [Contender(name, apart, fleet, name) for name in SERVERS[2:]]
    rates = (LOADED,) if lab.effort.quick else RATES
    found = {rate: lab.compare(contenders, OfModel(workload.at_rate(rate), "any")) for rate in rates}
    for rate, runs in found.items():
        ours, theirs = runs["affinity"], runs["no affinity"]
        findings.figures |= {
            f"cached_{rate:g}": _cached(ours),
            f"cached_above_cache_aware_{rate:g}": mean(_less(ours, runs["cache-aware"])),
            f"goodput_{rate:g}": mean([run.goodput for run in ours]),
        }
        ratios = {
            f"goodput_to_no_affinity_{rate:g}": ratio([r.goodput for r in ours], [r.goodput for r in theirs]),
            f"p50_ttft_to_no_affinity_{rate:g}": ratio([_ttft(r)[0] for r in ours], [_ttft(r)[0] for r in theirs]),
            f"p99_ttft_to_no_affinity_{rate:g}": ratio([_ttft(r)[1] for r in ours], [_ttft(r)[1] for r in theirs]),
        }
        findings.figures |= {name: value for name, value in ratios.items() if value is not None}
        findings.raw |= {f"{name}, {rate:g}/s": summary(of) for name, of in runs.items()}
    columns = ["requests/s", "server", "cached", "goodput", "by tokens", "p50 TTFT, s", "p99 TTFT, s"]
    rows = [[f"{rate:g}", name, *_row(runs[name])] for rate, runs in found.items() for name in SERVERS]
    findings.grids.append(Grid("Prompt tokens found in prefix caches, and what comes of it", columns, rows))
    title = "Prompt tokens found in prefix caches"
    lines = [line(name, rates, [_cached(found[rate][name]) for rate in rates]) for name in SERVERS]
    findings.charts.append(Chart("affinity", title, "requests/s", "share", lines, most_y=1.0))
    return findings


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
    """The median and the p99 of those served."""
    of = run.tiers["default"].ttft
    return of.p50 or 0.0, of.p99 or 0.0


def _row(runs: list[Result]) -> list[str]:
    return [
        written(_cached(runs)),
        written(mean([run.goodput for run in runs])),
        written(mean([run.token_weighted for run in runs])),
        *(written(mean([_ttft(run)[i] for run in runs]), 2) for i in range(2)),
    ]
