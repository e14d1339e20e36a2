"""The experiment around the runs: its requests, repetitions and judgements. No process is started."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from gateway.observe.metrics.lag import EDGES
from loadtests.experiments import live_overload as experiment
from loadtests.experiments.runner import QUICK, Effort, Runner
from loadtests.experiments.targets import TARGETS
from loadtests.live.rig import Candidate, Load, Process, Run


def waits(edge_s: float) -> tuple[float, ...]:
    counts = [0.0] * (len(EDGES) + 1)
    counts[EDGES.index(edge_s)] = 100.0
    return tuple(counts)


def runner() -> Runner:
    made = Runner(replace(QUICK, seeds=1))
    made.one_x_rates["main"] = 10.0
    return made


def played(load: Load, name: str, edge_s: float) -> Run:
    """A run in which our gateway serves all requests at once, and others serve every second one."""
    requests = [replace(request) for request in load.requests]
    for n, request in enumerate(requests):
        request.sent_s, request.status = request.at, 200
        if name == experiment.OURS or n % 2:
            request.first_s, request.ended_s = request.at + 0.1, request.at + 1.0
    processes = {process: Process(waits(edge_s), 0.1) for process in ("replicas", "gateway", "clients")}
    return Run(name, requests, load.warmup_s, processes, 1000.0, 10)


RunTogether = Callable[[Mapping[str, Candidate], Callable[[str], None]], list[Run]]


def together(edges: list[float], called: list[list[str]]) -> RunTogether:
    """Lags in this order; the last one repeats."""

    def run_together(candidates: Mapping[str, Candidate], tell: Callable[[str], None]) -> list[Run]:
        assert all((baseline is None) == (name == experiment.OURS) for name, (baseline, _) in candidates.items())
        called.append(list(candidates))
        found = candidates.items()
        return [played(load, name, edges.pop(0) if len(edges) > 1 else edges[0]) for name, (_, load) in found]

    return run_together


def test_live_overload_plays_the_workload_in_slow_motion() -> None:
    plan = experiment.planned(runner(), experiment.QUICK)
    assert len(plan.load.requests) == len(plan.arrivals) > 100
    for request, arrival in zip(plan.load.requests, plan.arrivals, strict=True):
        assert request.at == arrival.at / experiment.SCALE
        assert (request.prompt_tokens, request.output_tokens) == (arrival.prompt_tokens, arrival.output_tokens)
        assert request.bound_s == plan.policy.tiers[arrival.tier].slo.ttft_bound_s / experiment.SCALE
    assert {key.text for key in plan.load.keys} == {request.key for request in plan.load.requests}


CAP = "static-cap:slots=64,wait=0.5"


@pytest.mark.parametrize(
    ("edges", "again", "void", "worst_s"),
    [
        ([0.005], [], False, 0.005),
        ([0.01, 0.002], [[experiment.OURS]], False, 0.002),
        ([0.01, 0.02, 0.003, 0.002], [[experiment.OURS], [CAP]], False, 0.003),
        ([0.01, 0.002, 0.02], [[experiment.OURS]], True, 0.01),
    ],
    ids=["never late", "one late once", "both late once", "one late twice"],
)
def test_live_run_with_a_late_process_is_repeated_once_alone_and_then_reported(
    monkeypatch: pytest.MonkeyPatch, edges: list[float], again: list[list[str]], void: bool, worst_s: float
) -> None:
    called: list[list[str]] = []
    monkeypatch.setattr(experiment, "run_together", together(edges, called))
    monkeypatch.setattr(experiment, "_best_caps", lambda _: [CAP])
    findings = experiment.live_overload(runner())
    assert called == [[experiment.OURS, CAP], *again]
    assert any("Void" in note for note in findings.notes) == void
    assert findings.figures["tier_0_attainment"].value == 1.0
    assert findings.figures["weighted_to_best_cap"].value == pytest.approx(2.0, rel=0.2)
    assert set(findings.figures) <= set(TARGETS["live-overload"])
    assert findings.figures["worst_loop_lag_p99_s"].value == worst_s


def test_five_candidates_run_at_most_three_at_a_time_for_the_given_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called: list[list[str]] = []
    caps = [f"static-cap:slots={slots},wait=0.5" for slots in (48, 56, 64)]
    monkeypatch.setattr(experiment, "run_together", together([0.001], called))
    monkeypatch.setattr(experiment, "_best_caps", lambda _: caps)
    of = runner()
    of.effort = Effort(seeds=1, seconds=4.0)
    findings = experiment.live_overload(of)
    assert called == [[experiment.OURS, *caps[:2]], [caps[2], experiment.ROUND_ROBIN]]
    assert set(findings.figures) == set(TARGETS["live-overload"])
    assert "20 s of warm-up and 4 s that count" in findings.how
