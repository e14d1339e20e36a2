"""Pictures are drawn whatever their names are."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from loadtests.charts.chart import Bars, Chart, Line, Picture
from loadtests.charts.png import draw

MATHS = r"limit $\frac$ x"
"""Mathematics that is wrong: where it is read as such, nothing is drawn."""
LINE = Line(MATHS, [1.0, 2.0], [0.01, 10.0])
CHART = Chart("p", MATHS, MATHS, MATHS, [LINE], log_y=True, marks={MATHS: 1.5}, levels={MATHS: 1.0})
BARS = Bars("p", MATHS, MATHS, {MATHS: [1.0]}, [MATHS])


@pytest.mark.parametrize("picture", [CHART, BARS, Bars("p", "", "", {}, [])], ids=["chart", "bars", "no bars"])
def test_dollars_in_names_are_no_mathematics(tmp_path: Path, picture: Picture) -> None:
    assert draw(picture, tmp_path).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("values", "wanted"),
    [([0.01, 10.0], {"0.01", "0.1", "1", "10"}), ([0.15, 5.0], {"0.2", "0.5", "1", "2", "5"})],
    ids=["decades", "less than two of them"],
)
def test_ticks_of_a_logarithmic_axis_are_plain_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: list[float], wanted: set[str]
) -> None:
    ticks: list[str] = []
    save = Figure.savefig

    def saved(figure: Figure, *args: object, **options: object) -> None:
        save(figure, *args, **options)  # type: ignore[arg-type]
        for minor in (False, True):
            ticks.extend(label.get_text() for label in figure.axes[0].get_yticklabels(minor=minor))

    monkeypatch.setattr(Figure, "savefig", saved)
    draw(Chart("p", "", "", "", [Line("", [1.0, 2.0], values)], log_y=True), tmp_path)
    assert wanted <= set(ticks)
    assert not any("$" in tick for tick in ticks)
