"""One tier, from cold, up to three times what the optimum can serve: there is no lower tier to refuse.

The tier is that of `policies/default.yaml`. The replay knows the length of each answer, which no gateway can. So there
is also a replay with answers of the mean length. All runs are repeated with a TTFT objective alone. The engine is
`default`, which was chosen, not measured.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gateway.core.policy import Policy
from gateway.policy import load
from gateway.sim.analysis.report import Interval, mean, ratio, summary
from gateway.sim.run.results import Result
from gateway.sim.workload.synthetic import Synthetic
from loadtests.experiments.cells import Judgement, mean_of_cells, over_cells
from loadtests.experiments.findings import Chart, Findings, Grid, bare, line, written
from loadtests.experiments.overload import CAPS, QUICK_CAPS, known
from loadtests.experiments.runner import Runner, against, ours
from loadtests.experiments.targets import at_least
from loadtests.experiments.tiers import by_length

DEFAULT = Path(__file__).resolve().parents[2] / "policies" / "default.yaml"
LOADS = (0.9, 1.2, 1.5, 2.0, 3.0)
QUICK_LOADS = (0.9, 2.0, 3.0)
BLIND_LOADS = (1.5, 2.0, 3.0)
TO_REPLAY = {0.9: at_least(0.98), 1.5: at_least(0.95), 2.0: at_least(0.92), 3.0: at_least(0.88)}
"""Wanted goodput over that of the replay, by load."""
OBJECTIVES = {"its objectives": "", "TTFT alone": "ttft_"}


def one_tier(runner: Runner) -> Findings:
    """The tier with all its objectives, and with its TTFT objective alone."""
    seconds = runner.effort.seconds + runner.effort.warmup_s
    runner = Runner(replace(runner.effort, seconds=seconds, warmup_s=0.0), runner.jobs, runner.tell)
    findings = Findings(runner.seeds)
    findings.how = f"{len(runner.seeds)} seeds of {seconds:g} s, all counted."
    goodput: list[list[float]] = []
    judged: dict[str, list[Judgement]] = {"to_replay": [], "worst_seed_to_replay": [], "to_best_cap": []}
    for objectives, prefix in OBJECTIVES.items():
        goodput += _sweep(runner, policy_of(runner, ttft_alone=bool(prefix)), objectives, findings, judged)
    findings.figures["mean_goodput"] = mean_of_cells(goodput)
    for name, cells in judged.items():
        findings.figures |= over_cells(name, cells)
    return findings


def _sweep(
    runner: Runner, policy: Policy, objectives: str, findings: Findings, judged: dict[str, list[Judgement]]
) -> list[list[float]]:
    """The goodput of each seed, by load. Adds the load's figures to `judged`."""
    prefix = OBJECTIVES[objectives]
    workload = traffic_of(runner.workload("main"), policy)
    one_x = runner.one_x_of(workload, policy)
    loads, caps = (QUICK_LOADS, QUICK_CAPS) if runner.effort.quick else (LOADS, CAPS)
    rows: list[dict[str, Interval | None]] = []
    ours_at: dict[float, list[Result]] = {}
    cap_at: dict[float, list[Result]] = {}
    for load_ in loads:
        scaled = workload.at_rate(one_x * load_)
        replay = runner.replays(policy, scaled)
        runs = runner.compare([ours(policy), *(against(text, policy) for text in (*caps, "least-requests"))], scaled)
        good = {name: [result.goodput for result in results] for name, results in runs.items()}
        best = max(caps, key=lambda cap: sum(good[cap]))
        worst = min(mine / theirs for mine, theirs in zip(good["ours"], replay, strict=True))
        if load_ in TO_REPLAY:
            judged["to_replay"].append(Judgement(known(ratio(good["ours"], replay)), TO_REPLAY[load_]))
        if load_ in BLIND_LOADS:
            judged["worst_seed_to_replay"].append(Judgement(bare(worst, len(replay)), at_least(0.75)))
            judged["to_best_cap"].append(Judgement(known(ratio(good["ours"], good[best])), at_least(1.05)))
        blind = runner.replays_without_lengths(policy, scaled) if load_ in BLIND_LOADS and not prefix else None
        if blind is not None:
            findings.figures[f"ours_to_replay_without_lengths_{load_:g}x"] = known(ratio(good["ours"], blind))
        rows.append(
            {
                "replay of what the optimum accepts": mean(replay),
                **({} if prefix else {"the same, with mean answers": None if blind is None else mean(blind)}),
                "ours": mean(good["ours"]),
                "best static cap": mean(good[best]),
                "least requests, no control": mean(good["least-requests"]),
                "ours, by tokens / offered": mean([result.token_weighted for result in runs["ours"]]),
                "best static cap, by tokens / offered": mean([result.token_weighted for result in runs[best]]),
            }
        )
        ours_at[load_], cap_at[load_] = runs["ours"], runs[best]
        findings.raw |= {f"{objectives} {load_:g}x {label}": summary(results) for label, results in runs.items()}
    title = f"one tier, {objectives}: goodput by load (1x = {one_x:.1f} requests/s)"
    names = list(rows[0])
    cells = [[name, *(written(row[name]) for row in rows)] for name in names]
    findings.grids.append(Grid(title, ["", *(f"{load_:g}x" for load_ in loads)], cells))
    findings.grids.append(by_length(f"one tier, {objectives}: ours, by tokens of the prompt", ours_at))
    findings.grids.append(by_length(f"one tier, {objectives}: the best static cap, by tokens of the prompt", cap_at))
    lines = [
        line(name, list(of), list(of.values()), bold=name == "ours")
        for name in names
        if "tokens" not in name
        and (of := {x: value for x, row in zip(loads, rows, strict=True) if (value := row[name]) is not None})
    ]
    picture = f"one-tier-{prefix.rstrip('_') or 'all'}"
    findings.charts.append(Chart(picture, title, "load, as a multiple of 1x", "goodput", lines, most_y=1.02))
    return [[run.goodput for run in runs] for runs in ours_at.values()]


def policy_of(runner: Runner, *, ttft_alone: bool) -> Policy:
    """The fleet of the experiments under the one tier of the default policy."""
    default = load(DEFAULT)
    tiers = dict(default.tiers)
    if ttft_alone:
        tiers = {name: replace(tier, slo=replace(tier.slo, tpot=())) for name, tier in tiers.items()}
    return replace(runner.policy(), tiers=tiers, default_tier=default.default_tier)


def traffic_of(workload: Synthetic, policy: Policy) -> Synthetic:
    """The lowest tier's part of a workload, as all of it."""
    (tier,) = policy.tiers
    return replace(workload, shares=(replace(workload.shares[-1], tier=tier, part=1.0),))
