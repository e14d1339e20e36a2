"""Does the simulator say what happens? Scenarios of the load tester, live and simulated, on the same requests.

Live is a gateway of its own, emulated replicas and clients over HTTP on one machine; simulated is the same controller,
the same model of an engine, in virtual time, with other draws of the gateway in each of the seeds. Latencies are those
of all that finished, and of each tier beside it: a percentile of all tiers together says little where some wait and
some do not. Where it lies between the two it moves with every request that is more of the one kind, while those of the
tiers stay. Goodput is of all that count. Left out are scenarios of what the simulator has not: rolling restarts,
reloads, answers that balloon.

What is simulated is the mean of the seeds, with what nine in ten of them lie between (of ten seeds: the lowest and the
highest): so much the gateway's own draws make of the same requests. A live run is one such draw. Where the seeds lie
far apart (a storm, a tier that is served what is left over) it may be as far from their mean, however good the
simulator is.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import fmean, median

from loadtests.experiments.findings import Chart, Findings, Grid, Line, bare
from loadtests.experiments.lab import Lab
from loadtests.live.start import Broken
from loadtests.quantiles import PERCENTILES, interval, off, rank
from loadtests.replay.columns import read_rows
from loadtests.replay.request import Outcome
from loadtests.report.run_file import read_run
from loadtests.scenarios.file import OURS, ScenarioFile
from loadtests.scenarios.load import load_scenario
from loadtests.scenarios.run import QUICK, Report, play_scenario
from loadtests.scenarios.simulated import Simulated, simulated

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
LONGER = {"overload": 5.0, "long-among-short": 2.0}
"""Multiples of their time. As scenarios they last long enough to see what happens; here the percentiles of what
finishes have to be known to 15%, and their p99 at all: in half a minute of the overload at 2.5x, 27 requests of the
tier that waits longest finished."""
TOLD = {True: "yes", False: "no", None: "too few"}
LEAST = 30
"""Requests of a tier that finished, live or simulated, for percentiles of them to be compared."""


@dataclass(frozen=True, slots=True)
class Pair:
    """TTFT (s) of what finished in one test, of all tiers or of one, in order: live, and in each simulated run."""

    name: str
    live: list[float]
    runs: list[list[float]]

    def off(self, figure: str) -> float:
        """How far the simulator is off, as a share of what came."""
        return off(*self.values(figure))

    def values(self, figure: str) -> tuple[float, float]:
        """Live, and the mean of the seeds."""
        q = PERCENTILES[figure]
        return rank(self.live, q), fmean(rank(run, q) for run in self.runs)

    def over_seeds(self, figure: str) -> tuple[float, float]:
        """Between what nine seeds in ten say: of so few as ten, between the least and the most."""
        said = sorted(rank(run, PERCENTILES[figure]) for run in self.runs)
        return rank(said, 0.05), rank(said, 0.95)

    @property
    def p99_overlaps(self) -> bool | None:
        """Whether the interval of the live p99 meets that of single seeds; None: too few finished.

        An interval of the mean of the seeds would shrink with their number, until no single run lies in it, and that
        from the lowest to the highest would grow.
        """
        low, high = interval(self.live, PERCENTILES["p99"])
        least, most = self.over_seeds("p99")
        return None if math.isinf(high) else low <= most and least <= high


@dataclass(frozen=True, slots=True)
class Test:
    """One test, live and simulated."""

    name: str
    report: Report
    whole: Pair
    by_tier: list[Pair]
    """None where there is one tier."""
    goodput: tuple[float, float]
    """Live, and the mean of the seeds."""


def simulated_live(lab: Lab) -> Findings:
    """Every scenario that both can do."""
    findings = Findings(lab.seeds)
    tests = [test for name in (QUICK_NAMES if lab.effort.quick else NAMES) for test in _tests(lab, name)]
    pairs = [test.whole for test in tests]
    by_tier = [pair for test in tests for pair in test.by_tier]
    findings.how = f"One live run of each test, {len(lab.seeds)} simulated ones."
    for figure in ("p50", "p95"):
        findings.figures[f"{figure}_most_off"] = bare(max(pair.off(figure) for pair in pairs), len(pairs))
        for called, of in (("of_tiers_off", median), ("of_tiers_most_off", max)):
            findings.figures[f"{figure}_{called}"] = bare(of([pair.off(figure) for pair in by_tier]), len(by_tier))
    findings.figures["goodput_most_off"] = bare(max(off(*test.goodput) for test in tests), len(tests))
    known = [overlaps for pair in pairs if (overlaps := pair.p99_overlaps) is not None]
    if known:
        findings.figures["p99_overlapping"] = bare(fmean(known), len(known))
    if len(known) < len(pairs):
        findings.notes.append(
            f"In {len(pairs) - len(known)} tests too few requests finished to know the interval of a p99 (some 480 are "
            f"needed): they stand as `too few`, and count neither way."
        )
    late = [test.name for test in tests if not test.report["trusted"]]
    findings.figures["generator_in_time"] = bare(1.0 - len(late) / len(tests), len(tests))
    findings.notes += [f"{name}: the generator was late, this test is void" for name in late]
    findings.grids += [
        _latencies("TTFT in ms", pairs),
        _latencies("TTFT in ms, by tier", by_tier),
        _goodput(tests),
    ]
    findings.charts.append(_chart([*pairs, *by_tier]))
    return findings


def _tests(lab: Lab, name: str) -> list[Test]:
    quick = lab.effort.quick
    part = QUICK if quick else 1.0
    scenario = load_scenario(name)
    ours = [of for of in scenario.contenders if of.kind == OURS]
    lasts = scenario.lasts * LONGER.get(name, 1.0)
    scenario = scenario.model_copy(update={"contenders": ours, "lasts": lasts})
    with tempfile.TemporaryDirectory(prefix="tailgate-simulated-live-") as folder:
        played = play_scenario(scenario, Path(folder), quick, lambda text: lab.tell(f"{name}: {text}"))
        if played.broken or played.interrupted:
            raise Broken("; ".join(played.broken.values()) or f"{name} was interrupted")
        found = []
        for (called, times), report in played.reports.items():
            of = next(one for one in ours if one.called == called)
            runs = lab.map(_simulated, [(scenario, of.called, times, part, seed) for seed in lab.seeds])
            test = called if len(scenario.sweep) < 2 else f"{called} {times:g}x"
            title = name + ("" if len(ours) == 1 else f", {called}") + (f" {times:g}x" if scenario.sweep else "")
            live = _ttft_s(Path(folder) / test.replace(" ", "-"), scenario.warmup * part)
            goodput = report["totals"]["goodput"], fmean(run.result.goodput for run in runs)
            found.append(Test(title, report, _whole(title, live, runs), list(_by_tier(title, live, runs)), goodput))
        return found


def _whole(title: str, live: Mapping[str, list[float]], runs: Sequence[Simulated]) -> Pair:
    everything, *told = (sorted(chain(*of.values())) for of in (live, *(run.ttft_s for run in runs)))
    return Pair(title, everything, told)


def _by_tier(title: str, live: Mapping[str, list[float]], runs: Sequence[Simulated]) -> Iterator[Pair]:
    for tier in runs[0].ttft_s if len(runs[0].ttft_s) > 1 else ():
        values, told = live.get(tier, []), [run.ttft_s[tier] for run in runs]
        if max(map(len, (values, *told))) >= LEAST:
            never = [math.inf]  # where nothing of it finished, on one side only
            yield Pair(f"{title}: {tier}", values or never, [run or never for run in told])


def _ttft_s(folder: Path, warmup_s: float) -> dict[str, list[float]]:
    """Of what finished in a live test, by tier, in order."""
    rows = read_rows(folder)
    kept = rows[(rows["due_s"] >= warmup_s) & (rows["outcome"] == Outcome.FINISHED)]
    of = {name: kept["ttft_s"][kept["tier"] == n] for n, name in enumerate(read_run(folder).tiers)}
    return {name: sorted(float(value) for value in values if value == value) for name, values in of.items()}


def _simulated(asked: tuple[ScenarioFile, str, float, float, int]) -> Simulated:
    scenario, called, times, part, seed = asked
    of = next(one for one in scenario.contenders if one.called == called)
    return simulated(scenario, of, times, part, seed)


def _latencies(title: str, pairs: list[Pair]) -> Grid:
    rows = []
    for pair in pairs:
        cells = []
        for figure in PERCENTILES:
            live, told, least, most = (f"{s * 1000:.0f}" for s in (*pair.values(figure), *pair.over_seeds(figure)))
            cells += [live, f"{told} ({least} to {most})"]
        rows.append([pair.name, f"{len(pair.live):,}", *cells, TOLD[pair.p99_overlaps]])
    columns = [f"{figure}, {which}" for figure in PERCENTILES for which in ("live", "simulated")]
    return Grid(title, ["", "finished", *columns, "p99 overlaps"], rows)


def _goodput(tests: list[Test]) -> Grid:
    rows = [[test.name, *(f"{value:.3f}" for value in test.goodput)] for test in tests]
    return Grid("Goodput", ["", "live", "simulated"], rows)


def _chart(pairs: list[Pair]) -> Chart:
    lines = [Line("the same", (10.0, 20000.0), (10.0, 20000.0), dashed=True)]
    for figure in PERCENTILES:
        ordered = sorted(values for pair in pairs if math.isfinite(sum(values := pair.values(figure))))
        lines.append(Line(figure, [live * 1000 for live, _ in ordered], [said * 1000 for _, said in ordered]))
    return Chart("simulated-live", "Time to first token", "live, ms", "simulated, ms", lines, log_x=True, log_y=True)
