"""The picture of README.md is drawn from the table of its page, and of tests whose generator was in time."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadtests.charts.svg import draw
from loadtests.scenarios import headline
from loadtests.scenarios.file import ScenarioFile
from loadtests.scenarios.headline import CONTENDERS, PAGE, SWEEP, main, pictures, rows_of
from loadtests.scenarios.run import Played

RESULTS = Path(__file__).resolve().parents[3] / "docs" / "results"
TEXT = (RESULTS / PAGE).read_text()


def test_page_has_each_contender_at_each_load_and_no_more_good_than_offered() -> None:
    rows = list(rows_of(TEXT))
    assert [name for name, _ in rows] == [name for name in CONTENDERS for _ in SWEEP]
    assert all((of["good/s"] or 0.0) <= (of["offered/s"] or 0.0) for _, of in rows)


@pytest.mark.parametrize("picture", pictures(TEXT), ids=lambda picture: picture.name)
def test_committed_picture_is_drawn_from_the_page(picture: Any, tmp_path: Path) -> None:
    drawn = draw(picture, tmp_path)
    assert drawn.read_text() == (RESULTS / drawn.name).read_text()


def report(trusted: bool, good_per_s: float) -> dict[str, Any]:
    ttft = {"premium": {"latencies": {"ttft": {"p99": None}}}}
    totals = {"offered_per_s": 20.0, "answered_per_s": 15.0, "good_per_s": good_per_s}
    late = {"late_p99_s": 0.001 if trusted else 0.5, "unread_p99_s": 0.0}
    return {"trusted": trusted, "totals": totals, "tiers": ttft, "generator": late, "seconds": 20.0}


@pytest.fixture
def player(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Instead of playing: nginx at 1x is late in its first `late` tries, and each try has one more good request."""

    def install(late: int) -> None:
        tries = 0

        def play(scenario: ScenarioFile, out: Path, quick: bool, tell: object) -> Played:
            nonlocal tries
            tries += 1
            played = Played(scenario, quick)
            for of in scenario.contenders:
                for times in scenario.sweep:
                    is_late = (of.called, times) == ("nginx", 1.0) and tries <= late
                    played.reports[of.called, times] = report(not is_late, float(tries))
            return played

        monkeypatch.setattr(headline, "play_scenario", play)
        monkeypatch.setattr(headline, "notes", lambda played: [])

    return install


def test_late_test_is_played_again_and_only_that_one(player: Callable[[int], None], tmp_path: Path) -> None:
    player(1)
    shutil.copy(RESULTS / PAGE, tmp_path)
    main(tmp_path)
    rows = list(rows_of((tmp_path / PAGE).read_text()))
    assert [of["good/s"] for name, of in rows if name == "nginx"] == [1.0, 2.0, 1.0, 1.0]
    assert {of["premium TTFT p99, s"] for _, of in rows} == {None}
    assert {path.suffix for path in tmp_path.iterdir()} == {".md", ".svg"}


def test_nothing_is_written_if_a_test_is_late_in_every_try(
    player: Callable[[int], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    player(headline.TRIES)
    shutil.copy(RESULTS / PAGE, tmp_path)
    with pytest.raises(SystemExit, match="3"):
        main(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [PAGE]
    assert (tmp_path / PAGE).read_text() == TEXT
    assert "Nothing is written: the generator was late in all 3 tries." in capsys.readouterr().out
