"""The pictures of a report."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from loadtests.charts.chart import Bars, Chart, Line, Picture
from loadtests.report.words import time

Report = dict[str, Any]
NAMES = (
    "over-load",
    "throughput",
    *(f"{metric}-{kind}" for metric in ("ttft", "e2e") for kind in ("over-time", "percentiles")),
    "misses",
)
"""All names of pictures; a report has some of them."""
MAX_REASONS = 10


def pictures(report: Report) -> list[Picture]:
    """Charts over the load (if it varied), over time, by percentile, and by reason."""
    streamed = report["totals"]["latencies"]["ttft"]["n"] > 0
    found: list[Picture] = [*_over_load(report), _rates(report)]
    found.append(_latency_over_time(report, *(("ttft", "TTFT") if streamed else ("e2e", "e2e"))))
    found += [chart for metric, name in (("ttft", "TTFT"), ("e2e", "e2e")) if (chart := _curve(report, metric, name))]
    found.append(_misses(report))
    if report["trusted"]:
        return found
    # The title repeats the warning, since a picture is passed on without its page.
    return [replace(picture, title=f"{picture.title} (not to be trusted)") for picture in found]


def _over_load(report: Report) -> list[Picture]:
    over = report["over_load"]
    x = over["offered_per_s"]
    if not x:
        return []
    lines = [
        Line("all that is offered", x, x, dashed=True),
        Line("answered (throughput)", x, over["answered_per_s"], bold=True),
        Line("good (goodput)", x, over["good_per_s"]),
    ]
    title = "Throughput and goodput over the offered load, requests/s"
    return [Chart("over-load", title, "requests/s offered", "requests/s", lines)]


def _times(report: Report) -> list[float]:
    over = report["over_time"]
    return [over["from_s"] + (n + 0.5) * over["bin_s"] for n in range(len(over["offered_per_s"]))]


def _rates(report: Report) -> Chart:
    over, x = report["over_time"], _times(report)
    lines = [
        Line("offered", x, over["offered_per_s"], dashed=True),
        Line("answered (throughput)", x, over["answered_per_s"], bold=True),
        Line("good (goodput)", x, over["good_per_s"]),
    ]
    for name in ("shed", "failed"):
        if any(over[f"{name}_per_s"]):
            lines.append(Line(name, x, over[f"{name}_per_s"]))
    return Chart("throughput", "Throughput and goodput over time, requests/s", "s since the start", "requests/s", lines)


def _latency_over_time(report: Report, metric: str, name: str) -> Chart:
    over, x = report["over_time"], _times(report)
    lines = [
        Line(quantile, x, over[f"{metric}_{quantile}_s"])
        for quantile in ("p50", "p95", "p99")
        if any(value is not None for value in over[f"{metric}_{quantile}_s"])
    ]
    title = f"{name} over time, seconds"
    levels = _objectives(report, metric)
    return Chart(f"{metric}-over-time", title, "s since the start, when due", name, lines, log_y=True, levels=levels)


def _curve(report: Report, metric: str, name: str) -> Chart | None:
    lines = [
        Line(tier, found[metric]["shares"], found[metric]["seconds"])
        for tier, found in report["curves"].items()
        if metric in found
    ]
    if not lines:
        return None
    title = f"{name} by percentile, seconds"
    levels = _objectives(report, metric)
    return Chart(
        f"{metric}-percentiles", title, "share of answered requests", name, lines, log_y=True, levels=levels, nines=True
    )


def _objectives(report: Report, metric: str) -> dict[str, float]:
    """The threshold of every objective, by label; tiers and percentiles with the same threshold share one."""
    whose: dict[float, list[str]] = {}
    for tier, of in report["tiers"].items():
        for row in of["objectives"]:
            if row["metric"] == metric:
                whose.setdefault(row["threshold_s"], []).append(f"p{100 * row['quantile']:g} of {tier}")
    return {f"objective {time(threshold_s)}: {', '.join(names)}": threshold_s for threshold_s, names in whose.items()}


def _misses(report: Report) -> Bars:
    tiers = report["tiers"]
    totals: dict[str, int] = {}
    for of in tiers.values():
        for reason, count in of["misses"].items():
            totals[reason] = totals.get(reason, 0) + count
    reasons = sorted(totals, key=lambda reason: -totals[reason])[:MAX_REASONS]
    parts = {tier: [float(of["misses"].get(reason, 0)) for reason in reasons] for tier, of in tiers.items()}
    return Bars("misses", "Requests that were not good, by reason", "requests", parts, reasons)
