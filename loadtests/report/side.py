"""Pictures with several load tests in each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadtests.charts.chart import Chart, Line, Picture

Report = dict[str, Any]
PERCENTILES = (0.5, 0.9, 0.95, 0.99, 0.999)


def over_each_other(reports: Mapping[str, Report]) -> list[Picture]:
    """Goodput over the load (if it varied) and over time, throughput over time, TTFT by percentile: a line for each
    test.
    """
    found: list[Picture] = [
        *_over_load(reports),
        _over_time("goodput-over-time", "Good answers, requests/s", "good_per_s", reports),
        _over_time("throughput-over-time", "All answers, requests/s", "answered_per_s", reports),
    ]
    for metric, name in (("ttft", "TTFT"), ("e2e", "e2e")):
        lines = [
            Line(test, [q for q, _ in points], [s for _, s in points])
            for test, report in reports.items()
            if (points := _points(report["totals"]["latencies"][metric]))
        ]
        if lines:
            title = f"{name} of answered requests, by percentile"
            found.append(Chart(metric, title, "share of answered requests", name, lines, log_y=True, nines=True))
    return found


def _over_load(reports: Mapping[str, Report]) -> list[Picture]:
    loads = {test: report["over_load"] for test, report in reports.items()}
    if not all(of["offered_per_s"] for of in loads.values()):
        return []
    x = next(iter(loads.values()))["offered_per_s"]
    lines = [Line(test, of["offered_per_s"], of["good_per_s"], bold=True) for test, of in loads.items()]
    offered = Line("all that is offered", x, x, dashed=True)
    title = "Good answers over the offered load, requests/s"
    first = [Line(test, of["offered_per_s"], of["ttft_p99_s"], bold=True) for test, of in loads.items()]
    return [
        Chart("goodput-over-load", title, "requests/s offered", "requests/s", [*lines, offered]),
        Chart("ttft-over-load", "TTFT p99 over the offered load", "requests/s offered", "TTFT", first, log_y=True),
    ]


def _points(latency: Report) -> list[tuple[float, float]]:
    if not latency["n"]:
        return []
    names = ("p50", "p90", "p95", "p99", "p999")
    return [(q, latency[name]) for q, name in zip(PERCENTILES, names, strict=True) if latency["n"] * (1 - q) >= 1]


def _over_time(name: str, title: str, series: str, reports: Mapping[str, Report]) -> Chart:
    lines = []
    for test, report in reports.items():
        over = report["over_time"]
        x = [over["from_s"] + (n + 0.5) * over["bin_s"] for n in range(len(over[series]))]
        lines.append(Line(test, x, over[series]))
    first = next(iter(reports.values()))["over_time"]
    x = [first["from_s"] + (n + 0.5) * first["bin_s"] for n in range(len(first["offered_per_s"]))]
    return Chart(
        name,
        title,
        "s since the start",
        "requests/s",
        [*lines, Line("offered", x, first["offered_per_s"], dashed=True)],
    )
