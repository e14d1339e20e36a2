"""Capacity of the load generator on one core: requests, pieces of streams, thousands of streams, and its lateness.

The capacity of a core is the work done / its CPU time. Lateness is judged at half of the wanted requests and pieces,
beside that of the machine itself.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from itertools import chain
from typing import Any

from loadtests import ROOT
from loadtests.experiments.findings import Findings, Grid, bare, span
from loadtests.experiments.runner import Runner
from loadtests.experiments.tester import server, tested
from loadtests.processes import Neighbours, on_cores, split_cores

REQUESTS_PER_S = 3000.0
CHUNKS_PER_S = 20000.0
TOKENS = 128
ROOM = 1.5
"""Factor on the wanted chunks, since not all streams are open in the first and the last seconds."""
STREAMS = 3000
SLOW_INTERVAL_S, SLOW_TOKENS = 0.5, 20
"""Rate of streams that last 10 s, so that enough of them are under way at once."""
SECONDS, QUICK_SECONDS, FULL_SECONDS = 5.0, 4.0, 15.0
LONGER = 4
RUNS, FULL_RUNS = 2, 3


def generator(runner: Runner) -> Findings:
    """Run six loads in turn, several times."""
    seconds, runs = (FULL_SECONDS, FULL_RUNS) if runner.effort.full else (SECONDS, RUNS)
    seconds, runs = (QUICK_SECONDS, 1) if runner.effort.quick else (seconds, runs)
    cores, neighbours = split_cores(), Neighbours()
    found: dict[str, list[dict[str, Any]]] = {}
    empty: list[float] = []
    upstream = "loadtests.bench.upstream", ["--ports", "1"]
    slowly = ["--interval", f"{SLOW_INTERVAL_S:g}"]
    with (
        server(*upstream, cores.proxy) as fast,
        server(upstream[0], [*upstream[1], *slowly], cores.proxy) as slow,
    ):
        for run in range(1, runs + 1):
            for load in _loads(seconds):
                runner.tell(f"run {run} of {runs}, {load.name}")
                target = f"http://127.0.0.1:{json.loads(slow if load.slow else fast)[0][0]}"
                common = ["--target", target, "--duration", f"{load.seconds:g}", "--warmup", "1", "--seed", f"{run}"]
                options = ["--workload", load.workload, "--rate", f"{load.rate:g}", "--no-probe", "--allow-late"]
                found.setdefault(load.name, []).append(tested([*common, *options, "--grace", "30"], cores.load))
            empty.append(_empty(seconds, run, cores.load))
    return _findings(found, empty, seconds, neighbours.share())


def _empty(seconds: float, seed: int, cores: frozenset[int] | None) -> float:
    """Measure the lateness of the clock alone."""
    command = [
        sys.executable,
        "-m",
        "loadtests.experiments.pacer",
        f"{REQUESTS_PER_S / 2:g}",
        f"{seconds:g}",
        f"{seed}",
    ]
    with on_cores(cores):
        return float(subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout)


@dataclass(frozen=True, slots=True)
class Load:
    """The traffic of one load, and its requests per second."""

    name: str
    workload: str
    rate: float
    seconds: float
    slow: bool = False
    """Whether tokens are SLOW_INTERVAL_S apart."""


def _loads(seconds: float) -> list[Load]:
    plain = "prompt_tokens=300,output_tokens=16,streamed=0%"
    streamed, streams = f"prompt_tokens=300,output_tokens={TOKENS}", ROOM * CHUNKS_PER_S / TOKENS
    lasts_s = SLOW_TOKENS * SLOW_INTERVAL_S
    long = f"prompt_tokens=300,output_tokens={SLOW_TOKENS}"
    return [
        Load(f"{REQUESTS_PER_S:g} requests/s", plain, REQUESTS_PER_S, seconds),
        Load(f"{REQUESTS_PER_S / 2:g} requests/s", plain, REQUESTS_PER_S / 2, seconds),
        Load(f"{CHUNKS_PER_S:g} chunks/s", streamed, streams, seconds),
        Load(f"{CHUNKS_PER_S / 2:g} chunks/s", streamed, streams / 2, seconds),
        Load(f"{REQUESTS_PER_S:g} requests/s, {LONGER} times as long", plain, REQUESTS_PER_S, LONGER * seconds),
        Load(f"{STREAMS} streams", long, ROOM * STREAMS / lasts_s, seconds + lasts_s, slow=True),
    ]


def _findings(
    found: dict[str, list[dict[str, Any]]], empty: list[float], seconds: float, others: float | None
) -> Findings:
    requests, half_requests, chunks, half_chunks, longer, streams = found.values()
    findings = Findings(tuple(range(1, len(requests) + 1)))
    findings.figures |= {
        "requests_per_core_s": span([_sent_per_s(of) / of["generator"]["cpu"] for of in requests]),
        "chunks_per_core_s": span([of["generator"]["chunks_per_s"] / of["generator"]["cpu"] for of in chunks]),
        "late_p99_s_half_requests": span([of["generator"]["late_p99_s"] for of in half_requests]),
        "late_p99_s_half_chunks": span([of["generator"]["late_p99_s"] for of in half_chunks]),
        "late_p99_s_nothing_sent": span(empty),
        "chunks_per_s": span([of["generator"]["chunks_per_s"] for of in chunks]),
        "streams_at_once": span([float(of["generator"]["most_under_way"]) for of in streams]),
        "late_p99_s_streams_at_once": span([of["generator"]["late_p99_s"] for of in streams]),
        f"memory_{LONGER}_times_as_long": span(
            [_memory(long) / _memory(short) for long, short in zip(longer, requests, strict=True)]
        ),
        "unanswered": bare(
            float(sum(of["totals"]["counted"] - of["totals"]["finished"] for of in chain(*found.values()))),
            len(requests),
        ),
    }
    rows = []
    for name, reports in found.items():
        for of in reports:
            made, totals = of["generator"], of["totals"]
            cells = [f"{totals['offered_per_s']:,.0f}", f"{made['chunks_per_s']:,.0f}", f"{made['cpu']:.2f}"]
            late = [f"{1e3 * made[f'late_{q}_s']:.2f}" for q in ("p50", "p99", "max")]
            rows.append([name, *cells, *late, f"{made['most_under_way']:,}", f"{_memory(of) / 2**20:,.0f}"])
    columns = ["", "requests/s", "chunks/s", "cores", "late p50, ms", "p99", "most", "under way at most", "memory, MiB"]
    findings.grids.append(Grid("Each run", columns, rows))
    told = "unknown" if others is None else f"{others:.0%}"
    findings.how = (
        f"{len(requests)} runs of each load, {seconds:g} s, in turn; intervals are from the least to the "
        f"most. Others used {told} of the machine's CPU meanwhile."
    )
    findings.raw |= {name: [of["generator"] for of in reports] for name, reports in found.items()}
    return findings


def _memory(report: dict[str, Any]) -> float:
    most: float = report["generator"]["most_memory_bytes"]
    return most


def _sent_per_s(report: dict[str, Any]) -> float:
    rate: float = report["totals"]["offered_per_s"]
    return rate
