"""Pictures drawn in processes beside other work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from loadtests.charts import drawing as module
from loadtests.charts.chart import Chart, Line
from loadtests.charts.drawing import NotDrawn, drawing
from loadtests.charts.png import draw


def chart(name: str) -> Chart:
    return Chart(name, "A line", "x", "y", [Line("one", (0.0, 1.0), (1.0, float(len(name))))])


def test_each_picture_is_the_one_that_is_drawn_here(tmp_path: Path) -> None:
    charts = [chart("a"), chart("bb"), chart("ccc")]
    with drawing(tmp_path / "there") as hand_over:
        hand_over(charts)
    for one in charts:
        here = draw(one, tmp_path / "here")
        assert (tmp_path / "there" / here.name).read_bytes() == here.read_bytes()


@pytest.mark.parametrize("count", [0, 1])
def test_there_may_be_fewer_pictures_than_processes(tmp_path: Path, count: int) -> None:
    with drawing(tmp_path) as hand_over:
        hand_over([chart("a")] * count)
    assert len(list(tmp_path.iterdir())) == count


def test_nothing_is_drawn_where_the_work_beside_it_fails(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), drawing(tmp_path):
        _ = 1 / 0
    assert list(tmp_path.iterdir()) == []


FAILS_LATER = """
import sys
from pathlib import Path
from loadtests.charts.chart import Chart
from loadtests.charts.drawing import drawing

folder = Path(sys.argv[1])
with drawing(folder) as hand_over:
    hand_over([Chart(f"{n}", "", "", "", []) for n in range(200)])
    while not list(folder.iterdir()):
        pass
    raise ZeroDivisionError
"""


def test_nobody_goes_on_drawing_where_it_fails_later(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FAILS_LATER, tmp_path], stderr=subprocess.PIPE, timeout=60)
    # Standard error has ended: nobody has it any longer.
    assert b"ZeroDivisionError" in done.stderr
    assert 1 <= len(list(tmp_path.iterdir())) < 200


def test_a_picture_that_cannot_be_drawn_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotDrawn, match=r"pictures are missing in .*file"), drawing(tmp_path / "file") as hand_over:
        hand_over([chart("a")])


def test_so_is_a_process_that_ends_before_it_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.sys, "executable", "/bin/false")
    with pytest.raises(NotDrawn), drawing(tmp_path) as hand_over:
        hand_over([chart("a" * 100_000)])
