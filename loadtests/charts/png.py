"""Pictures as PNG, all in one style: labelled axes, intervals as bars, a legend beside the lines."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from loadtests.charts.chart import NOTHING, Bars, Chart, Line, Picture
from loadtests.charts.scales import logarithmic, nine, nine_ticks

MARKERS = "osD^vPX*<>hd"
MAX_MARKED = 40
"""A line with this many points or more has no markers."""
MARGIN = 1.05
"""Room beside values on the edge of a logarithmic axis."""
DPI = 110
AXES_INCHES = 7.0, 3.85
"""Width and height of the axes."""
ROOM_INCHES = 2.0, 3.0, 0.7, 0.5
"""Room left, right, below and above the axes for texts; if it is too small, the texts are measured."""
PAD_INCHES = 0.1
"""Margin around a picture."""
PART = ".png.part"
"""Suffix instead of .png while the file is being written."""
WHITE = 255
LETTER = 0.0088
"""Share of a picture's width that one letter of a note takes."""
ROW = 0.06
"""Share of a picture's height that a row of notes takes."""
LARGEST, SMALLER = 8.0, 1.0
"""Size of the first line's marker in points, and the difference to the next line's. Where lines coincide, the larger
markers stay visible behind the smaller ones.
"""
SMALLEST = 4.0
"""Size of the smallest marker in points, and of all points that no line joins."""
BEHIND = {"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.5}
"""Gap between a note and the lines under it."""


def get_ready() -> None:
    """Load the libraries and fonts for the first picture. Needs matplotlib, else ImportError."""
    _sheet(Chart("", "0", "1", "2", [Line("3", (1.0, 2.0), (4.0, 50.0))], log_y=True))


def draw(picture: Picture, folder: Path) -> Path:
    """Write `folder/NAME.png` and return its path. Needs matplotlib, else ImportError."""
    from matplotlib.image import imsave

    sheet = _sheet(picture)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{picture.name}.png"
    # Drawing may be ended at any time, but a file with the final name is complete.
    part = folder / f"{picture.name}{PART}"
    try:
        # No date inside, so that the same findings give the same file. A user's own style may put the origin at the
        # bottom.
        nobody: Any = {"Software": None}  # the name is left out, since matplotlib's types lack it
        imsave(part, sheet, format="png", dpi=DPI, origin="upper", metadata=nobody)
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return path


def _sheet(picture: Picture) -> Any:
    """The pixels of a picture, rows of red, green, blue and alpha (0-255), with an even margin.

    It is drawn on a sheet that is too large, and cropped: to measure each part first would take as long as to draw it.
    """
    from matplotlib import rc_context, rcdefaults
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context():
        rcdefaults()  # a user's own style may have another background or font
        figure = Figure(dpi=DPI)
        canvas = FigureCanvasAgg(figure)
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        _fit(figure, axes, ROOM_INCHES)  # the places of names depend on the size of the axes
        if isinstance(picture, Chart):
            _lines(picture, axes)
        else:
            _bars(picture, axes)
        # with a given place, matplotlib need not search for one
        axes.set_title(_plain(picture.title), fontsize=11, y=1.0)
        handles, _ = axes.get_legend_handles_labels()
        if handles:
            axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8.5, frameon=False)
        cut = _cut(canvas)
        if cut is None:
            _fit(figure, axes, _room_inches(figure))
            cut = _cut(canvas)
            assert cut is not None, "a picture is larger than its sheet"
        return cut


def _cut(canvas: Any) -> Any:
    """The drawn part of the sheet, with a margin; None if the sheet is too small for the margin."""
    import numpy as np

    canvas.draw()
    sheet = np.asarray(canvas.buffer_rgba())
    ink = (sheet[..., :3] != WHITE).any(axis=2)
    rows, columns = np.flatnonzero(ink.any(axis=1)), np.flatnonzero(ink.any(axis=0))
    pad = round(PAD_INCHES * DPI)
    top, bottom, left, right = rows[0] - pad, rows[-1] + 1 + pad, columns[0] - pad, columns[-1] + 1 + pad
    fits = top >= 0 and left >= 0 and bottom <= len(sheet) and right <= len(sheet[0])
    return sheet[top:bottom, left:right] if fits else None


def _room_inches(figure: Any) -> tuple[float, float, float, float]:
    """Room left, right, below and above the axes that the texts there need, plus a margin."""
    parts, pad = figure.get_tightbbox(), 2.0 * PAD_INCHES
    left, right, below, above = ROOM_INCHES
    width, height = figure.get_size_inches()
    return (
        left - parts.x0 + pad,
        parts.x1 - (width - right) + pad,
        below - parts.y0 + pad,
        parts.y1 - (height - above) + pad,
    )


def _fit(figure: Any, axes: Any, room_inches: tuple[float, float, float, float]) -> None:
    """Leave this much room around the axes, without changing the size of the axes."""
    left, right, below, above = room_inches
    across, down = AXES_INCHES
    width, height = left + across + right, below + down + above
    figure.set_size_inches(width, height)
    axes.set_position((left / width, below / height, across / width, down / height))


def _lines(chart: Chart, axes: Any) -> None:
    most = max((len(line.x) for line in chart.lines), default=0)
    for n, line in enumerate(chart.lines):
        _line(chart, line, n, axes)
    for x in chart.marks.values():
        axes.axvline(x, color="0.5", linestyle=":", linewidth=1.2)
    for name, y in chart.levels.items():
        axes.axhline(y, color="0.5", linestyle=":", linewidth=1.2)
        axes.annotate(_plain(name), (0.01, y), xycoords=("axes fraction", "data"), fontsize=8, xytext=(0, 2),
                      textcoords="offset points", bbox=BEHIND, zorder=5)  # fmt: skip
    if chart.nines:
        ticks = nine_ticks(max((max(line.x) for line in chart.lines), default=0.99))
        axes.set_xticks([nine(tick) for tick in ticks], [f"{100 * tick:.6g}%" for tick in ticks])
    elif chart.log_x and most <= MAX_MARKED:
        ticks = sorted({x for line in chart.lines for x in line.x})
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks], fontsize=8)
        axes.minorticks_off()
    elif chart.log_x:
        axes.set_xscale("log")
    if chart.log_y:
        # The axis is wider than the values, so that nearly equal values look nearly equal.
        shown = [y for line in chart.lines for y in line.y if y is not None and y > 0.0] + list(chart.levels.values())
        scale = logarithmic(min(shown, default=0.001), max(shown, default=1.0))
        low, high = scale.low / MARGIN, scale.high * MARGIN
        if chart.levels:  # the name of the highest bar stands above it, not on the frame
            high = max(high, low * (max(chart.levels.values()) / low) ** (1.0 / (1.0 - ROW)))
        axes.set_yscale("log")
        axes.set_ylim(low, high)
    else:
        axes.set_ylim(0.0, chart.most_y)
    _names(chart, axes)
    if chart.log_y:
        _plain_ticks(axes.yaxis, axes.get_ylim())
    if chart.log_x and most > MAX_MARKED:
        _plain_ticks(axes.xaxis, axes.get_xlim())
    axes.set_xlabel(_plain(chart.x))
    axes.set_ylabel(_plain(chart.y))
    axes.grid(True, which="both", alpha=0.25)


def _names(chart: Chart, axes: Any) -> None:
    """Labels of the marks, in the fewest rows in which no two overlap."""
    rows: list[list[tuple[float, float]]] = []
    placed = []
    for name, x in sorted(chart.marks.items(), key=lambda mark: mark[1]):
        text = _plain(f"{x:.3g}: {name}")
        at, _ = axes.transAxes.inverted().transform(axes.transData.transform((x, 1.0)))
        width = LETTER * len(text)
        left = at + width > 1.0
        span = (at - width, at) if left else (at, at + width)
        row = next((n for n, row in enumerate(rows) if all(span[1] < a or b < span[0] for a, b in row)), len(rows))
        rows[row:] = rows[row:] or [[]]
        rows[row].append(span)
        placed.append((text, at, left, row))
    if chart.log_y:
        # Most shares are near 1, so names fit below them; above latencies, room is made for names.
        low, high = axes.get_ylim()
        share = min(0.6, ROW * len(rows))
        axes.set_ylim(low, high * (high / low) ** (share / (1.0 - share)))
    for text, at, left, row in placed:
        axes.annotate(
            text,
            (at, 0.94 - ROW * row if chart.log_y else 0.03 + ROW * row),
            xycoords="axes fraction",
            fontsize=8,
            xytext=(-4 if left else 4, 0),
            textcoords="offset points",
            horizontalalignment="right" if left else "left",
            bbox=BEHIND,
            zorder=5,
        )


def _plain_ticks(axis: Any, limits: tuple[float, float]) -> None:
    """Ticks with plain numbers such as 0.5 and 20; an axis of less than two decades gets ticks in between."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = limits
    narrow = high < 100.0 * low
    plain = FuncFormatter(lambda value, _: f"{value:g}")
    axis.set_major_formatter(plain)
    axis.set_minor_locator(LogLocator(subs=(2.0, 5.0) if narrow else "auto"))
    axis.set_minor_formatter(plain if narrow else NullFormatter())


def _line(chart: Chart, line: Line, n: int, axes: Any) -> None:
    x = [nine(share) for share in line.x] if chart.nines else line.x
    y = [math.nan if value is None else value for value in line.y]
    errors = None
    if line.low:
        below = [max(0.0, at - low) for at, low in zip(y, line.low, strict=True)]
        above = [max(0.0, high - at) for at, high in zip(y, line.high, strict=True)]
        errors = [below, above]
    style = "none" if line.apart else "--" if line.dashed else "-"
    marked = line.apart or (len(line.x) <= MAX_MARKED and not line.dashed)
    marker = MARKERS[n % len(MARKERS)] if marked else None
    size = SMALLEST if line.apart else max(SMALLEST, LARGEST - SMALLER * n)
    colour = "black" if line.bold else f"C{n % 10}"
    axes.errorbar(
        x, y, yerr=errors, label=_plain(line.name), linestyle=style, marker=marker, color=colour,
        markersize=size, linewidth=2.6 if line.bold else 1.4, capsize=2.5,
    )  # fmt: skip


def _bars(bars: Bars, axes: Any) -> None:
    if not bars.labels:
        axes.text(0.5, 0.5, NOTHING, transform=axes.transAxes, horizontalalignment="center")
        axes.set_axis_off()
        return
    left, labels = [0.0] * len(bars.labels), [_plain(label) for label in bars.labels]
    for name, values in bars.parts.items():
        axes.barh(labels, values, left=left, label=_plain(name))
        left = [before + value for before, value in zip(left, values, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel(_plain(bars.x))
    axes.grid(True, axis="x", alpha=0.25)


def _plain(text: str) -> str:
    """Escape dollars: matplotlib reads the text between two of them as mathematics, and a target may send some."""
    return text.replace("$", r"\$")
