"""`tailgate load report`: the files that it writes."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from loadtests.__main__ import app
from loadtests.report.pictures import NAMES, pictures
from tests.loadtests.report.made import POLICY, written
from tests.loadtests.report.test_figures import MIXED


def drawn(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*.svg")}


def test_report_command_writes_each_picture_to_a_file(tmp_path: Path) -> None:
    folder = written(tmp_path, MIXED, policy=None)
    assert CliRunner().invoke(app, ["report", str(folder)]).exit_code == 0
    found = json.loads((folder / "report.json").read_text())
    assert drawn(folder) == {picture.name for picture in pictures(found)} > {"misses"}
    assert drawn(folder) <= set(NAMES)


def test_report_removes_its_old_pictures_and_no_others(tmp_path: Path) -> None:
    folder = written(tmp_path, MIXED, policy=None)
    for name in (*NAMES, "mine"):
        (folder / f"{name}.svg").touch()
    assert CliRunner().invoke(app, ["report", str(folder)]).exit_code == 0
    found = json.loads((folder / "report.json").read_text())
    assert drawn(folder) == {"mine", *(picture.name for picture in pictures(found))} < {"mine", *NAMES}


def test_report_command_on_a_folder_without_a_test_keeps_its_pictures(tmp_path: Path) -> None:
    (tmp_path / "misses.svg").touch()
    assert CliRunner().invoke(app, ["report", str(tmp_path)]).exit_code == 2
    assert drawn(tmp_path) == {"misses"}


def test_report_of_one_folder_is_written_there_and_nowhere_else(tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["report", str(tmp_path), "--out", str(tmp_path / "other")])
    assert found.exit_code == 2
    assert "--out: goes with several shards" in found.stderr


def test_report_whose_pictures_cannot_be_written_says_so(tmp_path: Path) -> None:
    folder = written(tmp_path, MIXED, policy=None)
    (folder / "misses.svg").mkdir()
    found = CliRunner().invoke(app, ["report", str(folder)])
    assert found.exit_code == 1
    assert "misses.svg" in found.stderr


def test_report_made_again_is_judged_by_the_policy_of_its_test(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    folder = written(tmp_path / "test", MIXED, policy=str(policy))

    def totals(*given: str) -> tuple[str | None, int]:
        made = CliRunner().invoke(app, ["report", str(folder), *given])
        assert made.exit_code == 0, made.output
        found = json.loads((folder / "report.json").read_text())
        return found["about"]["policy"], found["totals"]["good"]

    assert totals() == totals("--policy", str(policy))
    named, good = totals("--no-policy")
    assert named is None
    assert good > totals()[1]
    policy.unlink()
    found = CliRunner().invoke(app, ["report", str(folder)])
    assert found.exit_code == 2
    assert "policy.yaml, which is not there: give --policy FILE" in " ".join(found.stderr.split())
