"""The picture of README.md shows what the page of its scenario has."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.charts.svg import draw
from loadtests.scenarios.headline import pictures, rows_of

RESULTS = Path(__file__).resolve().parents[3] / "docs" / "results"
PAGE = (RESULTS / "scenarios" / "overload.md").read_text()


def test_rows_are_those_of_the_page() -> None:
    rows = rows_of(PAGE)
    assert [row[""] for row in rows["nginx"]] == [f"nginx {load}x" for load in (0.5, 0.9, 1.5, 2.5)]
    assert all(float(row["good/s"]) <= float(row["offered/s"]) for row in rows["tailgate"])


@pytest.mark.parametrize("picture", pictures(PAGE), ids=lambda picture: picture.name)
def test_committed_picture_is_drawn_from_the_page(picture: object, tmp_path: Path) -> None:
    draw(picture, tmp_path)  # type: ignore[arg-type]
    (drawn,) = tmp_path.iterdir()
    assert drawn.read_text() == (RESULTS / drawn.name).read_text()
