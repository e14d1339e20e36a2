"""Does the simulator say what happens? Scenarios of the load tester, live and simulated, on the same requests.

Live is a gateway of its own, emulated replicas and clients over HTTP on one machine; simulated is the same controller,
the same model of an engine, in virtual time, with other draws of the gateway in each of the seeds. Latencies are those
of all finished requests together, goodput is over all that count. Left out are scenarios of what the simulator has not:
rolling restarts, reloads, answers that balloon.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from loadtests.experiments.findings import Chart, Findings, Grid, Line, bare
from loadtests.experiments.lab import Lab
from loadtests.quantiles import interval, rank
from loadtests.replay.columns import read_rows
from loadtests.replay.request import Outcome
from loadtests.scenarios.file import ScenarioFile, load_scenario
from loadtests.scenarios.run import QUICK, Report, play_scenario
from loadtests.scenarios.simulated import Simulated, simulated
from loadtests.scenarios.stage import OURS

NAMES = (
    "overload",
    "free-flood",
    "long-among-short",
    "stragglers",
    "replica-killed",
    "retry-storm",
    "cold-start",
    "burst-2x",
)
QUICK_NAMES = ("overload",)
PERCENTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
MOST_LATE_S = 0.02


@dataclass(frozen=True, slots=True)
class Pair:
    """One test, live and simulated. Seconds of real time."""

    name: str
    report: Report
    ttft_s: list[float]
    """Live, in order."""
    runs: list[Simulated]

    def off(self, figure: str) -> float:
        """How far the simulator is off, as a share of what came."""
        live, simulated_ = self.values(figure)
        return abs(simulated_ / live - 1.0)

    def values(self, figure: str) -> tuple[float, float]:
        """Live, and the mean of the seeds."""
        if figure == "goodput":
            return self.report["totals"]["goodput"], fmean(run.result.goodput for run in self.runs)
        q = PERCENTILES[figure]
        return rank(self.ttft_s, q), fmean(rank(run.ttft_s, q) for run in self.runs)

    @property
    def p99_overlaps(self) -> bool:
        """Whether the interval of the live p99 meets that of any seed."""
        low, high = interval(self.ttft_s, 0.99)
        return any(low <= top and bottom <= high for bottom, top in (interval(run.ttft_s, 0.99) for run in self.runs))


def simulated_live(lab: Lab) -> Findings:
    """Every scenario that both can do."""
    findings = Findings(lab.seeds)
    pairs = [pair for name in (QUICK_NAMES if lab.effort.quick else NAMES) for pair in _pairs(lab, name)]
    findings.how = f"One live run of each test, {len(lab.seeds)} simulated ones."
    for figure in ("p50", "p95", "goodput"):
        worst = max(pairs, key=lambda pair: pair.off(figure))
        findings.figures[f"{figure}_most_off"] = bare(worst.off(figure), len(pairs))
    findings.figures["p99_overlapping"] = bare(fmean(pair.p99_overlaps for pair in pairs), len(pairs))
    trusted = [pair.report["generator"]["late_p99_s"] <= MOST_LATE_S for pair in pairs]
    findings.figures["generator_in_time"] = bare(fmean(trusted), len(pairs))
    findings.grids.append(_grid(pairs))
    findings.charts.append(_chart(pairs))
    return findings


def _pairs(lab: Lab, name: str) -> list[Pair]:
    quick = lab.effort.quick
    part = QUICK if quick else 1.0
    scenario = load_scenario(name)
    ours = [of for of in scenario.contenders if of.kind == OURS]
    scenario = scenario.model_copy(update={"contenders": ours})
    with tempfile.TemporaryDirectory(prefix="tailgate-simulated-live-") as folder:
        played = play_scenario(scenario, Path(folder), quick, lambda text: lab.tell(f"{name}: {text}"))
        found = []
        for (called, times), report in played.reports.items():
            of = next(one for one in ours if one.called == called)
            runs = lab.map(_simulated, [(scenario, of.called, times, part, seed) for seed in lab.seeds])
            test = called if len(scenario.sweep) < 2 else f"{called} {times:g}x"
            rows = read_rows(Path(folder) / test.replace(" ", "-"))
            kept = rows[(rows["due_s"] >= scenario.warmup * part) & (rows["outcome"] == Outcome.FINISHED)]
            title = name + ("" if len(ours) == 1 else f", {called}") + (f" {times:g}x" if scenario.sweep else "")
            found.append(Pair(title, report, sorted(float(v) for v in kept["ttft_s"] if v == v), runs))
        return found


def _simulated(asked: tuple[ScenarioFile, str, float, float, int]) -> Simulated:
    scenario, called, times, part, seed = asked
    of = next(one for one in scenario.contenders if one.called == called)
    return simulated(scenario, of, times, part, seed)


def _grid(pairs: list[Pair]) -> Grid:
    rows = []
    for pair in pairs:
        cells = []
        for figure in PERCENTILES:
            cells += [f"{value * 1000:.0f}" for value in pair.values(figure)]
        rows.append(
            [
                pair.name,
                *cells,
                *(f"{value:.3f}" for value in pair.values("goodput")),
                "yes" if pair.p99_overlaps else "no",
            ]
        )
    columns = ["", *(f"{figure}, {which}" for figure in PERCENTILES for which in ("live", "simulated"))]
    return Grid("TTFT in ms, and goodput", [*columns, "goodput, live", "simulated", "p99 overlaps"], rows)


def _chart(pairs: list[Pair]) -> Chart:
    lines = [Line("the same", (10.0, 20000.0), (10.0, 20000.0), dashed=True)]
    for figure in PERCENTILES:
        ordered = sorted(pair.values(figure) for pair in pairs)
        lines.append(Line(figure, [live * 1000 for live, _ in ordered], [said * 1000 for _, said in ordered]))
    return Chart("simulated-live", "Time to first token", "live, ms", "simulated, ms", lines, log_x=True, log_y=True)
