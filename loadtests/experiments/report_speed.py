"""The time to make the report of a million requests.

The requests are arrivals of the main workload with drawn latencies. The whole command, `tailgate load report`,
runs with a policy's objectives.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import perf_counter

from gateway.sim.workload.arrivals import Arrival
from loadtests import ROOT
from loadtests.experiments.findings import Findings, Grid, span
from loadtests.experiments.runner import SETUP, Runner
from loadtests.experiments.tester import Failed
from loadtests.processes import Neighbours
from loadtests.replay.columns import FLUSH_ROWS, Columns
from loadtests.replay.play import Played
from loadtests.replay.request import Outcome, Request
from loadtests.report.run_file import About, write_run

REQUESTS, QUICK_REQUESTS = 1_000_000, 50_000
RATE = 500.0
REPLICAS = 16
SHED = 0.1
RUNS, QUICK_RUNS, FULL_RUNS = 3, 1, 5


def report_speed(runner: Runner) -> Findings:
    """Several runs on the same rows."""
    rows, runs = REQUESTS, FULL_RUNS if runner.effort.full else RUNS
    rows, runs = (QUICK_REQUESTS, QUICK_RUNS) if runner.effort.quick else (rows, runs)
    neighbours = Neighbours()
    taken: list[float] = []
    with TemporaryDirectory(prefix="tailgate-report-") as name:
        folder = Path(name)
        _write(folder, rows, runner)
        for run in range(1, runs + 1):
            runner.tell(f"run {run} of {runs}")
            taken.append(_seconds(folder))
        page = (folder / "report.html").stat().st_size
    findings = Findings(tuple(range(1, runs + 1)))
    findings.figures["report_s"] = span(taken)
    findings.grids.append(Grid("Each run", ["", "seconds"], [[f"{n}", f"{s:.2f}"] for n, s in enumerate(taken, 1)]))
    others = neighbours.share()
    told = "unknown" if others is None else f"{others:.0%}"
    findings.how = (
        f"{rows:,} requests, {runs} runs; intervals are from the least to the most. The report's HTML page is "
        f"{page / 1024:,.0f} KiB. Others used {told} of the machine's CPU meanwhile."
    )
    findings.raw["report_s"] = taken
    return findings


def _seconds(folder: Path) -> float:
    """Run the whole command. Raises Failed."""
    command = [sys.executable, "-m", "loadtests", "report", f"{folder}", "--policy", f"{SETUP / 'policy.yaml'}"]
    began = perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    took = perf_counter() - began
    if done.returncode:
        raise Failed(f"the report exited with {done.returncode}: {done.stderr.strip()}")
    return took


def _write(folder: Path, rows: int, runner: Runner) -> None:
    """Write the files of a load test of this many requests."""
    seconds = rows / RATE
    workload = replace(runner.workload("main").at_rate(RATE), duration_s=2 * seconds)
    columns, random = Columns(folder), Random(1)
    for number, arrival in enumerate(islice(workload.arrivals(1), rows)):
        made = _drawn(number, arrival, random)
        if made.chunks > 1:
            columns.gap(made, made.longest_gap_s, made.chunks - 1)
        columns.ended(made)
        if number % (16 * FLUSH_ROWS) == 0:
            runner.tell(f"{number:,} of {rows:,} rows")
    columns.close()
    about = About("http://127.0.0.1:8080", "main.yaml", 1, "2026-01-01T00:00:00+00:00", seconds, 0.0, 0.01, "cap")
    played = Played(sent=rows, ended=rows, sending_s=seconds, seconds=seconds)
    write_run(folder, about, played, columns)


def _drawn(number: int, arrival: Arrival, random: Random) -> Request:
    """An answer or a refusal, with latencies that spread as those of engines do."""
    late_s = random.expovariate(2000.0)
    made = Request(number, arrival, arrival.at + late_s, arrival.at + late_s)
    if random.random() < SHED:
        made.outcome, made.status = Outcome.SHED, 429
        made.reason, made.retry_after_s = random.choice(("slo-predicted", "queue-full", "tier-limit")), 2.0
        made.ended_s = made.sent_s + 0.001
        return made
    made.outcome, made.status, made.served_tier = Outcome.FINISHED, 200, arrival.tier
    made.replica = f"r{random.randrange(REPLICAS)}"
    made.queue_s = random.expovariate(50.0)
    made.first_s = made.sent_s + made.queue_s + random.lognormvariate(-2.0, 0.8)
    made.output_tokens = made.chunks = max(1, arrival.output_tokens)
    made.prompt_tokens = arrival.prompt_tokens
    made.last_s = made.ended_s = made.first_s + (made.chunks - 1) * random.lognormvariate(-4.0, 0.3)
    made.longest_gap_s = random.lognormvariate(-3.5, 0.5)
    return made
