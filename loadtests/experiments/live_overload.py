"""The overload, live: gateway, clients and emulated replicas over HTTP on one machine, at twice their capacity.

Candidates are the gateway, the three best tier-blind static caps of a sweep, and round robin. Each gets the same
requests of the main workload, for a minute after a warm-up. Engines and policy run in slow motion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from random import Random
from statistics import fmean

from gateway.core.policy import Policy
from gateway.sim.analysis.bound import bound
from gateway.sim.analysis.costs import job_of
from gateway.sim.baselines import baselines
from gateway.sim.run.options import Options
from gateway.sim.run.results import Latency, latency
from gateway.sim.run.run import simulate
from gateway.sim.workload.arrivals import Arrival
from loadtests.experiments.findings import Chart, Findings, Grid, Line, bare, written
from loadtests.experiments.runner import SETUP, Effort, Runner, against
from loadtests.live.planned import PlannedRequest
from loadtests.live.rig import Load, Run, run_together
from loadtests.live.scaled import key_of
from loadtests.live.score import TierScore, attainment, ratio, score, weighted, weighted_interval

OVERLOAD = 2.0
SCALE = 0.5
"""Virtual seconds per real one. At 1x the fleet generates some 7,300 tokens in a virtual second."""
SEED = 1
MAX_LAG_S = 0.005
TOGETHER = 3
"""Largest number of candidates that run at the same time. Each uses a quarter of a core, and all should find a free
core.
"""
GRACE_S = 240.0
BIN_S = 5.0
CAPS = tuple(
    f"static-cap:slots={slots},wait={wait:g}" for slots in (32, 48, 56, 64, 72, 96) for wait in (0.2, 0.3, 0.5, 0.7)
)
QUICK_CAPS = ("static-cap:slots=48,wait=0.5", "static-cap:slots=64,wait=0.5")
SWEEP = Effort(seeds=3, seconds=60.0, warmup_s=20.0)
QUICK_SWEEP = Effort(seeds=1, seconds=20.0, warmup_s=10.0)
OURS = "ours"
ROUND_ROBIN = "round-robin"


@dataclass(frozen=True, slots=True)
class _Times:
    """Durations in real seconds."""

    warmup_s: float
    seconds: float


WARMUP_S = 20.0
QUICK = _Times(5.0, 15.0)


@dataclass(slots=True)
class _Plan:
    """The setup of every candidate."""

    policy: Policy
    arrivals: list[Arrival]
    """The arrivals, in virtual time."""
    times: _Times
    load: Load
    weights: dict[str, float]


def live_overload(runner: Runner) -> Findings:
    """One run of each candidate."""
    quick = runner.effort.quick
    plan = planned(runner, QUICK if quick else _Times(WARMUP_S, runner.effort.seconds))
    caps = _best_caps(runner)[: 1 if quick else 3]
    others = caps if quick else [*caps, ROUND_ROBIN]
    runner.tell("the optimum of these requests")
    optimum = _optimum(plan)
    runs = _runs((OURS, *others), plan, runner)
    findings = Findings((SEED,))
    _judge(findings, runs, caps, optimum, plan)
    _show(findings, runs, optimum, plan)
    return findings


def planned(runner: Runner, times: _Times) -> _Plan:
    policy = runner.policy()
    until = SCALE * (times.warmup_s + times.seconds)
    workload = replace(runner.workload("main"), duration_s=until).at_rate(OVERLOAD * runner.one_x("main"))
    arrivals = list(workload.arrivals(SEED))
    keys = {(a.tier, a.tenant): key_of(a.tier, a.tenant) for a in arrivals}
    requests = [
        PlannedRequest(
            at=arrival.at / SCALE,
            tier=arrival.tier,
            key=keys[arrival.tier, arrival.tenant].text,
            prompt_tokens=arrival.prompt_tokens,
            output_tokens=job_of(arrival, policy).answer,
            bound_s=policy.tiers[arrival.tier].slo.ttft_bound_s / SCALE,
        )
        for arrival in arrivals
    ]
    text = (SETUP / "policy.yaml").read_text()
    load = Load(text, requests, list(keys.values()), SCALE, times.warmup_s, times.seconds, GRACE_S)
    return _Plan(policy, arrivals, times, load, {name: tier.weight for name, tier in policy.tiers.items()})


def _best_caps(runner: Runner) -> list[str]:
    """Static caps, the best first, by weighted goodput in the simulator."""
    quick = runner.effort.quick
    caps = QUICK_CAPS if quick else CAPS
    sweep = Runner(QUICK_SWEEP if quick else SWEEP, runner.jobs, lambda what: runner.tell(f"sweep: {what}"))
    workload = sweep.workload("main").at_rate(OVERLOAD * runner.one_x("main"))
    found = sweep.compare([against(text, runner.policy()) for text in caps], workload)
    return sorted(caps, key=lambda cap: -fmean(result.weighted for result in found[cap]))


@dataclass(frozen=True, slots=True)
class _Optimum:
    """The optimum, as shares of the weight (0-1)."""

    weighted: float
    """Weight of the counted requests that the optimum accepts, divided by the weight of all counted requests."""
    ceiling: float
    """The optimum if answers may be decoded after the last request: an upper bound for every candidate."""
    tiers: dict[str, float]


def _optimum(plan: _Plan) -> _Optimum:
    """The optimum of the whole run, from idle engines on, warm-up included; only requests after the warm-up count."""
    found = bound(plan.arrivals, plan.policy, horizon_s=SCALE * (plan.times.warmup_s + plan.times.seconds))
    counted = [
        (arrival.tier, share)
        for arrival, share in zip(plan.arrivals, found.accepted, strict=True)
        if arrival.at >= SCALE * plan.times.warmup_s
    ]
    tiers = {name: fmean(share for tier, share in counted if tier == name) for name in sorted(plan.weights)}
    offered = sum(plan.weights[tier] for tier, _ in counted)
    weighted = sum(plan.weights[tier] * share for tier, share in counted) / offered
    return _Optimum(weighted, found.ceiling, tiers)


def _runs(names: Sequence[str], plan: _Plan, runner: Runner) -> dict[str, Run]:
    """Runs by candidate. A run is void if a process was late; it is then repeated once, alone."""
    runs: dict[str, Run] = {}
    for at in range(0, len(names), TOGETHER):
        runs |= _played(names[at : at + TOGETHER], plan, runner)
    for name, found in runs.items():
        if found.lag_p99_s > MAX_LAG_S:
            runner.tell(f"{name} is void: a process was late; once more, alone")
            (again,) = _played([name], plan, runner).values()
            runs[name] = min(found, again, key=lambda one: one.lag_p99_s)
    return {name: runs[name] for name in names}


def _played(names: Sequence[str], plan: _Plan, runner: Runner) -> dict[str, Run]:
    """Runs of candidates at the same time."""
    found = run_together({name: (None if name == OURS else name, plan.load) for name in names}, runner.tell)
    return dict(zip(names, found, strict=True))


def _judge(findings: Findings, runs: dict[str, Run], caps: Sequence[str], optimum: _Optimum, plan: _Plan) -> None:
    ours = runs[OURS].counted
    worths = {name: weighted(found.counted, plan.weights) for name, found in runs.items()}
    best = max(caps, key=worths.__getitem__)
    figures = findings.figures
    figures["weighted_to_bound"] = weighted_interval(ours, plan.weights, per=optimum.weighted)
    to_best = ratio(ours, runs[best].counted, plan.weights)
    figures["weighted_to_best_cap"] = bare(float("inf"), len(ours)) if to_best is None else to_best
    figures["tier_0_attainment"] = attainment(ours, "tier-0")
    if ROUND_ROBIN in runs:
        to_ours = ratio(runs[ROUND_ROBIN].counted, ours, plan.weights)
        figures["round_robin_to_ours"] = bare(0.0, len(ours)) if to_ours is None else to_ours
    figures["worst_loop_lag_p99_s"] = bare(max(found.lag_p99_s for found in runs.values()), len(runs))
    figures["most_chunks_per_s"] = bare(max(found.chunks_per_s for found in runs.values()), len(runs))
    void = [name for name, found in runs.items() if found.lag_p99_s > MAX_LAG_S]
    if void:
        findings.notes.append(
            f"**Void**, after one repetition: {', '.join(void)}. The loop lag p99 of a process exceeded "
            f"{MAX_LAG_S * 1000:g} ms, so these figures say as much of the machine as of the policy."
        )


def _show(findings: Findings, runs: dict[str, Run], optimum: _Optimum, plan: _Plan) -> None:
    scores = {name: score(found.counted) for name, found in runs.items()}
    findings.grids += [
        _goodput(runs, optimum, plan),
        _latencies(scores),
        _misses(scores),
        _processes(runs),
    ]
    findings.charts.append(_over_time(runs, plan))
    times = plan.times
    findings.how = (
        f"{times.warmup_s:g} s of warm-up and {times.seconds:g} s that count, with {SCALE:g} virtual seconds to a real "
        f"one. Every candidate was sent the same {len(runs[OURS].counted)} requests (seed {SEED}). Intervals are over "
        "requests, not over runs." + (" Quick: too short for a judgement." if times is QUICK else "")
    )
    findings.notes.append(
        f"The optimum ({optimum.weighted:.3f}) does not count what is decoded after the last request, of which a "
        f"run this short has its part: with it, nobody could have more than {optimum.ceiling:.3f}."
    )
    findings.raw["optimum"] = asdict(optimum)
    for name, found in runs.items():
        findings.raw[name] = {
            "weighted": weighted(found.counted, plan.weights),
            "tiers": {tier: asdict(of) for tier, of in scores[name].items()},
            "processes": {process: asdict(of) for process, of in found.processes.items()},
            "lag_p99_s": found.lag_p99_s,
            "chunks_per_s": found.chunks_per_s,
            "most_open": found.most_open,
            "late_p99_s": _lateness(found).p99,
        }


def _goodput(runs: dict[str, Run], optimum: _Optimum, plan: _Plan) -> Grid:
    rows = [["optimum", written(bare(optimum.weighted, 1)), "1", "", *(f"{x:.3f}" for x in optimum.tiers.values())]]
    for name, found in runs.items():
        requests = found.counted
        own = weighted_interval(requests, plan.weights)
        tiers = [written(attainment(requests, tier)) for tier in optimum.tiers]
        rows.append(
            [name, written(own), f"{own.value / optimum.weighted:.3f}", f"{_simulated(name, plan):.3f}", *tiers]
        )
    columns = ["", "weighted goodput", "/ optimum", "in the simulator", *(f"{tier} attained" for tier in optimum.tiers)]
    return Grid("Goodput", columns, rows)


def _simulated(name: str, plan: _Plan) -> float:
    """Weighted goodput of the same requests in virtual time."""
    begin, end = SCALE * plan.times.warmup_s, SCALE * (plan.times.warmup_s + plan.times.seconds)
    candidate = against(name, plan.policy)
    setup = baselines.Setup(plan.policy) if name == OURS else candidate.setup()
    decider = None if name == OURS else setup.decider(setup.policy, Random(SEED))
    options = Options(duration_s=end, warmup_s=begin)
    return simulate(setup.policy, plan.arrivals, seed=SEED, options=options, decider=decider).weighted


def _latencies(scores: dict[str, dict[str, TierScore]]) -> Grid:
    rows = [
        [name, tier, f"{of.offered}", f"{of.good}", *_percentiles(of.ttft), *_percentiles(of.e2e)]
        for name, tiers in scores.items()
        for tier, of in tiers.items()
    ]
    columns = ["", "tier", "offered", "good"]
    columns += [f"{metric} {q}" for metric in ("TTFT", "e2e") for q in ("p50", "p95", "p99")]
    title = "Latency in virtual seconds: TTFT of all that got a first token, e2e of all that finished"
    return Grid(title, columns, rows)


def _percentiles(of: Latency) -> list[str]:
    return ["" if value is None else f"{value * SCALE:.2f}" for value in (of.p50, of.p95, of.p99)]


def _misses(scores: dict[str, dict[str, TierScore]]) -> Grid:
    rows = [
        [name, tier, ", ".join(f"{reason} {count}" for reason, count in of.misses.items())]
        for name, tiers in scores.items()
        for tier, of in tiers.items()
    ]
    return Grid("Requests that were not good, by reason", ["", "tier", "requests"], rows)


def _processes(runs: dict[str, Run]) -> Grid:
    names = list(next(iter(runs.values())).processes)
    columns = ["", *(f"{name}: {what}" for name in names for what in ("lag p99 <= ms", "CPU")), "chunks/s"]
    columns += ["most connections", "clients late by p99 ms"]
    rows = []
    for name, found in runs.items():
        cells = []
        for process in names:
            of = found.processes[process]
            cells += [f"{of.lag_p99_s * 1000:g}", f"{of.cpu:.2f}"]
        late = _lateness(found).p99
        rows.append([name, *cells, f"{found.chunks_per_s:.0f}", f"{found.most_open}", f"{(late or 0.0) * 1000:.1f}"])
    return Grid("Processes while requests were counted", columns, rows)


def _lateness(found: Run) -> Latency:
    return latency([request.late_s for request in found.counted])


def _over_time(runs: dict[str, Run], plan: _Plan) -> Chart:
    """A chart of goodput over the times at which requests were due, warm-up included."""
    times = plan.times
    bins = range(round((times.warmup_s + times.seconds) / BIN_S))
    lines = []
    for name, found in runs.items():
        parts = [[s for s in found.requests if n * BIN_S <= s.at < (n + 1) * BIN_S] for n in bins]
        points = [((n + 0.5) * BIN_S, weighted(part, plan.weights)) for n, part in enumerate(parts) if part]
        lines.append(Line(name, [x for x, _ in points], [y for _, y in points]))
    title = f"Weighted goodput at {OVERLOAD:g}x, live, by when a request was due"
    return Chart(
        "live-overload",
        title,
        "s of real time since the start",
        "weighted goodput",
        lines,
        marks={"counted from": times.warmup_s},
        most_y=1.02,
    )
