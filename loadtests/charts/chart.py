"""The contents of a picture, the same for every format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

NOTHING = "Nothing to draw."
"""Text in place of missing lines or bars."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart; `low` and `high` are the ends of the interval around each point, if there is one.

    A `y` that is None is a gap in the line.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    dashed: bool = False
    bold: bool = False
    apart: bool = False
    """Whether points are drawn without a line."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture of lines. `marks` are vertical lines with a name, `levels` horizontal ones."""

    name: str
    title: str
    x: str
    y: str
    lines: Sequence[Line]
    log_x: bool = False
    log_y: bool = False
    marks: Mapping[str, float] = field(default_factory=dict)
    levels: Mapping[str, float] = field(default_factory=dict)
    most_y: float | None = None
    nines: bool = False
    """Whether x is a share (0-1) that is drawn by its distance to 1. If so, 90%, 99% and 99.9% are equally far
    apart.
    """


@dataclass(frozen=True, slots=True)
class Bars:
    """A picture of bars. Each has a label and named parts; the first part is nearest to the axis."""

    name: str
    title: str
    x: str
    parts: Mapping[str, Sequence[float]]
    labels: Sequence[str]


Picture = Chart | Bars
