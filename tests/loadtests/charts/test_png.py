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


@pytest.mark.parametrize("picture", [CHART, BARS], ids=["chart", "bars"])
def test_dollars_in_names_are_no_mathematics(tmp_path: Path, picture: Picture) -> None:
    assert draw(picture, tmp_path).read_bytes().startswith(b"\x89PNG")


def test_powers_of_ten_on_an_axis_are_mathematics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks: list[str] = []
    save = Figure.savefig

    def saved(figure: Figure, *args: object, **options: object) -> None:
        save(figure, *args, **options)  # type: ignore[arg-type]
        ticks.extend(label.get_text() for label in figure.axes[0].get_yticklabels())

    monkeypatch.setattr(Figure, "savefig", saved)
    draw(CHART, tmp_path)
    assert any(tick.startswith(r"$\mathdefault{10^") for tick in ticks)
