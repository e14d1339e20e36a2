"""Pictures are drawn with any names."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import rc_context, rcParams
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.image import imread

from loadtests.charts.chart import Bars, Chart, Line, Picture
from loadtests.charts.png import AXES_INCHES, DPI, MAX_MARKED, PAD_INCHES, draw
from loadtests.charts.svg import svg

MATHS = r"limit $\frac$ x"
"""Invalid mathematics. If a text is read as mathematics, drawing it fails."""
LINE = Line(MATHS, [1.0, 2.0], [0.01, 10.0])
CHART = Chart("p", MATHS, MATHS, MATHS, [LINE], log_y=True, marks={MATHS: 1.5}, levels={MATHS: 1.0})
BARS = Bars("p", MATHS, MATHS, {MATHS: [1.0]}, [MATHS])


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Keep the last drawing of each picture. None is drawn more than twice."""
    found: list[Figure] = []
    times = Counter[Figure]()
    draw_canvas = FigureCanvasAgg.draw

    def drawn(canvas: FigureCanvasAgg) -> None:
        draw_canvas(canvas)
        times[canvas.figure] += 1
        assert times[canvas.figure] <= 2
        if canvas.figure not in found:
            found.append(canvas.figure)

    monkeypatch.setattr(FigureCanvasAgg, "draw", drawn)
    return found


@pytest.mark.parametrize("picture", [CHART, BARS, Bars("p", "", "", {}, [])], ids=["chart", "bars", "no bars"])
def test_dollar_signs_in_chart_names_are_not_mathematics(tmp_path: Path, picture: Picture) -> None:
    assert draw(picture, tmp_path).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("axis", ["x", "y"])
@pytest.mark.parametrize(
    ("values", "wanted"),
    [([0.01, 10.0], {"0.01", "0.1", "1", "10"}), ([0.15, 5.0], {"0.2", "0.5", "1", "2", "5"})],
    ids=["decades", "less than two of them"],
)
def test_ticks_of_a_logarithmic_axis_are_plain_numbers(
    tmp_path: Path, figures: list[Figure], values: list[float], wanted: set[str], axis: str
) -> None:
    many = values * MAX_MARKED  # with few points, each is a tick
    draw(Chart("p", "", "", "", [Line("", many, many)], log_x=True, log_y=True), tmp_path)
    (figure,) = figures
    labels_of = getattr(figure.axes[0], f"get_{axis}ticklabels")
    ticks = [label.get_text() for minor in (False, True) for label in labels_of(minor=minor)]
    assert wanted <= set(ticks)
    assert not any("$" in tick for tick in ticks)


VALUES = [float(n) for n in range(1, 2 * MAX_MARKED)]
LOW, HIGH = [value - 0.5 for value in VALUES], [value + 0.5 for value in VALUES]


def _values(*, apart: bool) -> Chart:
    return Chart("p", "", "", "", [Line("", VALUES, VALUES, LOW, HIGH, apart=apart)])


def test_svg_chart_of_separate_points_has_all_points_and_no_line() -> None:
    joined, apart = svg(_values(apart=False)), svg(_values(apart=True))
    assert apart.count("<circle") == len(VALUES)
    assert joined.count("<circle") == 0
    assert 'class="line' in joined
    assert 'class="band' in joined
    assert 'class="line' not in apart
    assert 'class="band' not in apart
    (whiskers,) = re.findall(r'class="whiskers c0" d="([^"]*)"', apart)
    assert whiskers.count("M") == whiskers.count("V") == len(VALUES)


@pytest.mark.parametrize("apart", [True, False])
def test_png_chart_of_separate_points_has_no_line(tmp_path: Path, figures: list[Figure], *, apart: bool) -> None:
    draw(_values(apart=apart), tmp_path)
    (figure,) = figures
    (bars,) = figure.axes[0].containers
    assert isinstance(bars, ErrorbarContainer)
    line = bars.lines[0]
    assert line is not None
    assert (line.get_linestyle() == "None") is apart
    assert (line.get_marker() == "None") is not apart


@pytest.mark.parametrize("highest", [2.0, 1.9, 0.3])
def test_level_names_stand_inside_the_frame_of_a_chart(tmp_path: Path, figures: list[Figure], highest: float) -> None:
    line = Line("", [1.0, 2.0], [0.01, 1.0])
    draw(Chart("p", "", "", "", [line], log_y=True, levels={"objective": highest, "another": 0.1}), tmp_path)
    (axes,) = figures[0].axes
    frame, names = axes.get_window_extent(), [text.get_window_extent() for text in axes.texts]
    assert len(names) == 2
    assert all(frame.y0 < name.y0 and name.y1 < frame.y1 for name in names)


LONG = "a name that takes more room than there is at first, " * 4
TALL = [Line(f"{n}", [1.0], [1.0]) for n in range(60)]


@pytest.mark.parametrize(
    "picture",
    [
        Chart("p", "t", "x", "y", [Line("short", [1.0], [1.0])]),
        Chart("p", LONG, "x", "y", [Line("short", [1.0], [1.0])]),
        Chart("p", "t", LONG, "y", [Line(LONG, [1.0], [1.0])]),
        Chart("p", "t", "x", LONG, TALL),
        Chart("p", "t", "x", "y", [Line("short", [1.0], [1.0])], levels={LONG: 0.5}),
        Bars("p", "t", "x", {"short": [1.0]}, [LONG]),
        Bars("p", "t", "x", {"short": [1.0]}, [LONG * 20]),
        Bars("p", "t", "x", {}, []),
    ],
    ids=["short", "title", "legend and axis", "rows of the legend, and axis", "level", "bar", "long bar", "no bars"],
)
def test_chart_size_fits_its_content(tmp_path: Path, figures: list[Figure], picture: Picture) -> None:
    """Nothing is cut off, for names of any length, and the margin is the same on each side."""
    drawn = imread(draw(picture, tmp_path))
    (figure,) = figures
    ink: Any = (drawn[..., :3] < 1.0).any(axis=2)
    pad = round(PAD_INCHES * DPI)
    for axis in (0, 1):
        on = np.flatnonzero(ink.any(axis=axis))
        assert (on[0], len(ink[0] if axis == 0 else ink) - 1 - on[-1]) == (pad, pad)
    parts = figure.get_tightbbox()
    assert 0 < parts.x0 < parts.x1 < figure.get_figwidth()
    assert 0 < parts.y0 < parts.y1 < figure.get_figheight()
    size = figure.axes[0].get_position()
    assert size.width * figure.get_figwidth() == pytest.approx(AXES_INCHES[0])
    assert size.height * figure.get_figheight() == pytest.approx(AXES_INCHES[1])


@pytest.mark.parametrize(
    "style", [{"figure.facecolor": "0.5"}, {"text.color": "white", "font.size": 30.0}, {"image.origin": "lower"}]
)
def test_matplotlib_style_of_the_user_does_not_change_charts(tmp_path: Path, style: Any) -> None:
    with rc_context(style):
        styled = draw(CHART, tmp_path / "styled")
        assert rcParams[next(iter(style))] == next(iter(style.values())), "it was changed for others, too"
    assert styled.read_bytes() == draw(CHART, tmp_path / "plain").read_bytes()


def test_failed_drawing_leaves_no_partial_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(part: Path, *_: object, **__: object) -> None:
        part.write_bytes(b"\x89PNG")
        raise OSError("the disk is full")

    monkeypatch.setattr("matplotlib.image.imsave", fails)
    with pytest.raises(OSError, match="full"):
        draw(CHART, tmp_path)
    assert list(tmp_path.iterdir()) == []
