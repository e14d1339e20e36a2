"""Is the simulator right? Scenarios of the load tester, live and simulated, on the same requests.

Live is a gateway, emulated replicas and clients over HTTP on one machine. The simulation has the same controller and
model of an engine, in virtual time. The measured time of HTTP is put between the gateway and the engine.

A simulated figure is the mean of the seeds, with the interval that holds nine in ten of them. A live run is like one
more seed. If seeds are compared with each other, a share `missed_by_chance` of the comparisons misses a p50, p95 or
p99.
"""

from __future__ import annotations

import asyncio
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from pathlib import Path
from random import Random
from statistics import fmean, median

from gateway.cli.output import counted
from gateway.sim.run.processes import processes
from loadtests.children import end_by_sigterm
from loadtests.experiments.findings import Chart, Findings, Grid, Line, bare
from loadtests.experiments.pairs import KNOWN, OFF_AT_MOST, Pair, TtftS, by_tier, runs_needed, varies, whole
from loadtests.experiments.runner import Runner
from loadtests.live.start import Broken
from loadtests.quantiles import PERCENTILES, off, rank
from loadtests.replay.columns import read_rows
from loadtests.replay.request import Outcome
from loadtests.report.run_file import read_run
from loadtests.scenarios.file import OURS, ScenarioFile
from loadtests.scenarios.load import load_scenario
from loadtests.scenarios.on_the_way import ways_s
from loadtests.scenarios.run import QUICK, Report, play_scenario
from loadtests.scenarios.simulated import Simulated, simulated

NAMES = (
    "overload",
    "free-flood",
    "long-among-short",
    "stragglers",
    "replica-killed",
    "ballooning",
    "retry-storm",
    "cold-start",
    "burst-2x",
)
QUICK_NAMES = ("overload",)
LONGER = {"overload": 1.5}
"""Factors on the duration of scenarios. A scenario lasts long enough to show its effect; here the percentiles of
finished requests have to be known, too. In half a minute of the overload at 2.5x, only 27 requests of the tier that
waits longest finish."""
SEEDS = 4
"""Factor on the experiment's seeds, so that the mean of the seeds is known better than the live figures."""
MAX_RUNS, FULL_MAX_RUNS = 1, 20
AT_ONCE = 5
"""Tests that are played at the same time."""
MAX_AGAIN = 3
"""Spare runs of a test, to replace those that are left out."""
CHANCES = 100
ALONE, QUICK_ALONE = 300, 20
"""Number of requests, sent one after the other, that measure the spread of the ways."""
BESIDE, QUICK_BESIDE = 0.5, 0.1
"""Part of a scenario's time in which its traffic measures the ways beside other streams."""
TOLD = {True: "yes", False: "no", None: "too few"}


OneRun = tuple[Report, TtftS]
"""The report of one live run, and the latencies of its finished requests."""


@dataclass(slots=True)
class Live:
    """The live runs of a test, and those that are left out, with the reason."""

    kept: list[OneRun] = field(default_factory=list)
    late: int = 0
    """Runs in which the generator was late."""
    broken: list[str] = field(default_factory=list)
    """Errors of the runs that broke off."""

    @property
    def played(self) -> int:
        """Number of live runs, kept and left out."""
        return len(self.kept) + self.late + len(self.broken)


@dataclass(frozen=True)
class Test:
    """One test, live and simulated."""

    name: str
    spread: float
    """Relative standard deviation of the seeds."""
    needed: int
    """Number of live runs that this spread requires."""
    live: Live
    told: list[Simulated]

    @cached_property
    def whole(self) -> Pair:
        """The pair of all tiers together."""
        return whole(self.name, *self._ttft_s)

    @cached_property
    def by_tier(self) -> list[Pair]:
        """A pair for each tier; none if there is only one tier."""
        return list(by_tier(self.name, *self._ttft_s))

    @property
    def goodput(self) -> tuple[float, float]:
        """The means of the live runs and of the seeds."""
        kept = [report["totals"]["goodput"] for report, _ in self.live.kept]
        return fmean(kept), fmean(run.goodput for run in self.told)

    @property
    def notes(self) -> Iterator[str]:
        """Warnings about this test."""
        live, there = self.live, len(self.live.kept)
        if 0 < there < self.needed:
            yield f"{self.name}: mean ±{self.spread / math.sqrt(there):.1%}; ±{KNOWN:.0%} needs {self.needed} live runs"
        if live.late and there:
            yield f"{self.name}: {live.late} of {live.played} runs are left out, the generator was late in them"
        elif live.late:
            of_them = f"{'each' if live.late == live.played else live.late} of {counted(live.played, 'run')}"
            yield f"{self.name} could not be played: the generator was late in {of_them}"
        if live.broken:
            what = self.name if there else f"{self.name} could not be played"
            why = live.broken[-1].splitlines()[0]
            yield f"{what}: {len(live.broken)} of {counted(live.played, 'run')} broke off, the last with: {why}"

    @property
    def _ttft_s(self) -> tuple[list[TtftS], list[TtftS]]:
        return [ttft_s for _, ttft_s in self.live.kept], [run.ttft_s for run in self.told]


def simulated_live(runner: Runner) -> Findings:
    """Run every scenario that can be played live and simulated."""
    quick = runner.effort.quick
    seeds = range(1, SEEDS * len(runner.seeds) + 1)
    findings = Findings(tuple(seeds))
    scenarios = {name: _scenario(name) for name in (QUICK_NAMES if quick else NAMES)}
    first = next(iter(scenarios.values()))
    runner.tell("what HTTP takes")
    measured = (QUICK_ALONE, QUICK_BESIDE) if quick else (ALONE, BESIDE)
    on_the_way_s = asyncio.run(ways_s(first, first.contenders[0], *measured))
    mean_s, most_s = fmean(on_the_way_s), rank(on_the_way_s, 0.95)
    asked = [test for name, of in scenarios.items() for test in _tests(name, of)]
    every = _played(runner, asked, seeds, on_the_way_s)
    tests = [test for test in every if test.live.kept]
    if not tests:
        raise Broken("\n".join(text for test in every for text in (*test.notes, *test.live.broken)))
    findings.figures["tests_played"] = bare(len(tests) / len(every), len(every))
    pairs = [test.whole for test in tests]
    tiers = [pair for test in tests for pair in test.by_tier]
    often = [len(test.live.kept) for test in tests]
    findings.how = (
        f"Each test is played live {_times(often)}, and simulated with {len(seeds)} seeds. "
        f"HTTP takes {mean_s * 1e3:.1f} ms in the mean, "
        f"more than {most_s * 1e3:.1f} ms for one request in twenty."
    )
    for figure in ("p50", "p95"):
        worst = max(pairs, key=lambda pair: pair.off(figure))
        findings.figures[f"{figure}_most_off"] = replace(worst.off_interval(figure), n=len(pairs))
        for called, of in (("of_tiers_off", median), ("of_tiers_most_off", max)) if tiers else ():
            findings.figures[f"{figure}_{called}"] = bare(of([pair.off(figure) for pair in tiers]), len(tiers))
    findings.figures["goodput_most_off"] = bare(max(off(*test.goodput) for test in tests), len(tests))
    known = [pair for pair in pairs if pair.p99_overlaps is not None]
    if known:
        findings.figures["p99_overlapping"] = bare(fmean(bool(pair.p99_overlaps) for pair in known), len(known))
        findings.figures["p99_most_off"] = bare(max(pair.off("p99") for pair in known), len(known))
    if len(known) < len(pairs):
        findings.notes.append(
            f"In {counted(len(pairs) - len(known), 'test')} too few requests finished to know the interval of a p99 "
            "(some 480 are needed): they stand as `too few`, and count neither way."
        )
    by_chance = runner.map(_missed_by_chance, pairs)
    findings.figures["missed_by_chance"] = bare(fmean(map(any, zip(*by_chance, strict=True))), CHANCES)
    findings.raw["missed_by_chance"] = {pair.name: fmean(of) for pair, of in zip(pairs, by_chance, strict=True)}
    kept, late = sum(often), sum(test.live.late for test in every)
    findings.figures["generator_in_time"] = bare(kept / (kept + late), kept + late)
    findings.notes += [note for test in every for note in test.notes]
    findings.raw["broke_off"] = {test.name: test.live.broken for test in every if test.live.broken}
    findings.figures["on_the_way_s"] = bare(mean_s, len(on_the_way_s))
    findings.raw["ways_s"] = on_the_way_s
    findings.grids += [
        _latencies("TTFT in ms", pairs),
        _latencies("TTFT in ms, by tier", tiers),
        _goodput(tests),
    ]
    findings.charts.append(_chart([*pairs, *tiers]))
    return findings


def _times(often: Sequence[int]) -> str:
    if max(often) == 1:
        return "once"
    return f"{min(often)} to {max(often)} times, as its seeds ask for"


def _scenario(name: str) -> ScenarioFile:
    """The part of a scenario that can be played live and simulated: our own gateway in front of the replicas."""
    of = load_scenario(name)
    ours = [one for one in of.contenders if one.kind == OURS]
    return of.model_copy(update={"contenders": ours, "lasts": of.lasts * LONGER.get(name, 1.0)})


def _tests(name: str, scenario: ScenarioFile) -> Iterator[tuple[str, ScenarioFile]]:
    """The tests of a scenario, each with its title."""
    for of in scenario.contenders:
        for times in scenario.sweep or (1.0,):
            title = name + ("" if len(scenario.contenders) == 1 else f", {of.called}")
            title += f" {times:g}x" if scenario.sweep else ""
            yield title, scenario.model_copy(update={"contenders": [of], "sweep": [times]})


def _played(
    runner: Runner, asked: Sequence[tuple[str, ScenarioFile]], seeds: Sequence[int], on_the_way_s: Sequence[float]
) -> list[Test]:
    """Every test, simulated and then live."""
    part = QUICK if runner.effort.quick else 1.0
    told = []
    for title, scenario in asked:
        runner.tell(f"{title}: simulated")
        told.append(runner.map(_simulated, [(scenario, part, seed, on_the_way_s) for seed in seeds]))
    spreads = [varies([run.ttft_s for run in of]) for of in told]
    needed = [1 if runner.effort.quick else runs_needed(spread) for spread in spreads]
    most = FULL_MAX_RUNS if runner.effort.full else MAX_RUNS
    lives = _live(runner, asked, [min(runs, most) for runs in needed], part)
    titles = [title for title, _ in asked]
    return [Test(*of) for of in zip(titles, spreads, needed, lives, told, strict=True)]


def _live(runner: Runner, asked: Sequence[tuple[str, ScenarioFile]], runs: Sequence[int], part: float) -> list[Live]:
    """Play each test so many times. Each run has a process for its clients, so that none delays those of another."""
    at_once = 1 if runner.effort.quick else AT_ONCE
    over = count(1)

    def play(title: str, scenario: ScenarioFile, wanted: int) -> Live:
        def once(run: int) -> OneRun:
            try:
                return pool.submit(play_once, scenario, part).result()
            finally:
                runner.tell(f"{title}: run {run} of {wanted} is over, {next(over)} of {sum(runs)} live runs")

        return live_runs(wanted, once)

    # The pool of processes is left before the threads end. So an error, or Ctrl-C, ends the runs for which the threads
    # wait.
    with ThreadPoolExecutor(at_once) as threads, processes(at_once) as pool:
        # The longest come first, so that none is left alone at the end.
        order = sorted(range(len(asked)), key=lambda n: -runs[n] * asked[n][1].lasts)
        playing = {n: threads.submit(play, *asked[n], runs[n]) for n in order}
        try:
            return [playing[n].result() for n in range(len(asked))]
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise


def live_runs(wanted: int, once: Callable[[int], OneRun]) -> Live:
    """Play a test until so many runs are kept, or the spare ones are used up.

    `once` gets the number of the run, from 1 on, and raises Broken.
    """
    live = Live()
    while len(live.kept) < wanted and live.played < wanted + MAX_AGAIN:
        try:
            report, ttft_s = once(len(live.kept) + 1)
        except Broken as error:
            live.broken.append(f"{error}")
            continue
        if report["trusted"]:
            live.kept.append((report, ttft_s))
        else:
            live.late += 1
    return live


def _missed_by_chance(pair: Pair) -> list[bool]:
    """Whether a correct simulator misses, for each random draw."""
    draw = Random(pair.name)
    return [pair.by_chance(draw).missed for _ in range(CHANCES)]


def play_once(scenario: ScenarioFile, part: float) -> OneRun:
    """Play a scenario of one test, once, in a process of a pool. Ctrl-C and SIGTERM end that process."""
    end_by_sigterm()
    try:
        return played(scenario, part)
    except KeyboardInterrupt:
        os._exit(1)  # else the process begins the next run of the pool


def played(scenario: ScenarioFile, part: float) -> OneRun:
    """One run. Raises Broken, and KeyboardInterrupt once all its processes have ended."""
    with tempfile.TemporaryDirectory(prefix="tailgate-simulated-live-") as out:
        found = play_scenario(scenario, Path(out), part < 1.0, lambda *_: None)
        if found.interrupted:
            raise KeyboardInterrupt
        if found.broken:
            raise Broken("; ".join(found.broken.values()))
        ((called, _), report), *_ = found.reports.items()
        return report, _ttft_s(Path(out) / called.replace(" ", "-"), scenario.warmup * part)


def _ttft_s(folder: Path, warmup_s: float) -> TtftS:
    rows = read_rows(folder)
    kept = rows[(rows["due_s"] >= warmup_s) & (rows["outcome"] == Outcome.FINISHED)]
    of = {name: kept["ttft_s"][kept["tier"] == n] for n, name in enumerate(read_run(folder).tiers)}
    return {name: sorted(float(value) for value in values if value == value) for name, values in of.items()}


def _simulated(asked: tuple[ScenarioFile, float, int, Sequence[float]]) -> Simulated:
    scenario, part, seed, on_the_way_s = asked
    return simulated(scenario, scenario.contenders[0], scenario.sweep[0], part, seed, on_the_way_s)


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
    low, high = 50.0, 50000.0
    below, above = 1.0 - OFF_AT_MOST, 1.0 + OFF_AT_MOST
    edges = (low * above, high * above, None, low * below, high * below)
    around = Line(f"{OFF_AT_MOST:.0%} off", (low, high, high, low, high), edges, dashed=True)
    lines = [around]
    for figure in PERCENTILES:
        there = [pair for pair in pairs if math.isfinite(sum(pair.values(figure)))]
        live, told = zip(*(pair.values(figure) for pair in there), strict=True)
        least, most = zip(*(pair.over_seeds(figure) for pair in there), strict=True)
        x, y, below_y, above_y = ([1e3 * value for value in of] for of in (live, told, least, most))
        lines.append(Line(figure, x, y, below_y, above_y, apart=True))
    title = "Time to first token of each test, and of each of its tiers"
    return Chart("simulated-live", title, "live, ms", "simulated, ms", lines, log_x=True, log_y=True)
