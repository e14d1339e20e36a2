"""The textbook story: with too high a limit on requests in flight TTFT collapses, and throughput does not show it.

One tier has a TTFT objective of 1 s, at 1.3x. An engine runs 64 requests: a lower cap wastes it, a higher one lets
requests wait inside it. TTFT goodput is the share of the served answers whose first token came in time.
"""

from __future__ import annotations

from dataclasses import replace

from gateway.core.policy import Policy
from gateway.core.slo import Objective, Slo
from gateway.sim.analysis.report import Interval, mean, ratio, summary
from gateway.sim.run.results import Result
from loadtests.experiments.findings import Chart, Findings, Grid, Line, line, written
from loadtests.experiments.runner import Runner, against, ours, with_slots

LIMITS = (32, 48, 56, 64, 68, 72, 76, 80, 96, 128)
RIGHT, TOO_HIGH = 64, 72
LOAD = 1.3
TTFT_S = 1.0


def ttft_collapse(runner: Runner) -> Findings:
    """The sweep over limits, with and without prediction."""
    findings = Findings(runner.seeds)
    limits = (RIGHT, TOO_HIGH) if runner.effort.quick else LIMITS
    policy = _one_objective(runner.policy())
    workload = runner.workload("main").at_rate(runner.one_x("main") * LOAD)
    caps = [against(f"static-cap:slots={limit},wait=0.5", policy) for limit in limits]
    predicted = [ours(with_slots(policy, limit), f"ours, {limit} slots") for limit in limits]
    runs = list(runner.compare([*caps, *predicted], workload).values())
    capped, ruled = dict(zip(limits, runs, strict=False)), dict(zip(limits, runs[len(limits) :], strict=True))
    high, right = capped[TOO_HIGH], capped[RIGHT]
    flat = ratio([_tokens_per_s(run) for run in high], [_tokens_per_s(run) for run in right])
    findings.figures |= {
        "ttft_goodput_before": _goodput(right),
        "ttft_goodput_collapsed": _goodput(high),
        "ttft_goodput_predicted": _goodput(ruled[TOO_HIGH]),
        **({"token_throughput_collapsed_to_before": flat} if flat else {}),
    }
    rows = [
        [
            str(limit),
            written(_goodput(capped[limit])),
            written(_throughput(capped[limit]), 0),
            written(_goodput(ruled[limit])),
        ]
        for limit in limits
    ]
    columns = ["limit", "TTFT goodput, static cap", "tokens/s, static cap", "TTFT goodput, predicted"]
    findings.grids.append(Grid(f"Limit on requests in flight per replica, {LOAD:g}x", columns, rows))
    most = max(_throughput(of).value for of in capped.values())
    flow = [_throughput(capped[limit]).value / most for limit in limits]
    lines = [
        line("TTFT goodput, static cap", limits, [_goodput(capped[limit]) for limit in limits]),
        Line("token throughput, static cap (of the highest)", limits, flow, dashed=True),
        line("TTFT goodput, admission by forecast", limits, [_goodput(ruled[limit]) for limit in limits]),
    ]
    title = f"A limit that is too high, {LOAD:g}x"
    findings.charts.append(
        Chart("ttft-collapse", title, "limit on requests in flight per replica", "share", lines, most_y=1.05)
    )
    findings.raw |= {f"static cap {limit}": summary(of) for limit, of in capped.items()}
    findings.raw |= {f"ours {limit}": summary(of) for limit, of in ruled.items()}
    return findings


def _one_objective(policy: Policy) -> Policy:
    """The policy with all tiers alike: one priority, and one TTFT objective."""
    alike = {
        name: replace(
            tier,
            priority=0,
            weight=1.0,
            floor=0.0,
            slo=Slo(ttft=(Objective(0.99, TTFT_S),)),
            timeouts=replace(tier.timeouts, queue_s=TTFT_S),
        )
        for name, tier in policy.tiers.items()
    }
    return replace(policy, tiers=alike)


def _goodput(runs: list[Result]) -> Interval:
    return mean([run.good / max(1, run.finished) for run in runs])


def _throughput(runs: list[Result]) -> Interval:
    return mean([_tokens_per_s(run) for run in runs])


def _tokens_per_s(run: Result) -> float:
    return sum(tier.finished_tokens for tier in run.tiers.values()) / run.seconds
