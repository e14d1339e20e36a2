"""Pictures drawn in processes beside other work."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from loadtests.charts import drawing as module
from loadtests.charts.chart import Chart, Line
from loadtests.charts.drawing import NotDrawn, drawing
from loadtests.charts.png import draw


def chart(name: str) -> Chart:
    return Chart(name, "A line", "x", "y", [Line("one", (0.0, 1.0), (1.0, float(len(name))))])


def test_picture_drawn_in_a_process_equals_one_drawn_in_place(tmp_path: Path) -> None:
    charts = [chart("a"), chart("bb"), chart("ccc")]
    with drawing(tmp_path / "there") as hand_over:
        hand_over(charts)
    for one in charts:
        here = draw(one, tmp_path / "here")
        assert (tmp_path / "there" / here.name).read_bytes() == here.read_bytes()


@pytest.mark.parametrize("count", [0, 1])
def test_drawing_works_with_fewer_pictures_than_processes(tmp_path: Path, count: int) -> None:
    with drawing(tmp_path) as hand_over:
        hand_over([chart("a")] * count)
    assert len(list(tmp_path.iterdir())) == count


def test_no_picture_is_drawn_if_the_work_beside_the_drawing_fails(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), drawing(tmp_path):
        _ = 1 / 0
    assert list(tmp_path.iterdir()) == []


def test_drawing_removes_only_its_own_half_pictures(tmp_path: Path) -> None:
    others = {"another.png.part", "download.part", "whole.png"}
    for name in ("half.png.part", *others):
        (tmp_path / name).touch()

    def fails_later(hand_over: Callable[[list[Chart]], None]) -> None:
        hand_over([chart("half")])
        _ = 1 / 0

    with pytest.raises(ZeroDivisionError), drawing(tmp_path) as hand_over:
        fails_later(hand_over)
    assert {path.name for path in tmp_path.iterdir()} - {"half.png"} == others


FAILS_LATER = """
import sys
from pathlib import Path
from loadtests.charts.chart import Chart
from loadtests.charts.drawing import drawing

folder = Path(sys.argv[1])
with drawing(folder) as hand_over:
    hand_over([Chart(f"{n}", "", "", "", []) for n in range(200)])
    while not list(folder.glob("*.png")):
        pass
    raise ZeroDivisionError
"""


def test_every_drawing_process_stops_after_a_failure(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FAILS_LATER, tmp_path], stderr=subprocess.PIPE, timeout=300)
    # Standard error has ended: no process holds it.
    assert b"ZeroDivisionError" in done.stderr
    drawn = list(tmp_path.glob("*.png"))
    assert 1 <= len(drawn) < 200
    assert all(picture.read_bytes().endswith(b"IEND\xaeB`\x82") for picture in drawn), "half a picture"


def test_a_picture_that_cannot_be_drawn_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotDrawn, match=r"pictures are missing in .*file"), drawing(tmp_path / "file") as hand_over:
        hand_over([chart("a")])


def test_drawing_process_that_ends_early_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(NotDrawn), drawing(tmp_path) as hand_over:
        hand_over([chart("a" * 100_000)])


NO_SECOND_FORK = """#!{python}
import os, sys
from loadtests.charts import drawing

fork, forks = os.fork, []

def fork_once():
    if forks:
        raise BlockingIOError(11, "Resource temporarily unavailable")
    forks.append(True)
    return fork()

os.fork, drawing._cores, sys.argv = fork_once, lambda: 2, sys.argv[2:]
drawing.main()
"""


def test_drawing_ends_with_an_error_when_no_process_can_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "python"
    script.write_text(NO_SECOND_FORK.format(python=sys.executable))
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", f"{script}")
    with pytest.raises(NotDrawn, match="status 1"), drawing(tmp_path) as hand_over:
        hand_over([chart("a"), chart("bb")])
    assert "BlockingIOError" in capfd.readouterr().err


@pytest.mark.parametrize("cores", [1, 3])
def test_charts_are_identical_on_any_number_of_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    monkeypatch.setattr(module, "_cores", lambda: cores)
    charts = [chart("a"), chart("bb"), chart("ccc")]
    module.draw_all(charts, tmp_path / "there")
    assert {path.name for path in (tmp_path / "there").iterdir()} == {"a.png", "bb.png", "ccc.png"}
    for one in charts:
        here = draw(one, tmp_path / "here")
        assert (tmp_path / "there" / here.name).read_bytes() == here.read_bytes()
