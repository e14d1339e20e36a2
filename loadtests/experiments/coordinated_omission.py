"""Coordinated omission: the same server, tested by an open loop and by a closed one.

The server answers in 5 ms at any load, and stalls for one second of every ten. A tenth of all requests is due in a
stall, and waits up to one second. So one in a hundred waits more than .9 s: the p99. A closed loop of eight clients has
only eight requests in each stall, so its p99 shows none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from loadtests.experiments.findings import Chart, Findings, Grid, Line, bare, span
from loadtests.experiments.runner import Runner
from loadtests.experiments.staller import answered_at
from loadtests.experiments.tester import server, tested
from loadtests.processes import split_cores

RATE = 1000.0
CLIENTS = 8
SERVICE_S, STALL_S, EVERY_S = 0.005, 1.0, 10.0
SECONDS, FULL_SECONDS = 20.0, 60.0
RUNS, FULL_RUNS = 2, 3
QUANTILES = ("p50", "p90", "p99", "max")


@dataclass(frozen=True, slots=True)
class _Pair:
    """One run of each loop."""

    opened: dict[str, Any]
    closed: dict[str, Any]


def coordinated_omission(runner: Runner) -> Findings:
    """Run both loops in turn, against one server."""
    seconds, runs = (FULL_SECONDS, FULL_RUNS) if runner.effort.full else (SECONDS, 1 if runner.effort.quick else RUNS)
    cores = split_cores()
    options = ["--service", f"{SERVICE_S}", "--stall", f"{STALL_S}", "--every", f"{EVERY_S}"]
    pairs = []
    with server("loadtests.experiments.staller", options, cores.proxy) as port:
        target = ["--target", f"http://127.0.0.1:{port}", "--workload", "prompt_tokens=10,output_tokens=1,streamed=0%"]
        target += ["--duration", f"{seconds:g}", "--no-probe", "--max-late", "50", "--allow-late"]
        for seed in range(1, runs + 1):
            runner.tell(f"run {seed} of {runs}, open loop")
            opened = tested([*target, "--seed", f"{seed}", "--rate", f"{RATE:g}"], cores.load)
            runner.tell(f"run {seed} of {runs}, closed loop")
            closed = tested([*target, "--seed", f"{seed}", "--closed-loop", f"{CLIENTS}"], cores.load)
            pairs.append(_Pair(opened, closed))
    return _findings(pairs, seconds)


def _findings(pairs: list[_Pair], seconds: float) -> Findings:
    findings = Findings(tuple(range(1, len(pairs) + 1)))
    opened, closed = [pair.opened for pair in pairs], [pair.closed for pair in pairs]
    exact = _exact_p99(RATE, seconds)
    findings.figures |= {
        "open_p99_s": span([_p(report, "p99") for report in opened]),
        "open_p99_off": span([abs(_p(report, "p99") / exact - 1.0) for report in opened]),
        "closed_p99_s": span([_p(report, "p99") for report in closed]),
        "open_p50_s": span([_p(report, "p50") for report in opened]),
        "closed_p50_s": span([_p(report, "p50") for report in closed]),
        "hidden_factor": span([_p(pair.opened, "p99") / _p(pair.closed, "p99") for pair in pairs]),
        "worst_late_p99_s": bare(max(report["generator"]["late_p99_s"] for report in opened), len(opened)),
    }
    names = {"open loop": opened[-1], "closed loop": closed[-1]}
    rows = [
        [name, f"{report['totals']['finished']:,}", *(f"{1e3 * _p(report, q):,.1f}" for q in QUANTILES)]
        for name, report in names.items()
    ]
    columns = ["", "requests", "p50, ms", "p90", "p99", "most"]
    findings.grids.append(Grid("Latency from when a request was due, the last run of each", columns, rows))
    lines = []
    for name, report in names.items():
        curve = report["curves"]["default"]["e2e"]
        lines.append(Line(name, curve["shares"], curve["seconds"], bold=name == "open loop"))
    title = "The same server, stalling a tenth of the time: what each tester says"
    findings.charts.append(
        Chart("coordinated-omission", title, "share of requests", "latency, s", lines, log_y=True, nines=True)
    )
    findings.how = (
        f"{len(pairs)} runs of each in turn, {seconds:g} s, {RATE:g} requests/s open loop (Poisson) and {CLIENTS} "
        "clients closed loop; intervals are from the least to the most. The exact p99 of requests "
        f"that come evenly is {exact:.3f} s."
    )
    findings.raw |= {
        name: {"latencies": report["totals"]["latencies"]["e2e"], "generator": report["generator"]}
        for name, report in names.items()
    }
    return findings


def _exact_p99(rate: float, seconds: float) -> float:
    """The exact p99 of evenly spread requests, by the rule of the server."""
    count = int(rate * seconds)
    waits = sorted(answered_at(n / rate, SERVICE_S, STALL_S, EVERY_S) - n / rate for n in range(count))
    return waits[int(0.99 * count)]


def _p(report: dict[str, Any], name: str) -> float:
    value: float = report["totals"]["latencies"]["e2e"][name]
    return value
