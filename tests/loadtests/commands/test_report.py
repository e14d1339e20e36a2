"""`python -m loadtests report`: the files that it writes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from loadtests.__main__ import app
from loadtests.report.pictures import NAMES, pictures
from tests.loadtests.report.made import written
from tests.loadtests.report.test_figures import MIXED


def drawn(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*.png")}


def test_report_command_writes_each_picture_to_a_file(tmp_path: Path) -> None:
    folder = written(tmp_path, MIXED)
    assert CliRunner().invoke(app, ["report", str(folder)]).exit_code == 0
    found = json.loads((folder / "report.json").read_text())
    assert drawn(folder) == {picture.name for picture in pictures(found)} > {"misses"}
    assert drawn(folder) <= set(NAMES)


def test_report_pictures_are_written_only_on_request_and_old_ones_are_removed(tmp_path: Path) -> None:
    folder = written(tmp_path, MIXED)
    for name in (*NAMES, "mine"):
        (folder / f"{name}.png").touch()
    assert CliRunner().invoke(app, ["report", str(folder), "--no-png"]).exit_code == 0
    assert drawn(folder) == {"mine"}
    assert (folder / "report.html").exists()


def test_report_command_on_a_folder_without_a_test_keeps_its_pictures(tmp_path: Path) -> None:
    (tmp_path / "misses.png").touch()
    assert CliRunner().invoke(app, ["report", str(tmp_path)]).exit_code == 2
    assert drawn(tmp_path) == {"misses"}


def test_report_without_drawable_pictures_says_so_and_is_otherwise_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = written(tmp_path, MIXED)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    found = CliRunner().invoke(app, ["report", str(folder)])
    assert found.exit_code == 1
    assert "pictures are missing" in found.stderr
    assert "requests/s offered" in found.stdout
    assert (folder / "report.json").exists()
    assert (folder / "report.html").exists()
