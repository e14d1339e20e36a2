"""How a recorder of first tokens must count: four ways to learn the p95 from a fleet that is hedged by it.

The learned p95 decides which times are censored next. Each recorder keeps the same window
(`gateway.core.redundancy.ttft_quantiles`):

- **censored** (ours): only first attempts count; a loser is censored at its cancel
- **winners only**: losers are dropped
- **cancel as end**: a loser counts as if it had ended at its cancel
- **what the client saw**: the time to the first token of either attempt

The truth is the p95 of the times that first attempts would have taken. `controller` is the p95 of the gateway's
controller in the same fleet.
"""

from __future__ import annotations

from random import Random

from gateway.core.policy import Hedge
from gateway.core.redundancy.ttft_quantiles import TtftQuantiles, bucket_of
from gateway.sim.analysis.report import mean
from loadtests.experiments.drawn import PROMPT_TOKENS, Servers, Times, policy_of
from loadtests.experiments.findings import Findings, Grid, bare, written
from loadtests.experiments.runner import Runner

SEEDS = 20
RATE, REQUESTS, WARMUP = 200.0, 60_000, 20_000
TIMES = Times()
RECORDERS = ("censored", "winners only", "cancel as end", "what the client saw")
QUANTILE = 0.95


def censoring(runner: Runner) -> Findings:
    """Every recorder, and the controller."""
    seeds = tuple(range(1, (2 if runner.effort.quick else max(SEEDS, runner.effort.seeds)) + 1))
    findings = Findings(seeds)
    findings.how = f"{len(seeds)} seeds of {REQUESTS:,} requests at {RATE:g}/s each."
    truth = TIMES.quantile(QUANTILE)
    rows = []
    for recorder in RECORDERS:
        found = runner.map(_recorded, [(recorder, seed) for seed in seeds])
        rows.append([recorder, *_row([threshold for threshold, _ in found], [share for _, share in found], truth)])
        name = recorder.replace(" ", "_")
        findings.figures[f"{name}_to_truth"] = mean([threshold / truth for threshold, _ in found])
        if recorder == "winners only":
            findings.figures["winners_only_short_by"] = mean([1.0 - threshold / truth for threshold, _ in found])
    runs = runner.map(_controlled, list(seeds))
    rows.append(["controller", *_row([threshold for threshold, _ in runs], [share for _, share in runs], truth)])
    findings.figures["controller_to_truth"] = mean([threshold / truth for threshold, _ in runs])
    for name in ("censored", "controller"):
        findings.figures[f"{name}_off"] = bare(abs(findings.figures[f"{name}_to_truth"].value - 1.0), len(seeds))
    columns = ["recorder", "threshold, ms", "threshold / truth", "hedged, %"]
    findings.grids.append(Grid(f"The truth is {truth * 1000:.1f} ms", columns, rows))
    return findings


def _row(thresholds: list[float], shares: list[float], truth: float) -> list[str]:
    return [
        written(mean([threshold * 1000 for threshold in thresholds]), 1),
        written(mean([threshold / truth for threshold in thresholds]), 3),
        written(mean([share * 100 for share in shares]), 2),
    ]


def _recorded(asked: tuple[str, int]) -> tuple[float, float]:
    """Mean threshold, and share of requests hedged, of one recorder."""
    recorder, seed = asked
    random, first_tokens, bucket = Random(f"{seed} {recorder}"), TtftQuantiles(), bucket_of(PROMPT_TOKENS)
    thresholds, hedged = [], 0
    for number in range(REQUESTS):
        now = number / RATE
        late_s = first_tokens.quantile(bucket, QUANTILE, now)
        own_s = TIMES.draw(random)
        seen_s = own_s
        if late_s is not None and own_s > late_s:
            seen_s = min(own_s, late_s + TIMES.draw(random))
            hedged += number >= WARMUP
        if late_s is not None and number >= WARMUP:
            thresholds.append(late_s)
        lost = seen_s < own_s
        if recorder == "winners only" and lost:
            continue
        first_tokens.add(bucket, seen_s, lost and recorder == "censored", now)
    return sum(thresholds) / len(thresholds), hedged / (REQUESTS - WARMUP)


def _controlled(seed: int) -> tuple[float, float]:
    servers = Servers(policy_of(8, 10**6, Hedge(budget=0.2, holdout=0.0)), TIMES, seed, fifo=False)
    run = servers.run(RATE, REQUESTS, WARMUP)
    assert run.threshold_s is not None
    return run.threshold_s, run.duplicates
