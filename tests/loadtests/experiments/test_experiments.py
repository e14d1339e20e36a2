"""The runner of experiments: figures are judged by the targets, written as JSON and drawn."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from gateway.core.policy import AdmissionMode
from gateway.sim.analysis.costs import costs, job_of
from gateway.sim.analysis.report import Interval
from gateway.sim.engine.fleet import FleetSpec
from loadtests.experiments import one_tier, paced
from loadtests.experiments import runner as runners
from loadtests.experiments.__main__ import EVERY_S, app
from loadtests.experiments.coordinated_omission import _exact_p99
from loadtests.experiments.findings import Chart, Findings, Grid, Line, bare, line, written
from loadtests.experiments.missed import WHY
from loadtests.experiments.pages import write_page
from loadtests.experiments.registry import EXPERIMENTS, about
from loadtests.experiments.routing_staleness import NAMES, _fleet, _Frozen, _run
from loadtests.experiments.runner import (
    FULL,
    QUICK,
    Effort,
    Runner,
    against,
    constrained_replays,
    optimum,
    ours,
    without_lengths,
)
from loadtests.experiments.slo_knees import _knee
from loadtests.experiments.staller import answered_at
from loadtests.experiments.targets import TARGETS, at_least, at_most
from loadtests.experiments.verdicts import as_json
from tests.interpreted import interpreted

ROOT = Path(__file__).parents[3]
SHORT = Effort(seeds=2, seconds=5.0, warmup_s=1.0, quick=True)


@pytest.fixture
def runner() -> Runner:
    return Runner(SHORT)


@pytest.mark.parametrize(
    ("value", "low", "met"), [(0.3, 0.2, True), (0.3, 0.05, False), (0.3, None, False), (0.1, 0.09, False)]
)
def test_experiment_target_may_also_limit_the_low_end_of_the_interval(
    value: float, low: float | None, met: bool
) -> None:
    assert at_least(0.2, low_above=0.1).met(Interval(value, low, 1.0, 10)) is met


def test_experiment_targets_include_their_limit() -> None:
    assert at_least(0.9).met(bare(0.9, 1))
    assert not at_least(0.9).met(bare(0.89, 1))
    assert at_most(0.02).met(bare(0.02, 1))
    assert not at_most(0.02).met(bare(0.021, 1))


def test_experiment_json_has_value_interval_target_and_pass_for_every_figure() -> None:
    found = Findings(
        (1, 2),
        {"mean_ece": Interval(0.02, 0.01, 0.03, 2), "brier_skill": bare(0.1, 2), "other": bare(1.0, 2)},
    )
    document = json.loads(json.dumps(as_json("calibration", found, SHORT)))
    assert document["name"] == "calibration"
    assert document["seeds"] == [1, 2]
    assert document["figures"] == {
        "mean_ece": {
            "value": 0.02,
            "interval": [0.01, 0.03],
            "target": "<= 0.03",
            "pass": True,
            "n": 2,
        },
        "brier_skill": {"value": 0.1, "interval": None, "target": ">= 0.3", "pass": False, "n": 2},
        "other": {"value": 1.0, "interval": None, "target": None, "pass": None, "n": 2},
    }


def test_experiment_page_has_its_figures_and_one_picture(tmp_path: Path) -> None:
    found = Findings((1, 2), {"mean_disturbed_to_not": Interval(0.9, 0.8, 0.92, 2), "other": bare(1.0, 2)})
    found.grids.append(Grid("A table", ["a", "b"], [["1", "2"]]))
    lines = [
        line("x", (1, 2), [bare(0.1, 2), Interval(0.2, 0.1, 0.3, 2)]),
        Line("y", (1, 2), (0.1, 0.2), (0.0, 0.1), (0.2, 0.3)),
    ]
    found.charts.append(Chart("pic", "A chart", "load", "share", lines, marks={"here": 1.5}))
    found.charts.append(Chart("other", "Another", "load", "seconds", lines))
    page = write_page("noise", "What.\n\nHow.", found, SHORT, tmp_path, 90.0).read_text()
    assert "| `mean_disturbed_to_not` | 0.9 [0.8, 0.92] | >= 0.95 | **missed** |" in page
    assert "| a | b |" not in page
    assert "`other`" not in page
    assert f"## Missed\n\n{WHY['noise']}" in page
    assert "![A chart](pic.svg)" in page
    first = (tmp_path / "pic.svg").read_bytes()
    assert first.startswith(b"<svg")
    assert not (tmp_path / "other.svg").exists()
    write_page("noise", "What.", found, SHORT, tmp_path, 90.0)
    assert (tmp_path / "pic.svg").read_bytes() == first


def test_experiment_figures_are_written_with_their_interval() -> None:
    assert written(Interval(0.9704, 0.9661, 0.9743, 3)) == "0.970 (0.966 to 0.974)"
    assert written(bare(12.0, 1), 0) == "12"
    assert written(None) == ""


def test_every_experiment_has_a_description_that_the_list_shows() -> None:
    shown = CliRunner().invoke(app, ["list"]).output
    for name in EXPERIMENTS:
        assert about(name).partition("\n")[0].endswith((".", "?"))
        assert name in shown


def test_every_experiment_but_the_exempt_ones_has_targets() -> None:
    assert set(EXPERIMENTS) - set(TARGETS) <= {"slo-knees", "split"}


def test_unknown_experiment_name_gets_a_hint() -> None:
    wrong = CliRunner().invoke(app, ["run", "overlaod"])
    assert wrong.exit_code == 2
    assert "did you mean overload?" in wrong.output


@pytest.mark.parametrize(("asked", "effort"), [((), Effort()), (("--full",), FULL), (("--quick",), QUICK)])
def test_experiment_runs_with_the_requested_effort(
    asked: tuple[str, ...], effort: Effort, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadtests.experiments.__main__.as_users_have_it", lambda *_, **__: None)
    asked_of: list[Effort] = []

    def tiers(runner: Runner) -> Findings:
        asked_of.append(runner.effort)
        return _missing(runner)

    monkeypatch.setitem(EXPERIMENTS, "tiers", tiers)
    CliRunner().invoke(app, ["run", "tiers", *asked])
    assert asked_of == [effort]


def test_quick_and_full_options_exclude_each_other() -> None:
    wrong = CliRunner().invoke(app, ["run", "tiers", "--quick", "--full"])
    assert wrong.exit_code == 2
    assert "contradict" in wrong.output


def test_experiment_run_prints_results_writes_pages_and_fails_on_a_miss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(EXPERIMENTS, "tiers", _missing)
    docs = tmp_path / "not" / "there yet"
    arguments = ["run", "tiers", "--quick", "--json", "--docs", str(docs)]
    run = CliRunner().invoke(app, arguments)
    assert run.exit_code == 1
    assert json.loads(run.stdout)["figures"]["least_floor"]["pass"] is False
    assert "least_floor" in (docs / "tiers.md").read_text()
    assert CliRunner().invoke(app, [*arguments, "--no-fail"]).exit_code == 0


@interpreted  # else `--pure` restarts the process
def test_experiment_target_without_a_measurement_is_not_met(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some = {key: bare(0.0, 1) for key in TARGETS["outside-tools"] if key.startswith("aiperf")}
    monkeypatch.setitem(EXPERIMENTS, "outside-tools", lambda runner: Findings((1,), some, notes=["wrk was left out"]))
    run = CliRunner().invoke(app, ["run", "outside-tools", "--pure", "--docs", str(tmp_path)])
    assert run.exit_code == 1
    assert "| `wrk_e2e_p99_off` | not measured | <= 0.05 | **missed** |" in (tmp_path / "outside-tools.md").read_text()
    printed = CliRunner().invoke(app, ["run", "outside-tools", "--pure", "--no-fail", "--json"])
    assert printed.exit_code == 0
    figure = json.loads(printed.stdout)["figures"]["wrk_e2e_p99_off"]
    assert (figure["value"], figure["pass"]) == (None, False)
    # A quick run may leave some out.
    assert CliRunner().invoke(app, ["run", "outside-tools", "--quick"]).exit_code == 0


def test_notes_of_an_experiment_are_on_screen_and_in_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    note = "overload 0.9x could not be played: [Errno 98] address in use"
    findings = Findings((1,), {"p95_of_tiers_most_off": bare(math.inf, 1)}, notes=[note])
    monkeypatch.setitem(EXPERIMENTS, "simulated-live", lambda runner: findings)
    assert note in " ".join(CliRunner().invoke(app, ["run", "simulated-live", "--quick"]).output.split())

    def no_json(constant: str) -> None:
        pytest.fail(f"{constant} is no JSON")

    printed = CliRunner().invoke(app, ["run", "simulated-live", "--quick", "--json"]).stdout
    document = json.loads(printed, parse_constant=no_json)
    assert document["notes"] == [note]
    assert document["figures"]["p95_of_tiers_most_off"]["value"] is None


def test_unwritable_page_folder_is_refused_before_any_experiment_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(EXPERIMENTS, "tiers", lambda runner: pytest.fail("it was run"))
    (tmp_path / "notes.txt").touch()
    run = CliRunner().invoke(app, ["run", "tiers", "--quick", "--docs", str(tmp_path / "notes.txt")])
    assert run.exit_code == 2
    assert "--docs: cannot write" in run.output
    monkeypatch.setattr("os.access", lambda path, mode: (path, mode) != (tmp_path, os.W_OK))  # root may write anywhere
    run = CliRunner().invoke(app, ["run", "tiers", "--quick", "--docs", str(tmp_path)])
    assert run.exit_code == 2
    assert "Permission denied" in run.output


def test_progress_is_printed_at_intervals_without_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, EVERY_S - 1.0, EVERY_S, EVERY_S + 1.0, 2.5 * EVERY_S])
    monkeypatch.setattr("loadtests.experiments.__main__.monotonic", lambda: next(now))

    def steps(runner: Runner) -> Findings:
        for step in ("first", "second", "third", "fourth"):
            runner.tell(step)
        return Findings(runner.seeds)

    monkeypatch.setitem(EXPERIMENTS, "tiers", steps)
    run = CliRunner().invoke(app, ["run", "tiers", "--quick", "--json"])
    assert run.exit_code == 0
    assert run.stderr.splitlines() == ["tiers: second", "tiers: fourth"]


def test_a_table_of_figures_in_a_pipe_has_one_line_for_each_with_its_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = {"least_floor": Interval(0.0123, 0.0111, 0.0145, 2), f"{'long_' * 12}name": bare(1.0, 2)}
    monkeypatch.setitem(EXPERIMENTS, "tiers", lambda runner: Findings(runner.seeds, figures))
    out = CliRunner().invoke(app, ["run", "tiers", "--quick"]).stdout
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if line.startswith("│")]
    assert rows == [
        ["least_floor", "0.0123", "0.0111 to 0.0145", ">= 0.05", "missed"],
        [f"{'long_' * 12}name", "1", "", "reported", ""],
    ]


def test_an_experiment_that_breaks_off_does_not_stop_the_others_and_fails_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def breaks_off(runner: Runner) -> Findings:
        raise RuntimeError("the gateway [g1] exited\nwith status 1")

    monkeypatch.setitem(EXPERIMENTS, "overload", breaks_off)
    monkeypatch.setitem(EXPERIMENTS, "tiers", _missing)
    run = CliRunner().invoke(app, ["run", "overload", "tiers", "--quick", "--no-fail"])
    assert run.exit_code == 1
    assert "least_floor" in run.stdout
    assert "Traceback" in run.stderr
    assert "RuntimeError: the gateway [g1] exited" in run.stdout


def test_several_experiments_are_numbered_and_end_with_a_table_of_times_and_missed_targets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds = iter([0.0, 61.0, 100.0, 129.0])
    monkeypatch.setattr("loadtests.experiments.__main__.perf_counter", lambda: next(seconds))
    monkeypatch.setitem(EXPERIMENTS, "tiers", _missing)
    monkeypatch.setitem(EXPERIMENTS, "slo-knees", lambda runner: Findings(runner.seeds))
    run = CliRunner().invoke(app, ["run", "tiers", "slo-knees", "--quick", "--json"])
    assert run.exit_code == 1
    assert [json.loads(line)["name"] for line in run.stdout.splitlines()] == ["tiers", "slo-knees"]
    first, second, title, *table = run.stderr.splitlines()
    assert (first, second) == ("tiers (1 of 2)", "slo-knees (2 of 2)")
    assert title.strip() == "2 experiments in 1.5 minutes"
    told = [[cell.strip() for cell in line.split("│")[1:-1]] for line in table if line.startswith("│")]
    assert told == [["tiers", "61 s", "0 of 1", "least_floor"], ["slo-knees", "29 s", "", ""]]


@interpreted  # else a run that is not quick restarts the process
def test_remaining_time_is_shown_only_if_all_experiment_pages_have_a_duration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["tiers", "slo-knees", "noise"]
    for name in names:
        monkeypatch.setitem(EXPERIMENTS, name, lambda runner: Findings(runner.seeds))
    write_page("slo-knees", "Knees.", Findings((1,)), SHORT, tmp_path, 300.0)
    write_page("noise", "Noise.", Findings((1,), how="Once."), SHORT, tmp_path, 120.0)
    arguments = ["run", *names, "--pure", "--docs", str(tmp_path)]
    begins = CliRunner().invoke(app, arguments).stderr.splitlines()[:3]
    assert begins == [
        "tiers (1 of 3)",
        "slo-knees (2 of 3), about 7 min left",
        "noise (3 of 3), about 2 min left",
    ]
    of_full = CliRunner().invoke(app, [*arguments, "--full"]).stderr
    assert "left" not in of_full


def test_figures_are_written_even_where_no_picture_can_be_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("loadtests.experiments.pages.draw", fails)
    findings = Findings((1,), {"least_floor": bare(0.01, 1)})
    findings.charts.append(Chart("floors", "", "", "", []))
    with pytest.raises(OSError, match="full"):
        write_page("tiers", "Tiers.", findings, SHORT, tmp_path, 90.0)
    assert "floors.svg" in (tmp_path / "tiers.md").read_text()


def test_progress_of_a_map_names_the_job_and_its_number() -> None:
    told: list[str] = []
    assert Runner(SHORT, tell=told.append).map(_half_of_it, [2, 4]) == [1, 2]
    assert told == ["half of it, 1 of 2", "half of it, 2 of 2"]


def _half_of_it(number: int) -> int:
    return number // 2


def _missing(runner: Runner) -> Findings:
    """The experiment reports a floor that is too low."""
    return Findings(runner.seeds, {"least_floor": bare(0.01, 1)})


# The committed setup.


@pytest.mark.parametrize("name", ["main", "code"])
def test_experiments_use_the_agreed_setup(name: str, runner: Runner) -> None:
    policy = runner.policy()
    tiers = sorted(policy.tiers.values(), key=lambda tier: tier.priority)
    assert [tier.weight for tier in tiers] == [4.0, 2.0, 1.0]
    assert [tier.slo.ttft_bound_s for tier in tiers] == [1.0, 2.0, 6.0]
    assert tiers[-1].floor == 0.05
    assert all(tier.admission.mode is AdmissionMode.ENFORCE for tier in tiers)
    assert len(policy.pools["main"].replicas) == 4
    # Tier 0 is at most a quarter of the cost.
    of = costs(policy, FleetSpec())
    jobs = [job_of(arrival, policy) for arrival in Runner(Effort(seconds=200.0)).workload(name).arrivals(1)]
    spent = [(job.tier.name, of.prefill(job) + of.decode(job)) for job in jobs]
    assert sum(cost for tier, cost in spent if tier == "tier-0") < 0.25 * sum(cost for _, cost in spent)


def test_unconstrained_optimum_exceeds_the_constrained_one_and_its_replays(runner: Runner) -> None:
    asked = runner.policy(), runner.workload("main").at_rate(80.0), 1, runner.options
    found = optimum(asked)
    assert 0 < max(found.replays.values()) <= found.constrained <= found.free <= 1
    assert constrained_replays(asked) == found.replays


def test_optimum_that_does_not_know_lengths_of_answers_serves_less(runner: Runner) -> None:
    asked = runner.policy(), runner.workload("main").at_rate(80.0), 1, runner.options
    known, guessed = optimum(asked).replays, without_lengths(asked)
    assert known.keys() == guessed.keys()
    assert 0 < max(guessed.values()) < max(known.values())


def test_candidates_of_a_comparison_get_the_same_arrivals(runner: Runner) -> None:
    policy = runner.policy()
    found = runner.compare([ours(policy), against("static-cap", policy)], runner.workload("main").at_rate(40.0))
    assert [run.arrived for run in found["ours"]] == [run.arrived for run in found["static-cap"]]
    assert list(found) == ["ours", "static-cap"]


def test_each_point_of_a_curve_is_computed_once(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[float] = []

    def counted(*_: object, **more: object) -> float:
        calls.append(1.0)
        return 30.0

    monkeypatch.setattr(runners, "capacity", counted)
    assert (runner.one_x("main"), runner.one_x("main")) == (30.0, 30.0)
    assert len(calls) == 1


# ---- computations of single experiments


def test_experiment_knee_is_interpolated_between_loads() -> None:
    assert _knee((1.0, 2.0, 3.0), [[1.0, 1.0], [0.95, 0.95], [0.85, 0.85]]).value == pytest.approx(2.5)
    assert _knee((1.0, 2.0), [[1.0], [0.95]]).value == 2.0
    assert _knee((1.0, 2.0), [[0.5], [0.4]]).value == 1.0


class _Replica:
    def __init__(self, rank: int, in_flight: int) -> None:
        self.rank = rank
        self.in_flight = in_flight
        self.unprefilled_tokens = 0


@interpreted
def test_snapshot_router_does_not_see_changes_between_two_snapshots() -> None:
    router, free = cast(Any, _Frozen(1.0)), [_Replica(0, 5), _Replica(1, 3)]
    assert router.pick(free, 0.0).rank == 1
    free[1].in_flight = 9
    router.now = 0.9
    assert router.pick(free, 0.0).rank == 1
    router.now = 1.0
    assert router.pick(free, 0.0).rank == 0


def test_every_router_of_the_staleness_experiment_serves_a_fleet(runner: Runner) -> None:
    workload = runner.workload("main").at_rate(20.0)
    for name in NAMES:
        found = _run((name, _fleet(runner.policy()), workload, 1, runner.options))
        assert sum(tier.ttft.n for tier in found.tiers.values()) > 0


@pytest.mark.parametrize(
    "name", ["ttft-collapse", *(pytest.param(name, marks=pytest.mark.long) for name in ("hold-depth", "one-tier"))]
)
def test_an_experiment_runs_from_end_to_end(name: str, runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runners, "capacity", lambda *_, **__: 34.0)
    found = EXPERIMENTS[name](runner)
    assert set(TARGETS[name]) <= set(found.figures)
    assert found.charts
    assert found.grids
    assert found.raw


def test_one_tier_experiment_has_only_requests_of_the_default_tier(runner: Runner) -> None:
    policies = [one_tier.policy_of(runner, ttft_alone=alone) for alone in (False, True)]
    (both,), (alone,) = (list(policy.tiers.values()) for policy in policies)
    assert both.slo.ttft == alone.slo.ttft != ()
    assert both.slo.tpot
    assert not alone.slo.tpot
    main = runner.workload("main")
    (share,) = one_tier.traffic_of(main, policies[0]).shares
    assert share.tier == both.name == policies[0].default_tier
    assert (share.tenants, share.skew) == (20, 1.0)
    assert (share.prompt, share.answer) == (main.shares[0].prompt, main.shares[0].answer)


@pytest.mark.long
def test_one_tier_says_that_nothing_is_warmed_up(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runners, "capacity", lambda *_, **__: 34.0)
    found = EXPERIMENTS["one-tier"](runner)
    assert found.how.startswith("2 seeds of 6 s, all counted")


def test_make_target_writes_the_experiment_pages() -> None:
    assert re.search(
        r"^experiments:.*\n\t.*loadtests\.experiments run all .*--docs docs/results/experiments",
        (ROOT / "Makefile").read_text(),
        re.MULTILINE,
    )


def test_paced_target_has_the_same_latencies_for_every_client() -> None:
    hundred = [paced.times(n) for n in range(paced.KINDS)]
    assert len({ttft_s for ttft_s, _ in hundred}) == len({itl_s for _, itl_s in hundred}) == paced.KINDS
    assert [paced.times(n) for n in range(paced.KINDS, 2 * paced.KINDS)] == hundred
    assert min(hundred)[0] == 0.2
    assert min(itl_s for _, itl_s in hundred) == 0.02


def test_paced_target_sends_answers_due_in_a_stall_at_its_end() -> None:
    said = [answered_at(came_s, 0.005, 1.0, 10.0) for came_s in (0.0, 8.99, 8.996, 9.5, 9.994, 9.996, 19.5)]
    assert said == pytest.approx([0.005, 8.995, 10.0, 10.0, 10.0, 10.001, 20.0])


def test_exact_p99_under_stalls_is_nine_tenths_of_a_stall() -> None:
    assert _exact_p99(1000.0, 60.0) == pytest.approx(0.905, abs=0.002)
