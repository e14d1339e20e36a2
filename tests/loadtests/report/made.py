"""Invented load tests: requests written like those of a real test."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gateway.core.estimators.histograms import LogHistogram
from gateway.core.policy import Policy
from gateway.observe.metrics.lag import EDGES
from gateway.policy.load import load_text
from gateway.sim.workload.arrivals import Arrival
from loadtests.replay.columns import Columns
from loadtests.replay.play import Played
from loadtests.replay.request import Outcome, Request
from loadtests.report.run_file import About, write_run

POLICY = """
apiVersion: tailgate/v1
kind: Policy
pools:
  main: {replicas: [http://127.0.0.1:8101], slots: 8}
models:
  m: {pools: [main]}
tiers:
  gold: {priority: 0, weight: 4, slo: {ttft: {p50: 200ms, p99: 1s}, tpot: {p99: 100ms}}}
  free: {priority: 1, slo: {e2e: {p95: 10s, up_to_tokens: 100}}}
defaults: {tier: free}
"""
SECONDS = 100.0


def policy() -> Policy:
    return load_text(POLICY, "policy.yaml")


def answered(
    at: float, tier: str = "gold", *, ttft_s: float = 0.1, tpot_s: float = 0.02, tokens: int = 11, late_s: float = 0.001
) -> Request:
    """A streamed answer, timed from when it was due."""
    made = Request(0, Arrival(at, tier, f"{tier}-1", "m", 50, tokens), sent_s=at + late_s)
    made.first_s = at + ttft_s
    made.last_s = made.ended_s = made.first_s + tpot_s * (tokens - 1)
    made.outcome, made.status, made.chunks = Outcome.FINISHED, 200, tokens
    made.output_tokens, made.prompt_tokens, made.served_tier, made.replica = tokens, 50, tier, "r1"
    made.queue_s = 0.005
    return made


def refused(
    at: float, tier: str = "gold", outcome: Outcome = Outcome.SHED, reason: str = "queue-full", status: int = 429
) -> Request:
    made = Request(0, Arrival(at, tier, f"{tier}-1", "m", 50, 11), sent_s=at + 0.001, ended_s=at + 0.01)
    made.outcome, made.reason, made.status = outcome, reason, status
    made.retry_after_s = 2.0 if status in (429, 503) else None
    return made


def written(
    folder: Path, requests: Iterable[Request], waits: Mapping[float, int] = MappingProxyType({}), **about: Any
) -> Path:
    """Write the files of a load test of SECONDS, or of `seconds`. `waits`: counts of waits on its loop."""
    folder.mkdir(parents=True, exist_ok=True)
    columns = Columns(folder, float(about.get("warmup_s", 0.0)))
    for number, request in enumerate(requests):
        request.number = number
        for _ in range(request.chunks - 1):
            columns.gap(request, 0.02, 1)
        columns.ended(request)
    columns.close()
    interrupted = bool(about.pop("interrupted", False))
    gave_up = bool(about.pop("gave_up", False))
    seconds = float(about.pop("seconds", SECONDS))
    played = Played(sent=columns.rows, ended=columns.rows, sending_s=seconds, seconds=seconds, interrupted=interrupted)
    played.gave_up = gave_up
    lag = LogHistogram(EDGES)
    for wait_s, count in waits.items():
        lag.add(wait_s, count)
    played.lag = lag.counts
    asked = {
        "target": "http://127.0.0.1:8080",
        "traffic": "made up",
        "seed": 1,
        "started_at": "2026-01-01T00:00:00+00:00",
        "planned_s": SECONDS,
        "warmup_s": 0.0,
        "max_late_s": 0.01,
        "length": "cap",
        "policy": "policy.yaml",
    }
    write_run(folder, About(**{**asked, **about}), played, columns)
    return folder
