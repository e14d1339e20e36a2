"""Findings of an experiment: figures for verdicts, tables and charts for readers, raw results for checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.sim.analysis.report import Interval
from loadtests.charts.chart import Bars
from loadtests.charts.chart import Chart as Chart
from loadtests.charts.chart import Line as Line
from loadtests.charts.grid import Grid as Grid


@dataclass(slots=True)
class Findings:
    """All findings of an experiment. `notes` are paragraphs of plain English, computed figures filled in."""

    seeds: Sequence[int]
    figures: dict[str, Interval] = field(default_factory=dict)
    grids: list[Grid] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    bars: Bars | None = None
    """The picture of an experiment without charts."""
    notes: list[str] = field(default_factory=list)
    raw: dict[str, object] = field(default_factory=dict)
    """Results by candidate, with intervals and raw percentiles; dataclasses become JSON."""
    how: str = ""
    """The number and length of runs, if they are not the usual ones."""


def line(
    name: str, x: Sequence[float], values: Sequence[Interval], *, dashed: bool = False, bold: bool = False
) -> Line:
    """A line through means, with their intervals if all have one."""
    lows = [value.low for value in values if value.low is not None]
    highs = [value.high for value in values if value.high is not None]
    whole = len(lows) == len(highs) == len(values)
    means = [value.value for value in values]
    return Line(name, x, means, lows if whole else (), highs if whole else (), dashed, bold)


def written(value: Interval | None, digits: int = 3) -> str:
    """A figure with its interval, such as `0.970 (0.966 to 0.974)`."""
    if value is None:
        return ""
    text = f"{value.value:.{digits}f}"
    return text if value.low is None else f"{text} ({value.low:.{digits}f} to {value.high:.{digits}f})"


def bare(value: float, n: int) -> Interval:
    """A figure that is not a mean: a minimum, or a count."""
    return Interval(value, None, None, n)


def span(values: Sequence[float]) -> Interval:
    """The mean of some runs; with several, also the lowest and the highest of them."""
    mean = sum(values) / len(values)
    return Interval(mean, min(values), max(values), len(values)) if len(values) > 1 else bare(mean, 1)
