"""Does the simulator say what happens? Scenarios of the load tester, live and simulated, on the same requests.

Live is a gateway of its own, emulated replicas and clients over HTTP on one machine; simulated is the same controller,
the same model of an engine, in virtual time, with other draws of the gateway in each of the seeds. Latencies are those
of all that finished, and of each tier beside it: a percentile of all tiers together says little where some wait and
some do not. Where it lies between the two it moves with every request that is more of the one kind, while those of the
tiers stay. Goodput is of all that count. Left out are scenarios of what the simulator has not: rolling restarts,
reloads, answers that balloon.

HTTP takes its time from the gateway to an engine and back: so much is measured first, with requests one after the
other, and simulated. It is two or three milliseconds, and where there is a queue it costs a step: when an answer ends,
the engine has begun its next one before it is sent who takes the place.

What is simulated is the mean of the seeds, with what nine in ten of them lie between: so much the gateway's own draws
make of the same requests. A live run is one such draw, and where the seeds lie far apart (a storm, a tier that is
served what is left over) one alone says little: it may be as far from their mean, however good the simulator is. So a
test is played live as often as it takes for the mean of these to be known to half of what is allowed, as far as the
seeds say: who simulates decides how often, before anything is played. It is the means that are compared.
"""

from __future__ import annotations

import asyncio
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import fmean, median, stdev

from loadtests.experiments.findings import Chart, Findings, Grid, Line, bare
from loadtests.experiments.lab import Lab
from loadtests.live.start import Broken
from loadtests.quantiles import PERCENTILES, interval, off, rank
from loadtests.replay.columns import read_rows
from loadtests.replay.request import Outcome
from loadtests.report.run_file import read_run
from loadtests.scenarios.at_rest import on_the_way_s
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
LONGER = {"overload": 3.0, "long-among-short": 2.0}
"""Multiples of their time. As scenarios they last long enough to see what happens; here the percentiles of what
finishes have to be known, and their p99 at all: in half a minute of the overload at 2.5x, 27 requests of the tier that
waits longest finished."""
SEEDS = 4
"""Multiples of an experiment's seeds: the mean of those should not be what is known worst."""
KNOWN = 0.075
"""The standard error of the mean of the live runs, as a share: half of what p50 and p95 may be off by."""
MOST_RUNS = 10
AT_REST, QUICK_AT_REST = 300, 20
"""Requests that tell what HTTP takes."""
TOLD = {True: "yes", False: "no", None: "too few"}
LEAST = 30
"""Requests of a tier that finished, live or simulated, for percentiles of them to be compared."""
TtftS = Mapping[str, list[float]]
"""TTFT (s) of what finished in one run, by tier, in order."""


@dataclass(frozen=True, slots=True)
class Pair:
    """TTFT (s) of what finished in one test, of all tiers or of one, in order: in each live, each simulated run."""

    name: str
    live: list[list[float]]
    runs: list[list[float]]

    def off(self, figure: str) -> float:
        """How far the simulator is off, as a share of what came."""
        return off(*self.values(figure))

    def values(self, figure: str) -> tuple[float, float]:
        """The means: of what is live, and of the seeds."""
        live, told = (fmean(rank(run, PERCENTILES[figure]) for run in of) for of in (self.live, self.runs))
        return live, told

    def over_seeds(self, figure: str) -> tuple[float, float]:
        """Between what nine seeds in ten say: of ten or fewer, between the least and the most."""
        said = sorted(rank(run, PERCENTILES[figure]) for run in self.runs)
        return rank(said, 0.05), rank(said, 0.95)

    @property
    def p99_overlaps(self) -> bool | None:
        """Whether the interval of the p99 of all that is live meets that of single seeds; None: too few finished.

        An interval of the mean of the seeds would shrink with their number, until no single run lies in it, and that
        from the lowest to the highest would grow.
        """
        low, high = interval(sorted(chain(*self.live)), PERCENTILES["p99"])
        least, most = self.over_seeds("p99")
        return None if math.isinf(high) else low <= most and least <= high


@dataclass(frozen=True, slots=True)
class Test:
    """One test, live and simulated."""

    name: str
    late: int
    """Live runs in which the generator was."""
    whole: Pair
    by_tier: list[Pair]
    """None where there is one tier."""
    goodput: tuple[float, float]
    """The means, live and of the seeds."""


def simulated_live(lab: Lab) -> Findings:
    """Every scenario that both can do."""
    quick = lab.effort.quick
    seeds = range(1, SEEDS * len(lab.seeds) + 1)
    findings = Findings(tuple(seeds))
    scenarios = {name: _scenario(name) for name in (QUICK_NAMES if quick else NAMES)}
    first = next(iter(scenarios.values()))
    lab.tell("what HTTP takes at rest")
    way_s = asyncio.run(on_the_way_s(first, first.contenders[0], QUICK_AT_REST if quick else AT_REST))
    tests = [test for name, of in scenarios.items() for test in _tests(lab, name, of, seeds, way_s)]
    pairs = [test.whole for test in tests]
    by_tier = [pair for test in tests for pair in test.by_tier]
    findings.how = (
        f"Each test is played live 1 to {max(len(pair.live) for pair in pairs)} times, as the seeds ask for; "
        f"{len(seeds)} simulated ones of each, with {way_s * 1e3:.1f} ms of HTTP."
    )
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
    played = sum(len(pair.live) for pair in pairs)
    findings.figures["generator_in_time"] = bare(1.0 - sum(test.late for test in tests) / played, played)
    findings.notes += [
        f"{test.name}: the generator was late in {test.late} of {len(test.whole.live)} runs, this test is void"
        for test in tests
        if test.late
    ]
    findings.figures["on_the_way_s"] = bare(way_s, QUICK_AT_REST if quick else AT_REST)
    findings.grids += [
        _latencies("TTFT in ms", pairs),
        _latencies("TTFT in ms, by tier", by_tier),
        _goodput(tests),
    ]
    findings.charts.append(_chart([*pairs, *by_tier]))
    return findings


def _scenario(name: str) -> ScenarioFile:
    """With what both can do of it: our own gateway in front of the replicas."""
    of = load_scenario(name)
    ours = [one for one in of.contenders if one.kind == OURS]
    return of.model_copy(update={"contenders": ours, "lasts": of.lasts * LONGER.get(name, 1.0)})


def _tests(lab: Lab, name: str, scenario: ScenarioFile, seeds: Sequence[int], way_s: float) -> Iterator[Test]:
    for of in scenario.contenders:
        for times in scenario.sweep or (1.0,):
            title = name + ("" if len(scenario.contenders) == 1 else f", {of.called}")
            title += f" {times:g}x" if scenario.sweep else ""
            one = scenario.model_copy(update={"contenders": [of], "sweep": [times]})
            part = QUICK if lab.effort.quick else 1.0
            runs = lab.map(_simulated, [(one, part, seed, way_s) for seed in seeds])
            told = [run.ttft_s for run in runs]
            count = 1 if lab.effort.quick else _runs_needed(told)
            played = []
            for number in range(1, count + 1):
                lab.tell(f"{title}, live run {number} of {count}")
                played.append(_live(one, part, lambda text, title=title: lab.tell(f"{title}: {text}")))
            live = [ttft_s for _, ttft_s in played]
            late = sum(not report["trusted"] for report, _ in played)
            goodput = (
                fmean(report["totals"]["goodput"] for report, _ in played),
                fmean(run.result.goodput for run in runs),
            )
            yield Test(title, late, _whole(title, live, told), list(_by_tier(title, live, told)), goodput)


def _runs_needed(told: Sequence[TtftS]) -> int:
    """Live runs until the standard errors of their mean p50 and p95 are KNOWN, if these vary as those of the seeds."""
    runs = _whole("", [], told).runs
    of_each = [[rank(run, PERCENTILES[figure]) for run in runs] for figure in ("p50", "p95")]
    varies = max(stdev(values) / fmean(values) for values in of_each)
    return min(MOST_RUNS, max(1, math.ceil((varies / KNOWN) ** 2)))


def _live(scenario: ScenarioFile, part: float, tell: Callable[[str], None]) -> tuple[Report, TtftS]:
    """A scenario of one test, once."""
    with tempfile.TemporaryDirectory(prefix="tailgate-simulated-live-") as out:
        played = play_scenario(scenario, Path(out), part < 1.0, tell)
        if played.broken or played.interrupted:
            raise Broken("; ".join(played.broken.values()) or "it was interrupted")
        ((called, _), report), *_ = played.reports.items()
        return report, _ttft_s(Path(out) / called.replace(" ", "-"), scenario.warmup * part)


def _whole(title: str, live: Sequence[TtftS], told: Sequence[TtftS]) -> Pair:
    return Pair(title, *([sorted(chain(*run.values())) for run in of] for of in (live, told)))


def _by_tier(title: str, live: Sequence[TtftS], told: Sequence[TtftS]) -> Iterator[Pair]:
    for tier in told[0] if len(told[0]) > 1 else ():
        runs = [[run.get(tier, []) for run in of] for of in (live, told)]
        if max(map(len, chain(*runs))) >= LEAST:
            never = [math.inf]  # where nothing of it finished
            yield Pair(f"{title}: {tier}", *([run or never for run in of] for of in runs))


def _ttft_s(folder: Path, warmup_s: float) -> TtftS:
    rows = read_rows(folder)
    kept = rows[(rows["due_s"] >= warmup_s) & (rows["outcome"] == Outcome.FINISHED)]
    of = {name: kept["ttft_s"][kept["tier"] == n] for n, name in enumerate(read_run(folder).tiers)}
    return {name: sorted(float(value) for value in values if value == value) for name, values in of.items()}


def _simulated(asked: tuple[ScenarioFile, float, int, float]) -> Simulated:
    scenario, part, seed, way_s = asked
    return simulated(scenario, scenario.contenders[0], scenario.sweep[0], part, seed, way_s)


def _latencies(title: str, pairs: list[Pair]) -> Grid:
    rows = []
    for pair in pairs:
        cells = []
        for figure in PERCENTILES:
            live, told, least, most = (f"{s * 1000:.0f}" for s in (*pair.values(figure), *pair.over_seeds(figure)))
            cells += [live, f"{told} ({least} to {most})"]
        finished = f"{fmean(map(len, pair.live)):,.0f}"
        rows.append([pair.name, f"{len(pair.live)}", finished, *cells, TOLD[pair.p99_overlaps]])
    columns = [f"{figure}, {which}" for figure in PERCENTILES for which in ("live", "simulated")]
    return Grid(title, ["", "live runs", "finished in each", *columns, "p99 overlaps"], rows)


def _goodput(tests: list[Test]) -> Grid:
    rows = [[test.name, *(f"{value:.3f}" for value in test.goodput)] for test in tests]
    return Grid("Goodput", ["", "live", "simulated"], rows)


def _chart(pairs: list[Pair]) -> Chart:
    lines = [Line("the same", (10.0, 20000.0), (10.0, 20000.0), dashed=True)]
    for figure in PERCENTILES:
        ordered = sorted(values for pair in pairs if math.isfinite(sum(values := pair.values(figure))))
        lines.append(Line(figure, [live * 1000 for live, _ in ordered], [said * 1000 for _, said in ordered]))
    return Chart("simulated-live", "Time to first token", "live, ms", "simulated, ms", lines, log_x=True, log_y=True)
