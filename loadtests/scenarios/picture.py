"""The table and the picture of a scenario."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from loadtests.charts.chart import Chart, Line, Picture
from loadtests.charts.grid import Grid
from loadtests.report.words import rate, share, shed
from loadtests.scenarios.file import ScenarioFile

Report = dict[str, Any]
Reports = Mapping[tuple[str, float], Report]


def pictures(scenario: ScenarioFile, reports: Reports, name: str) -> list[Picture]:
    """Charts over the load if it is swept, else over time."""
    if not reports:
        return []
    return list(_over_load(reports, name) if scenario.sweep else _over_time(scenario, reports, name))


def _over_load(reports: Reports, name: str) -> Iterator[Picture]:
    contenders = list(dict.fromkeys(contender for contender, _ in reports))
    for figure, what in (("good_per_s", "goodput"), ("answered_per_s", "throughput")):
        lines = []
        for contender in contenders:
            tests = [of for (called, _), of in reports.items() if called == contender]
            tests = [of for of in tests if of["totals"]["offered_per_s"] is not None]
            offered = [of["totals"]["offered_per_s"] for of in tests]
            lines.append(
                Line(contender, offered, [of["totals"][figure] for of in tests], bold=contender == contenders[0])
            )
        every = [x for line in lines for x in line.x]
        ends = [min(every), max(every)] if every else []
        lines.append(Line("all that is offered", ends, ends, dashed=True))
        title = {
            "goodput": "Goodput: good requests, when due",
            "throughput": "Throughput: answered requests, good or not",
        }[what]
        yield Chart(f"{name}-{what}", f"{title}, requests/s", "requests/s offered", "requests/s", lines)


def _over_time(scenario: ScenarioFile, reports: Reports, name: str) -> Iterator[Picture]:
    part = next(iter(reports.values()))["about"]["planned_s"] / scenario.lasts
    marks = _marks(scenario, part)
    tier = scenario.traffic[0].tier
    whole = _lines(reports, "weighted_goodput", lambda of: of["over_time"])
    served = {test: of for test, of in reports.items() if tier in of["tiers"]}
    first = _lines(served, "ttft_p95_s", lambda of: of["tiers"][tier]["over_time"])
    since, title = "s since the start", "Weighted goodput, by when requests were due"
    yield Chart(f"{name}-goodput", title, since, "share", whole, most_y=1.02, marks=marks)
    title = f"TTFT p95 of {tier}, by when requests were due"
    yield Chart(f"{name}-ttft", title, since, "TTFT p95, s", first, log_y=True, marks=marks)


def _lines(reports: Reports, series: str, over_time: Callable[[Report], Any]) -> list[Line]:
    """A line for each contender; the first is ours."""
    lines: list[Line] = []
    for (contender, _), of in reports.items():
        over = over_time(of)
        x = [over["from_s"] + (n + 0.5) * over["bin_s"] for n in range(len(over[series]))]
        lines.append(Line(contender, x, over[series], bold=not lines))
    return lines


def _marks(scenario: ScenarioFile, part: float) -> dict[str, float]:
    """Marks for the events of each moment, and for their ends. Equal names are numbered.

    All events of a replica between its drain and its undrain are one mark.
    """
    replicas: dict[tuple[float, str], list[str]] = {}
    drained = list(_drained(scenario))
    for event in scenario.events:
        name = event.drain or event.undrain or f"r{event.replica}"
        if during := [(a, b) for of, a, b in drained if of == name and a <= event.at <= b]:
            from_s, until_s = during[0]
            replicas[from_s, f"{name} drained until {until_s * part:g}"] = []
            continue
        if event.fault is None:
            replicas[event.at, event.told] = []
            continue
        replicas.setdefault((event.at, event.told), []).append(str(event.replica))
        if event.lasts is not None:
            replicas.setdefault((event.at + event.lasts, "well again"), []).append(str(event.replica))
    marks = sorted(replicas.items())
    told = [f"{_called(names)}{what}" for (_, what), names in marks]
    names = [f"{name} ({told[: n + 1].count(name)})" if told.count(name) > 1 else name for n, name in enumerate(told)]
    return {name: at * part for name, ((at, _), _) in zip(names, marks, strict=True)}


def _drained(scenario: ScenarioFile) -> Iterator[tuple[str, float, float]]:
    """(replica, begin, end) of each drain with an undrain."""
    for event in scenario.events:
        ends = [after.at for after in scenario.events if after.undrain == event.drain and after.at > event.at]
        if event.drain is not None and ends:
            yield event.drain, event.at, min(ends)


def _called(replicas: list[str]) -> str:
    return f"replica{'s' if len(replicas) > 1 else ''} {', '.join(replicas)} " if replicas else ""


def grid(scenario: ScenarioFile, reports: Reports) -> Grid:
    """A row for each test. TTFT is that of one tier: over all tiers it would depend on which tier had more answers.

    Failures have a column; other counts have one if any test has some.
    """
    tier = scenario.traffic[0].tier
    tiers = list(dict.fromkeys(tier for of in reports.values() for tier in of["tiers"]))
    several = tiers if len(tiers) > 1 else []
    columns = ["", "offered/s", "answered/s", "good/s", "goodput", *(["weighted", *several] if several else [])]
    columns += [f"TTFT p50 of {tier}, s" if several else "TTFT p50, s", "p99, s"]
    counts = {name: count for name, count in COUNTS.items() if name == "failed" or any(map(count, reports.values()))}
    columns += counts
    rows = []
    for (contender, times), of in reports.items():
        totals = of["totals"]
        cells = [rate(totals[f"{name}_per_s"], ".1f") for name in ("offered", "answered", "good")]
        cells += [share(totals["goodput"]), *([share(totals["weighted_goodput"])] if several else [])]
        cells += [share(of["tiers"][tier]["goodput"]) if tier in of["tiers"] else "–" for tier in several]
        ttft = of["tiers"][tier]["latencies"]["ttft"] if tier in of["tiers"] else {"p50": None, "p99": None}
        cells += [
            rate(ttft["p50"], ".3g"),
            rate(ttft["p99"], ".3g"),
            *(f"{count(of):,}" for count in counts.values()),
        ]
        rows.append([f"{contender} {times:g}x" if scenario.sweep else contender, *cells])
    return Grid("", columns, rows)


def _shed(of: Report) -> int:
    return sum(map(shed, of["tiers"].values()))


def _failures(of: Report) -> int:
    return sum(sum(tier["errors"].values()) for tier in of["tiers"].values())


def _not_waited_for(of: Report) -> int:
    """Requests that were open when the test ended, because they could not be good any more or the grace was over."""
    return sum(tier["misses"].get("unfinished", 0) for tier in of["tiers"].values())


COUNTS = {"shed": _shed, "failed": _failures, "not waited for": _not_waited_for}
