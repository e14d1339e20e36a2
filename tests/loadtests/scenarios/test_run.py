"""A played scenario: processes start, events happen, and the table has the results."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from loadtests.__main__ import app
from loadtests.live import start as live_start
from loadtests.live.start import Broken
from loadtests.scenarios import contender, run
from loadtests.scenarios.contender import PROXIES
from loadtests.scenarios.file import policy_path, shipped

TEXT = """\
apiVersion: tailgate/v1
kind: Scenario
title: A replica dies
policy: one-tier.yaml
time_scale: 20
contenders: [tailgate, round-robin]
traffic:
  - {tier: standard, rate: 40/s, prompt_tokens: 100, output_tokens: 5}
lasts: 2s
events:
  - {at: 500ms, fault: dead, replica: 2}
  - {at: 700ms, reload: unwatched.yaml}
  - {at: 800ms, drain: r3}
  - {at: 1s, undrain: r3}
"""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine must not make a test fail."""
    monkeypatch.setattr(run, "MAX_LATE_S", 300.0)
    monkeypatch.setattr(contender, "RELOAD_S", 300.0)
    for module in (contender, live_start):
        monkeypatch.setattr(module, "START_S", 300.0)


def round_robin_ends_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only its own test fails; those of others are played."""
    whole = run.ScenarioTest.run

    async def broken(test: run.ScenarioTest) -> run.Report:
        if test.contender.kind == "round-robin":
            raise error
        return await whole(test)

    monkeypatch.setattr(run.ScenarioTest, "run", broken)


@pytest.mark.long
def test_scenario_runs_from_end_to_end(tmp_path: Path) -> None:
    file, out = tmp_path / "it.yaml", tmp_path / "out"
    file.write_text(TEXT)
    done = CliRunner().invoke(app, ["scenario", str(file), "--out", str(out), "--docs", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads((out / "scenario.json").read_text())
    tests = {test["contender"]: test["report"] for test in found["tests"]}
    assert set(tests) == {"tailgate", "round-robin"}
    for report in tests.values():
        assert report["totals"]["offered"] > 50
        assert report["totals"]["finished"] > 40
        answered = {replica: of["finished"] for replica, of in report["replicas"].items()}
        assert answered["r2"] < 0.6 * answered["r1"], "it was dead for three quarters of the time"
    assert (out / "it-goodput.svg").exists()
    assert "| round-robin | 4" in (tmp_path / "it.md").read_text()
    page = (out / "scenario.html").read_text()
    assert "A replica dies" in page
    assert "4 emulated replicas at" in page
    assert done.stderr.splitlines()[0].startswith("2 tests, ")
    assert done.stderr.splitlines()[1:] == ["tailgate", "round-robin"]  # without a terminal there is no spinner
    assert "replica 2 dead" in page
    assert (out / "tailgate" / "report.html").exists()


RELOADED = TEXT.replace("[tailgate, round-robin]", "[tailgate]").replace("700ms, reload", "1900ms, reload")
"""A scenario whose last event is a reload just before the end."""


def test_scenario_fails_if_the_gateway_refuses_its_reload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (wrong := tmp_path / "wrong.yaml").write_text("kind: Policy\n")
    file = tmp_path / "it.yaml"
    file.write_text(RELOADED)
    monkeypatch.setattr(contender, "policy_path", lambda name: wrong if name == "unwatched.yaml" else policy_path(name))
    done = CliRunner().invoke(app, ["scenario", str(file), "--out", str(tmp_path / "out")])
    assert (done.exit_code, done.stdout) == (1, "")
    assert "an event failed: the gateway refuses unwatched.yaml: " in done.stderr
    assert "apiVersion" in done.stderr


@pytest.mark.long
@pytest.mark.long
def test_scenario_fails_if_the_gateway_does_not_notice_its_reload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unmoved(*_: object) -> dict[str, str]:
        return {"digest": "of the policy before", "reload_error": ""}

    monkeypatch.setattr(contender, "_policy", unmoved)
    monkeypatch.setattr(contender, "RELOAD_S", 0.3)
    file = tmp_path / "it.yaml"
    file.write_text(RELOADED)
    done = CliRunner().invoke(app, ["scenario", str(file), "--out", str(tmp_path / "out")])
    assert (done.exit_code, done.stdout) == (1, "")
    assert "an event failed: unwatched.yaml is not in force 0.3 s after it replaced the policy" in done.stderr


@pytest.mark.long
@pytest.mark.long
def test_scenario_clients_retry_if_the_file_says_so(tmp_path: Path) -> None:
    events = "".join(f"  - {{at: 100ms, fault: status_503, replica: {n}, lasts: 500ms}}\n" for n in (1, 2, 3, 4))
    failed = {}
    for retries in (0, 8):
        file, out = tmp_path / "it.yaml", tmp_path / f"{retries}"
        file.write_text(
            f"{TEXT[: TEXT.index('events:')]}events:\n{events}retries: {retries}\n".replace("tailgate, ", "")
        )
        done = CliRunner().invoke(app, ["scenario", str(file), "--out", str(out)])
        assert done.exit_code == 0, done.output
        (test,) = json.loads((out / "scenario.json").read_text())["tests"]
        totals = test["report"]["totals"]
        failed[retries] = totals["offered"] - totals["finished"]
    assert (failed[0] > 5, failed[8]) == (True, 0)


def test_scenario_with_a_late_generator_has_its_own_exit_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "MAX_LATE_S", -1.0)
    file = tmp_path / "it.yaml"
    file.write_text(TEXT.replace("[tailgate, round-robin]", "[round-robin]"))
    done = CliRunner().invoke(app, ["scenario", str(file), "--quick", "--out", str(tmp_path / "out")])
    assert (done.exit_code, "not to be trusted" in done.stdout) == (3, True), done.output
    assert (tmp_path / "out" / "scenario.html").exists()


@pytest.mark.long
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (Broken("round-robin exited with status 1"), "round-robin exited with status 1"),
        (TimeoutError(), "TimeoutError()"),
    ],
)
def test_broken_run_does_not_stop_the_other_runs(
    error: OSError | Broken, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    round_robin_ends_with(error, monkeypatch)
    file, out = tmp_path / "it.yaml", tmp_path / "out"
    file.write_text(TEXT.replace("[tailgate, round-robin]", "[round-robin, tailgate]"))
    done = CliRunner().invoke(app, ["scenario", str(file), "--out", str(out)])
    assert done.exit_code == 1
    assert f"round-robin 1x broke off: {told}" in done.stdout
    found = json.loads((out / "scenario.json").read_text())
    assert [test["contender"] for test in found["tests"]] == ["tailgate"]
    assert [test["contender"] for test in found["broken"]] == ["round-robin"]


@pytest.mark.long
def test_interrupted_scenario_keeps_its_finished_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    round_robin_ends_with(KeyboardInterrupt(), monkeypatch)
    file, out = tmp_path / "it.yaml", tmp_path / "out"
    file.write_text(TEXT)
    done = CliRunner().invoke(app, ["scenario", str(file), "--out", str(out)])
    assert done.exit_code == 130
    assert "Interrupted" in done.stdout
    assert [test["contender"] for test in json.loads((out / "scenario.json").read_text())["tests"]] == ["tailgate"]


def test_scenario_without_a_name_lists_all_with_their_durations() -> None:
    lines = CliRunner().invoke(app, ["scenario"]).stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(shipped())
    assert all(re.match(r"[a-z0-9-]+ +[1-9]\d* min +[A-Z]", line) for line in lines), lines


@pytest.mark.parametrize("option", ["--out", "--contender"])
def test_experiment_scenario_refuses_options_that_it_cannot_use(option: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["scenario", "coordinated-omission", "--quick", option, str(tmp_path / "nginx")])
    assert done.exit_code == 2
    assert option in done.stderr
    assert "experiments run coordinated-omission" in " ".join(done.stderr.split())


def test_scenario_that_is_an_experiment_passes_on_its_other_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[list[str]] = []
    monkeypatch.setattr("loadtests.experiments.__main__.app", told.append)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["scenario", "coordinated-omission", "--quick", "--json", "--docs", "pages"])
    assert (done.exit_code, list(tmp_path.iterdir())) == (0, [])  # the experiment writes its own files
    (flags,) = told
    assert flags[:2] == ["run", "coordinated-omission"]
    assert {"--quick", "--json"} < set(flags)
    assert flags[flags.index("--docs") + 1] == "pages"


def test_contender_outside_the_scenario_is_refused() -> None:
    done = CliRunner().invoke(app, ["scenario", "burst-2x", "--contender", "haproxy"])
    assert done.exit_code == 2
    assert "haproxy is not in this scenario" in done.output


@pytest.mark.parametrize("option", ["--out", "--docs"])
def test_file_in_place_of_an_output_folder_is_refused(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").touch()
    done = CliRunner().invoke(app, ["scenario", "burst-2x", "--quick", option, "notes.txt"])
    assert done.exit_code == 2
    assert f"{option}: cannot write notes.txt: that is a file: name a folder" in done.stderr


def test_contender_that_does_not_start_is_left_out_with_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROXIES, "nginx", lambda port, replicas, folder: ["false"])
    file = tmp_path / "it.yaml"
    file.write_text(TEXT.replace("[tailgate, round-robin]", "[nginx]"))
    done = CliRunner().invoke(app, ["scenario", str(file), "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "nginx was left out: it did not start: nginx exited with status 1" in done.stdout


@pytest.mark.long
def test_scenario_fails_if_an_event_is_due_after_the_last_request(tmp_path: Path) -> None:
    file = tmp_path / "it.yaml"
    late = RELOADED.replace("lasts: 2s", "lasts: 60s").replace("{tier:", "{until: 2s, tier:").replace("1900ms", "50s")
    file.write_text(late)
    done = CliRunner().invoke(app, ["scenario", str(file), "--out", str(tmp_path / "out")])
    assert done.exit_code == 1
    assert "the test was over before the event at 50 s: send requests for longer" in done.stderr


@pytest.mark.long
@pytest.mark.long
def test_scenario_test_without_counted_requests_does_not_affect_others(tmp_path: Path) -> None:
    file, out = tmp_path / "it.yaml", tmp_path / "out"
    quiet = TEXT.partition("events:")[0].replace("40/s", "1/min").replace("[tailgate, round-robin]", "[tailgate]")
    file.write_text(quiet + "sweep: [0.1, 2400]\n")
    done = CliRunner().invoke(app, ["scenario", str(file), "--out", str(out)])
    assert done.exit_code == 1
    found = json.loads((out / "scenario.json").read_text())
    assert ["no request was due" in broken["why"] for broken in found["broken"]] == [True]
    assert [test["times"] for test in found["tests"]] == [2400]
