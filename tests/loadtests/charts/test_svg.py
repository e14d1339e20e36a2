"""Pictures are drawn with any names, in a page and as files."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from loadtests.charts.chart import NOTHING, Bars, Chart, Line, Picture
from loadtests.charts.svg import CHARACTER, MAX_MARKED, WIDTH, draw, svg

ODD = 'limit <&> "x"'
LONG = "a name that takes more room than there is at first, " * 4
LINES = [Line(ODD, [1.0, 2.0], [0.01, 10.0]), Line("another", [1.0, 2.0], [0.1, None], dashed=True)]
CHART = Chart("p", ODD, ODD, ODD, LINES, log_y=True, marks={ODD: 1.5}, levels={ODD: 1.0})
BARS = Bars("p", ODD, ODD, {ODD: [1.0], "b": [0.0]}, [ODD])
VALUES = [float(n) for n in range(1, 2 * MAX_MARKED)]
LOW, HIGH = [value - 0.5 for value in VALUES], [value + 0.5 for value in VALUES]
SPACE = "{http://www.w3.org/2000/svg}"


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


def test_last_label_of_the_x_axis_is_within_the_picture() -> None:
    drawn = svg(Chart("p", "", "", "", [Line("", [0.0, 300_000.0], [1.0, 2.0])]))
    (x,) = re.findall(r'<text x="([\d.]+)" y="\d+" class="x">300,000<', drawn)
    assert float(x) + len("300,000") * CHARACTER / 2 <= WIDTH


@pytest.mark.parametrize("picture", [CHART, BARS], ids=["chart", "bars"])
def test_picture_file_is_whole_and_has_its_title_and_legend(tmp_path: Path, picture: Picture) -> None:
    path = draw(picture, tmp_path / "new")
    found = ElementTree.fromstring(path.read_text())
    texts = [text.text for text in found.iter(f"{SPACE}text")]
    assert texts[0] == ODD
    assert texts[-2:] == ([line.name for line in LINES] if isinstance(picture, Chart) else [ODD, "b"])
    assert found.find(f"{SPACE}style") is not None
    assert path.read_bytes() == draw(picture, tmp_path).read_bytes()


@pytest.mark.parametrize("picture", [Bars("p", "t", "", {}, []), Chart("p", "t", "", "", [])], ids=["bars", "chart"])
def test_picture_of_nothing_says_so(tmp_path: Path, picture: Picture) -> None:
    assert NOTHING in draw(picture, tmp_path).read_text()
    assert NOTHING in svg(picture)


def test_long_titles_and_legends_of_a_picture_file_are_broken_into_rows(tmp_path: Path) -> None:
    lines = [Line(f"line {n:04} of many", [1.0], [1.0]) for n in range(20)]
    found = ElementTree.fromstring(draw(Chart("p", LONG, "x", "y", lines), tmp_path).read_text())
    height = float(found.attrib["viewBox"].split()[3])
    own = found.findall(f"{SPACE}text")
    title = [text for text in own if text.get("class") == "title"]
    assert " ".join(text.text or "" for text in title) == LONG.strip()
    assert all(len(text.text or "") * 7 < WIDTH for text in title)
    assert all(float(text.attrib["x"]) + len(text.text or "") * 6.2 < WIDTH for text in own[len(title) :])
    assert all(float(text.attrib["y"]) < height for text in own)
