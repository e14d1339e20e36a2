"""A scenario as a table and pictures: the tier whose TTFT is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.charts.chart import Chart
from loadtests.replay.columns import read_rows
from loadtests.replay.request import Outcome
from loadtests.report.figures import report
from loadtests.report.run_file import read_run
from loadtests.scenarios.file import ScenarioFile
from loadtests.scenarios.picture import Report, grid, pictures
from tests.loadtests.report.made import SECONDS, answered, policy, refused, written

STREAM = {"rate": "1/s", "prompt_tokens": 50, "output_tokens": 11}
FILE = {
    "apiVersion": "tailgate/v1",
    "kind": "Scenario",
    "title": "Two tiers",
    "contenders": ["tailgate"],
    "traffic": [{"tier": "gold", **STREAM}, {"tier": "free", **STREAM}],
    "lasts": "100s",
}
SCENARIO = ScenarioFile.model_validate(FILE)


def mixed(folder: Path) -> Report:
    """Gold answers at once, free ones after four seconds."""
    seconds = range(int(SECONDS))
    gold = [answered(float(at), "gold", ttft_s=0.1) for at in seconds]
    free = [answered(at + 0.5, "free", ttft_s=4.0) for at in seconds]
    both = sorted((*gold, *free), key=lambda request: request.arrival.at)
    written(folder, both)
    return report(read_run(folder), read_rows(folder), policy())


def test_scenario_picture_shows_ttft_of_the_first_stream_only(tmp_path: Path) -> None:
    reports = {("tailgate", 1.0): mixed(tmp_path)}
    found = grid(SCENARIO, reports)
    row = dict(zip(found.columns, found.rows[0], strict=True))
    assert row["TTFT p50 of gold, s"] == row["p99, s"] == "0.1"
    _, ttft = pictures(SCENARIO, reports, "two")
    assert isinstance(ttft, Chart)
    assert "gold" in ttft.title
    assert {round(value, 3) for value in ttft.lines[0].y if value is not None} == {0.1}


def test_scenario_goodput_over_time_weighs_requests_by_value_when_due(tmp_path: Path) -> None:
    """Gold, worth four times as much, is late in the first half."""
    gold = [answered(float(at), "gold", ttft_s=3.0 if at < SECONDS / 2 else 0.1) for at in range(int(SECONDS))]
    free = [answered(at + 0.5, "free") for at in range(int(SECONDS))]
    written(tmp_path, sorted((*gold, *free), key=lambda request: request.arrival.at))
    found = report(read_run(tmp_path), read_rows(tmp_path), policy())
    goodput, _ = pictures(SCENARIO, {("tailgate", 1.0): found}, "two")
    assert isinstance(goodput, Chart)
    shares = dict(zip(goodput.lines[0].x, goodput.lines[0].y, strict=True))
    early = [share for at, share in shares.items() if at < SECONDS / 2 - 10]
    assert early == pytest.approx([1 / 5] * len(early), abs=0.02)
    assert {share for at, share in shares.items() if at > SECONDS / 2 + 10} == {1.0}


def test_unfinished_requests_are_not_drawn_as_failures(tmp_path: Path) -> None:
    requests = [answered(1.0), refused(2.0, outcome=Outcome.UNFINISHED, reason=""), refused(3.0, outcome=Outcome.RESET)]
    written(tmp_path / "left", requests)
    left = report(read_run(tmp_path / "left"), read_rows(tmp_path / "left"), policy())
    found = grid(SCENARIO, {("tailgate", 1.0): left, ("nginx", 1.0): mixed(tmp_path / "mixed")})
    rows = [dict(zip(found.columns, row, strict=True)) for row in found.rows]
    assert [(row["failed"], row["not waited for"]) for row in rows] == [("1", "1"), ("0", "0")]
    assert "not waited for" not in grid(SCENARIO, {("nginx", 1.0): mixed(tmp_path / "mixed")}).columns


def test_scenario_picture_marks_every_event(tmp_path: Path) -> None:
    events = [{"at": "20s", "reload": "a.yaml"}, {"at": "30s", "drain": "r1"}, {"at": "40s", "reload": "b.yaml"}]
    scenario = ScenarioFile.model_validate({**FILE, "events": events})
    (chart, _) = pictures(scenario, {("tailgate", 1.0): mixed(tmp_path)}, "reloads")
    assert isinstance(chart, Chart)
    assert chart.marks == {"reload (1)": 20.0, "drain r1": 30.0, "reload (2)": 40.0}


def test_scenario_picture_marks_a_fault_with_its_replica_and_end(tmp_path: Path) -> None:
    faults = [{"at": "20s", "fault": "slow", "replica": n, "lasts": "15s"} for n in (2, 4)]
    dead = {"at": "20s", "fault": "dead", "replica": 1}
    scenario = ScenarioFile.model_validate({**FILE, "events": [*faults, dead]})
    (chart, _) = pictures(scenario, {("tailgate", 1.0): mixed(tmp_path)}, "faults")
    assert isinstance(chart, Chart)
    assert chart.marks == {"replica 1 dead": 20.0, "replicas 2, 4 slow": 20.0, "replicas 2, 4 well again": 35.0}


def test_scenario_picture_has_one_mark_for_a_replica_drained_killed_and_restored(tmp_path: Path) -> None:
    events = [
        {"at": "5s", "drain": "r1"},
        {"at": "8s", "fault": "dead", "replica": 1, "lasts": "2s"},
        {"at": "9s", "fault": "slow", "replica": 2, "lasts": "2s"},
        {"at": "12s", "undrain": "r1"},
        {"at": "15s", "undrain": "r3"},
    ]
    scenario = ScenarioFile.model_validate({**FILE, "events": events})
    (chart, _) = pictures(scenario, {("tailgate", 1.0): mixed(tmp_path)}, "restart")
    assert isinstance(chart, Chart)
    assert chart.marks == {
        "r1 drained until 12": 5.0,
        "replica 2 slow": 9.0,
        "replica 2 well again": 11.0,
        "undrain r3": 15.0,
    }
    events = [
        {"at": f"{n}s", kind: "r1"} for n, kind in ((10, "drain"), (20, "undrain"), (50, "drain"), (60, "undrain"))
    ]
    quick = mixed(tmp_path / "quick")
    quick["about"]["planned_s"] /= 5
    (chart, _) = pictures(ScenarioFile.model_validate({**FILE, "events": events}), {("tailgate", 1.0): quick}, "quick")
    assert isinstance(chart, Chart)
    assert chart.marks == {"r1 drained until 4": 2.0, "r1 drained until 12": 10.0}


def test_scenario_table_counts_requests_of_all_tiers(tmp_path: Path) -> None:
    found = grid(SCENARIO, {("tailgate", 1.0): mixed(tmp_path)})
    row = dict(zip(found.columns, found.rows[0], strict=True))
    assert row["offered/s"] == "2.0"


def test_tier_without_counted_requests_has_no_figures_and_does_not_affect_others(tmp_path: Path) -> None:
    written(tmp_path / "free", [answered(float(at), "free") for at in range(50)])
    free = report(read_run(tmp_path / "free"), read_rows(tmp_path / "free"), policy())
    reports = {("tailgate", 1.0): mixed(tmp_path / "mixed"), ("nginx", 1.0): free}
    found = grid(SCENARIO, reports)
    row = dict(zip(found.columns, found.rows[1], strict=True))
    assert (row["gold"], row["TTFT p50 of gold, s"], row["p99, s"]) == ("–", "–", "–")
    _, ttft = pictures(SCENARIO, reports, "two")
    assert isinstance(ttft, Chart)
    assert [line.name for line in ttft.lines] == ["tailgate"]
