"""What the load generator can do on one core: requests, pieces of streams, and how late it is at half of that.

The whole command, `python -m loadtests run`, against answers that cost next to nothing (those of the bench),
generator and answers on a core each where there are two. What a core can do is what was done over the CPU that it
took. How late the machine itself is, is measured beside it: the generator's clock at the rate of half the requests,
with nothing to send.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from loadtests.bench.process import Neighbours, on_cores, split_cores
from loadtests.experiments.findings import Findings, Grid, bare, span
from loadtests.experiments.lab import Lab
from loadtests.experiments.tester import ROOT, server, tested

REQUESTS_PER_S = 3000.0
CHUNKS_PER_S = 20000.0
TOKENS = 128
SECONDS, QUICK_SECONDS = 15.0, 4.0
RUNS = 3


def generator(lab: Lab) -> Findings:
    """Four loads, in turn, some times."""
    seconds, runs = (QUICK_SECONDS, 1) if lab.effort.quick else (SECONDS, RUNS)
    cores, neighbours = split_cores(), Neighbours()
    found: dict[str, list[dict[str, Any]]] = {}
    empty: list[float] = []
    with server("loadtests.bench.upstream", ["--ports", "1"], cores.proxy) as ports:
        target = f"http://127.0.0.1:{json.loads(ports)[0]}"
        for run in range(1, runs + 1):
            for name, options in _loads().items():
                lab.tell(f"run {run} of {runs}, {name}")
                common = ["--target", target, "--duration", f"{seconds:g}", "--warmup", "1", "--seed", f"{run}"]
                report = tested([*common, *options, "--no-probe", "--allow-late", "--grace", "10"], cores.load)
                found.setdefault(name, []).append(report)
            empty.append(_empty(seconds, run, cores.load))
    return _findings(found, empty, seconds, neighbours.share())


def _empty(seconds: float, seed: int, cores: frozenset[int] | None) -> float:
    """How late the clock alone is."""
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


def _loads() -> dict[str, list[str]]:
    streams = CHUNKS_PER_S / TOKENS
    plain = "prompt_tokens=300,output_tokens=16,streamed=0%"
    streamed = f"prompt_tokens=300,output_tokens={TOKENS}"
    return {
        f"{REQUESTS_PER_S:g} requests/s": ["--workload", plain, "--rate", f"{REQUESTS_PER_S:g}"],
        f"{REQUESTS_PER_S / 2:g} requests/s": ["--workload", plain, "--rate", f"{REQUESTS_PER_S / 2:g}"],
        f"{CHUNKS_PER_S:g} chunks/s": ["--workload", streamed, "--rate", f"{streams:g}"],
        f"{CHUNKS_PER_S / 2:g} chunks/s": ["--workload", streamed, "--rate", f"{streams / 2:g}"],
    }


def _findings(
    found: dict[str, list[dict[str, Any]]], empty: list[float], seconds: float, others: float | None
) -> Findings:
    requests, half_requests, chunks, half_chunks = found.values()
    findings = Findings(tuple(range(1, len(requests) + 1)))
    findings.figures |= {
        "requests_per_core_s": span([_sent_per_s(of) / of["generator"]["cpu"] for of in requests]),
        "chunks_per_core_s": span([of["generator"]["chunks_per_s"] / of["generator"]["cpu"] for of in chunks]),
        "late_p99_s_half_requests": span([of["generator"]["late_p99_s"] for of in half_requests]),
        "late_p99_s_half_chunks": span([of["generator"]["late_p99_s"] for of in half_chunks]),
        "late_p99_s_nothing_sent": span(empty),
        "unanswered": bare(
            float(sum(of["totals"]["counted"] - of["totals"]["finished"] for of in (*requests, *chunks))), len(requests)
        ),
    }
    rows = []
    for name, reports in found.items():
        for of in reports:
            made, totals = of["generator"], of["totals"]
            cells = [f"{totals['offered_per_s']:,.0f}", f"{made['chunks_per_s']:,.0f}", f"{made['cpu']:.2f}"]
            late = [f"{1e3 * made[f'late_{q}_s']:.2f}" for q in ("p50", "p99", "max")]
            rows.append([name, *cells, *late, f"{made['most_under_way']:,}"])
    columns = ["", "requests/s", "chunks/s", "cores", "late p50, ms", "p99", "most", "under way at most"]
    findings.grids.append(Grid("Each run", columns, rows))
    told = "unknown" if others is None else f"{others:.0%}"
    findings.how = (
        f"{len(requests)} runs of each load, {seconds:g} s, in turn; the ends of the intervals are the least and the "
        f"most of them. Others used {told} of the machine's CPU meanwhile."
    )
    findings.raw |= {name: [of["generator"] for of in reports] for name, reports in found.items()}
    return findings


def _sent_per_s(report: dict[str, Any]) -> float:
    rate: float = report["totals"]["offered_per_s"]
    return rate
