"""Interactive TTFT beside batch backlogs of several sizes.

The benchmark of `batch` on `llama3-8b-a100`: 15 interactive requests/s on two replicas, and up to 3,000 batch requests
at once. The p95 covers answers; `unanswered` is the share that was refused or timed out. A public benchmark shows 76 ms
alone, and 320 to 1,668 ms beside a backlog. The static cap serves tiers in strict order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gateway.core.results import Outcome
from gateway.sim.analysis.report import Interval
from gateway.sim.engine.profiles import ENGINES
from loadtests.experiments.batch import FIRST, INTERACTIVE, JOBS, Benchmark, served
from loadtests.experiments.findings import Chart, Findings, Grid, line, span
from loadtests.experiments.runner import Runner
from loadtests.quantiles import rank

RATE_PER_S = 15.0
SECONDS = 180.0
OURS, ROUND_ROBIN = "tailgate", "round robin"
BACKLOGS = (0, 300, 900, 1800, 3000)
SERVERS = {
    OURS: "",
    "static cap of 32": "static-cap-tiers:slots=32,wait=0.5",
    ROUND_ROBIN: "round-robin",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """A server beside a backlog, with one seed."""

    server: str
    backlog: int
    seed: int
    seconds: float


def tail_of(cell: Cell) -> tuple[float, float]:
    """The p95 of the interactive TTFT in milliseconds, of answers, and the share of all without an answer."""
    of = replace(Benchmark(ENGINES[FIRST]), job_requests=cell.backlog // JOBS)
    arrivals = [*of.interactive(cell.seed, RATE_PER_S, RATE_PER_S, cell.seconds), *of.jobs()]
    arrivals.sort(key=lambda arrival: arrival.at)
    records = [r for r in served(of, arrivals, cell.seed, SERVERS[cell.server]) if r.request.tier.name == INTERACTIVE]
    answered = sorted(r.ttft_s or 0.0 for r in records if r.outcome is Outcome.OK)
    return 1e3 * rank(answered, 0.95), 1 - len(answered) / len(records)


def backlog(runner: Runner) -> Findings:
    """Each server beside each backlog."""
    quick = runner.effort.quick
    seeds, sizes, seconds = ((1,), BACKLOGS[:2], 30.0) if quick else ((1, 2), BACKLOGS, SECONDS)
    cells = [Cell(server, size, seed, seconds) for server in SERVERS for size in sizes for seed in seeds]
    found = dict(zip(cells, runner.map(tail_of, cells), strict=True))

    def over_seeds(server: str, size: int, which: int) -> Interval:
        return span([found[Cell(server, size, seed, seconds)][which] for seed in seeds])

    ms = {server: [over_seeds(server, size, 0) for size in sizes] for server in SERVERS}
    lost = {server: [over_seeds(server, size, 1) for size in sizes] for server in SERVERS}
    findings = Findings(seeds, how=f"{len(seeds)} seeds of {seconds:g} s.")
    for name, server in (("", OURS), ("round_robin_", ROUND_ROBIN)):
        findings.figures[f"{name}alone_ms"] = ms[server][0]
        findings.figures[f"{name}beside_ms"] = ms[server][-1]
    findings.figures["beside_unanswered"] = lost[OURS][-1]
    rows = [
        [f"{size:,}", *(f"{ms[server][n].value:.0f} / {lost[server][n].value:.1%}" for server in SERVERS)]
        for n, size in enumerate(sizes)
    ]
    findings.grids.append(Grid("Interactive TTFT p95 in ms / share without an answer", ["backlog", *SERVERS], rows))
    lines = [line(server, list(sizes), values, bold=server == OURS) for server, values in ms.items()]
    title = "Interactive TTFT p95 beside a batch backlog, ms"
    findings.charts.append(Chart("backlog", title, "batch requests sent at once", "ms", lines, log_y=True))
    return findings
