"""Figures computed by hand, and their schema."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

from gateway.core.policy import Value
from loadtests.__main__ import app
from loadtests.replay.columns import read_rows
from loadtests.replay.request import Outcome, Request
from loadtests.report import figures
from loadtests.report.figures import report
from loadtests.report.pictures import pictures
from loadtests.report.run_file import read_run
from loadtests.report.trust import warnings
from loadtests.report.words import objective
from tests.loadtests.report.made import SECONDS, answered, policy, refused, written

SCHEMA = json.loads((Path(figures.__file__).parent / "report.schema.json").read_text())
MIXED = [
    answered(1.0),
    answered(2.0, ttft_s=1.5),
    answered(3.0, tpot_s=0.2),
    answered(4.0, "free", ttft_s=12.0),
    answered(5.0, "free", ttft_s=12.0, tokens=101),
    refused(6.0),
    refused(7.0, "free", reason="evicted"),
    refused(8.0, "free", Outcome.QUOTA, "limit-tokens"),
    refused(9.0, "free", Outcome.INVALID, "context-length", 400),
    refused(10.0, "free", Outcome.TRUNCATED, "connection lost inside the answer", 200),
    refused(11.0, "free", Outcome.INTERRUPTED, "", 0),
    refused(12.0, "gold", Outcome.UNFINISHED, "", 0),
]


def made(folder: Path, requests: list[Any] = MIXED, *, with_policy: bool = True, **about: Any) -> dict[str, Any]:
    written(folder, requests, **about)
    return report(read_run(folder), read_rows(folder), policy() if with_policy else None)


def test_goodput_counts_requests_within_their_objectives(tmp_path: Path) -> None:
    found = made(tmp_path)
    gold, free = found["tiers"]["gold"], found["tiers"]["free"]
    assert (gold["offered"], gold["counted"], gold["finished"], gold["good"]) == (5, 5, 3, 1)
    # The second answer is too long for its objective.
    assert (free["offered"], free["counted"], free["finished"], free["good"]) == (7, 4, 2, 1)
    totals = found["totals"]
    assert (totals["offered"], totals["counted"], totals["good"], totals["goodput"]) == (12, 9, 2, 2 / 9)
    assert totals["weighted_goodput"] == pytest.approx((4 + 1) / (5 * 4 + 4 * 1))
    assert totals["good_per_s"] == pytest.approx(2 / SECONDS)
    assert totals["answered_per_s"] == pytest.approx(5 / SECONDS)


def test_a_tier_that_counts_tokens_weighs_its_requests_by_them(tmp_path: Path) -> None:
    written(tmp_path, [answered(1.0, tokens=50), refused(2.0), answered(3.0, "free")])
    rules = policy()
    rules = replace(rules, tiers={name: replace(tier, value=Value.TOKENS) for name, tier in rules.tiers.items()})
    found = report(read_run(tmp_path), read_rows(tmp_path), rules)
    # Of the gold tier 50 + 50 tokens are good, and 50 + 11 are lost.
    assert found["totals"]["weighted_goodput"] == pytest.approx((8 * 100 / 161 + 1) / (8 + 1))
    assert found["tiers"]["gold"]["value"] == "tokens"


def test_report_counts_every_miss_under_one_reason(tmp_path: Path) -> None:
    tiers = made(tmp_path)["tiers"]
    assert tiers["gold"]["misses"] == {"late: TTFT": 1, "late: TPOT": 1, "shed: queue-full": 1, "unfinished": 1}
    assert tiers["free"]["misses"] == {
        "late: e2e": 1,
        "shed: evicted": 1,
        "broken off: connection lost inside the answer": 1,
    }
    for tier in tiers.values():
        assert sum(tier["misses"].values()) == tier["counted"] - tier["good"]
    assert tiers["free"]["apart"] == {"quota: limit-tokens": 1, "invalid: context-length": 1, "interrupted": 1}
    assert tiers["free"]["errors"] == {"broken off": 1}


def stopped(at: float, tier: str, waited_s: float, first_s: float | None = None) -> Request:
    """A request that was open for this long when the user stopped the test."""
    made = refused(at, tier, Outcome.INTERRUPTED, "", 0)
    made.ended_s, made.first_s = at + waited_s, None if first_s is None else at + first_s
    return made


def test_request_hanging_at_the_stop_is_a_miss_once_it_is_late(tmp_path: Path) -> None:
    hung = [stopped(2.0 + n, "gold", 60.0) for n in range(3)]
    soon = [stopped(90.0, "gold", 0.9), stopped(91.0, "gold", 5.0, first_s=0.2)]
    late = stopped(92.0, "gold", 5.0, first_s=1.2)
    # An answer that became too long for its objective may still be good.
    free = stopped(93.0, "free", 60.0, first_s=0.2)
    found = made(tmp_path, [answered(1.0), *hung, *soon, late, free], interrupted=True)
    gold = found["tiers"]["gold"]
    assert (gold["offered"], gold["counted"], gold["good"]) == (7, 5, 1)
    assert gold["misses"] == {"late: TTFT": 4}
    assert gold["apart"] == {"interrupted": 2}
    assert found["tiers"]["free"]["apart"] == {"interrupted": 1}
    assert made(tmp_path / "free", [answered(1.0), *hung], with_policy=False)["totals"]["goodput"] == 1.0


def test_every_request_is_counted_in_one_category(tmp_path: Path) -> None:
    found = made(tmp_path)
    for tier in found["tiers"].values():
        assert tier["good"] + sum(tier["misses"].values()) + sum(tier["apart"].values()) == tier["offered"]
    assert list(found["tiers"]["free"]["sheds"]) == ["evicted"]
    over = found["tiers"]["free"]["over_time"]
    assert sum(over["shed_per_s"]) * over["bin_s"] == pytest.approx(1)


def test_report_counts_refusals_with_and_without_retry_after(tmp_path: Path) -> None:
    sheds = made(tmp_path, [refused(1.0), refused(2.0, status=504), answered(3.0)])["tiers"]["gold"]["sheds"]
    told = pytest.approx(0.01)
    assert sheds == {"queue-full": {"count": 2, "with_retry_after": 1, "after_p50_s": told, "after_p95_s": told}}


def test_report_percentiles_cover_answers_from_their_due_time(tmp_path: Path) -> None:
    tier = made(tmp_path, [answered(0.5 * n, ttft_s=0.01 * n) for n in range(1, 101)])["tiers"]["gold"]
    ttft = tier["latencies"]["ttft"]
    assert (ttft["n"], ttft["p50"], ttft["p99"], ttft["max"]) == (100, *map(pytest.approx, (0.5, 0.99, 1.0)))
    assert tier["latencies"]["tpot"]["p99"] == pytest.approx(0.02, rel=1e-4)
    assert tier["latencies"]["queue"]["p50"] == pytest.approx(0.005)
    assert tier["itl"]["n"] == 1000
    assert tier["itl"]["p50"] == pytest.approx(0.02, rel=0.01)
    assert [(row["quantile"], row["met"]) for row in tier["objectives"]] == [(0.5, False), (0.99, True), (0.99, True)]


@pytest.mark.parametrize(("streamed", "good"), [(True, 0), (False, 1)])
def test_a_stream_without_a_first_token_misses_its_objective(tmp_path: Path, streamed: bool, good: int) -> None:
    silent = answered(1.0)
    silent.first_s, silent.arrival = None, replace(silent.arrival, stream=streamed)
    gold = made(tmp_path, [silent])["tiers"]["gold"]
    assert (gold["finished"], gold["good"], gold["misses"]) == (1, good, {} if good else {"late: TTFT": 1})


def test_report_measures_an_objective_on_the_answers_it_applies_to(tmp_path: Path) -> None:
    long = [answered(10.0 + n, "free", ttft_s=20.0, tokens=101) for n in range(10)]
    found = made(tmp_path, [answered(1.0, "free", ttft_s=1.0), *long])["tiers"]["free"]
    (row,) = found["objectives"]
    assert (row["up_to_tokens"], row["met"], row["measured_s"]) == (100, True, pytest.approx(1.2))
    assert objective(row) == "p95 e2e ≤ 10 s up to 100 tokens"
    assert found["good"] == 11


def test_report_has_goodput_of_each_objective_over_the_requests_it_applies_to(tmp_path: Path) -> None:
    """As the gateway counts (gateway/observe/metrics/facts.py): refusals miss every objective."""
    whole = answered(6.0, tpot_s=0.5)
    whole.first_s, whole.arrival = None, replace(whole.arrival, stream=False)
    of_one_token = answered(5.0, tokens=1)
    requests = [
        answered(1.0, ttft_s=0.1),
        answered(2.0, ttft_s=0.5),
        answered(3.0, ttft_s=2.0, tpot_s=0.3),
        refused(4.0),
        of_one_token,
        whole,
        refused(7.0, outcome=Outcome.INVALID, status=400),  # counts nowhere
        *(answered(8.0 + n, "free", ttft_s=20.0, tokens=tokens) for n, tokens in enumerate((100, 101))),
        answered(10.0, "free"),
    ]
    tiers = made(tmp_path, requests)["tiers"]
    told = [(row["metric"], row["quantile"], row["good"], row["counted"]) for row in tiers["gold"]["objectives"]]
    assert told == [("ttft", 0.5, 2, 5), ("ttft", 0.99, 3, 5), ("tpot", 0.99, 2, 4)]
    (row,) = tiers["free"]["objectives"]
    assert (row["good"], row["counted"], row["goodput"]) == (1, 2, 0.5)


def test_reported_throughput_counts_answers_completed_while_requests_were_sent(tmp_path: Path) -> None:
    # Ten a second for 100 s, each of which takes 30 s: those due in the warm-up end in time, those of the end do not.
    requests = [answered(n / 10 + 0.05, ttft_s=30.0, tpot_s=0.0) for n in range(1000)]
    totals = made(tmp_path, requests, warmup_s=40.0)["totals"]
    assert totals["finished"] == totals["offered"] == 600
    assert totals["answered_per_s"] == pytest.approx(10.0)
    assert totals["output_tokens_per_s"] == pytest.approx(110.0)
    late = made(tmp_path / "cold", requests)["totals"]
    assert late["answered_per_s"] == pytest.approx(7.0)


def test_throughput_leaves_out_answers_drained_after_the_last_arrival(tmp_path: Path) -> None:
    # Thirty a second into a target that carries ten: the queue is answered in the 200 s after the last was sent.
    requests = [answered(n / 30, ttft_s=n / 10 - n / 30 + 0.05, tpot_s=0.0) for n in range(3000)]
    totals = made(tmp_path, requests)["totals"]
    assert (totals["finished"], totals["offered_per_s"]) == (3000, pytest.approx(30.0))
    assert totals["answered_per_s"] == pytest.approx(10.0, rel=0.01)
    assert totals["output_tokens_per_s"] == pytest.approx(110.0, rel=0.01)


def test_reported_cached_share_covers_prompts_whose_answers_report_it(tmp_path: Path) -> None:
    told = [answered(1.0), answered(2.0), answered(3.0, "free"), answered(4.0, "free")]
    for request, cached in zip(told, (40, 0, 30, None), strict=True):
        request.cached_tokens = cached
    found = made(tmp_path / "told", told)
    assert found["totals"]["cached"] == pytest.approx(70 / 150)
    assert {name: tier["cached"] for name, tier in found["tiers"].items()} == {"free": 30 / 50, "gold": 40 / 100}
    assert made(tmp_path / "untold")["totals"]["cached"] is None


def test_report_leaves_out_the_warm_up(tmp_path: Path) -> None:
    found = made(tmp_path, [answered(1.0, ttft_s=9.0), answered(20.0)], warmup_s=10.0)
    assert (found["totals"]["offered"], found["totals"]["goodput"]) == (1, 1.0)
    assert found["totals"]["itl"]["n"] == found["tiers"]["gold"]["itl"]["n"] == 10
    assert found["seconds"] == SECONDS - 10.0


def test_report_of_a_late_generator_is_marked(tmp_path: Path) -> None:
    late = made(tmp_path, [answered(1.0, late_s=0.5), answered(2.0)])
    assert late["trusted"] is False
    assert warnings(late)[0] == "Not to be trusted: the generator was late by 500 ms (p99); 10 ms were allowed."
    assert {picture.title.endswith(" (not to be trusted)") for picture in pictures(late)} == {True}


def test_report_of_a_generator_that_gave_up_is_marked_and_partial(tmp_path: Path) -> None:
    found = made(tmp_path, [answered(1.0), answered(2.0)], interrupted=True, gave_up=True)
    assert (found["trusted"], found["complete"], found["about"]["gave_up"]) == (False, False, True)
    first, second = warnings(found)
    assert first == "Not to be trusted: the generator could not keep up with the traffic."
    assert second.startswith("Partial: the generator gave up, because every request of ten seconds left over a second")


def test_report_of_a_generator_that_read_late_is_marked_even_if_it_sent_in_time(tmp_path: Path) -> None:
    folder = written(tmp_path, [answered(1.0), answered(2.0)], waits={0.001: 960, 0.03: 40})
    run, rows = read_run(folder), read_rows(folder)
    not_surely = replace(run, about=replace(run.about, max_late_s=0.025))
    assert report(not_surely, rows, policy())["trusted"]
    found = report(run, rows, policy())
    assert found["trusted"] is False
    assert warnings(found)[0].startswith("Not to be trusted: data waited over 20 ms")


def test_report_warns_of_a_single_generator_stall(tmp_path: Path) -> None:
    found = made(tmp_path, [answered(1.0), answered(2.0)], waits={0.001: 995, 0.03: 5})
    assert found["trusted"]
    (told,) = warnings(found)
    assert told.startswith("At times data waited over 20 ms for the generator: the maxima")


def test_report_of_a_late_generator_is_written_with_an_exit_status_of_its_own(tmp_path: Path) -> None:
    folder = written(tmp_path, [answered(1.0, late_s=0.5), answered(2.0)], policy=None)
    done = CliRunner().invoke(app, ["report", str(folder)])
    assert done.exit_code == 3
    told = " ".join(done.stderr.split())
    assert told.startswith("Do not trust this report: the generator was late. Lower the rate, or")
    assert json.loads((folder / "report.json").read_text())["trusted"] is False
    assert "Not to be trusted" in (folder / "report.html").read_text()
    assert CliRunner().invoke(app, ["report", str(folder), "--allow-late"]).exit_code == 0


def test_report_over_time_counts_answers_when_they_ended(tmp_path: Path) -> None:
    requests = [answered(n / 10 + 0.05, ttft_s=30.0, tpot_s=0.0) for n in range(1000)]
    over = made(tmp_path, requests)["over_time"]
    bins, per_bin = len(over["offered_per_s"]), over["bin_s"]
    assert bins * per_bin == pytest.approx(SECONDS)
    assert over["offered_per_s"] == pytest.approx([10.0] * bins)
    late = round(30 / per_bin)
    assert over["answered_per_s"] == pytest.approx([0.0] * late + [10.0] * (bins - late))
    assert not any(over["good_per_s"])


def test_report_without_a_policy_counts_every_answer_as_good(tmp_path: Path) -> None:
    found = made(tmp_path, with_policy=False, policy=None)
    assert found["totals"]["good"] == found["totals"]["finished"] == 5


def test_tier_missing_from_the_policy_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="tier silver, the policy only gold, free: give a policy that has it"):
        made(tmp_path, [answered(1.0, "silver")])


@pytest.mark.parametrize("with_policy", [True, False])
@pytest.mark.parametrize("requests", [MIXED, [refused(1.0)]], ids=["mixed", "nothing answered"])
def test_report_json_keeps_its_schema(tmp_path: Path, requests: list[Any], with_policy: bool) -> None:
    found = made(tmp_path, requests, with_policy=with_policy, interrupted=True)
    assert found["complete"] is False
    jsonschema.validate(json.loads(json.dumps(found)), SCHEMA)


def test_report_without_a_lateness_p999_from_an_older_version_keeps_the_schema(tmp_path: Path) -> None:
    found = made(tmp_path)
    del found["generator"]["late_p999_s"]
    jsonschema.validate(json.loads(json.dumps(found)), SCHEMA)


def test_report_schema_refuses_other_documents(tmp_path: Path) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    found = made(tmp_path)
    for broken in ({**found, "version": 1}, {**found, "tiers": {"gold": {}}}, {**found, "more": 1}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(broken, SCHEMA)


def test_run_file_of_another_version_is_refused(tmp_path: Path) -> None:
    written(tmp_path, MIXED)
    path = tmp_path / "run.json"
    path.write_text(path.read_text().replace('"version": 2', '"version": 9'))
    with pytest.raises(ValueError, match=r"run.json: is of version 9"):
        read_run(tmp_path)


def test_run_with_missing_rows_has_no_report(tmp_path: Path) -> None:
    run = read_run(written(tmp_path, MIXED))
    run.played.ended += 2
    with pytest.raises(
        ValueError, match=r"requests.npy lacks 2 of the 14 requests that ended, which is a bug of the load tester"
    ):
        report(run, read_rows(tmp_path), policy())


def test_file_in_place_of_a_run_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "report.json").touch()
    with pytest.raises(ValueError, match=r"report.json is a file: give the folder \(--out\)"):
        read_run(tmp_path / "report.json")


def test_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no run.json"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("warmup_s", "stopped", "told"),
    [
        (5.0, False, "no request was due after the warm-up of 5 s: there is nothing"),
        (0.0, True, "no request was due before the test was stopped: there is nothing"),
    ],
)
def test_run_with_nothing_to_report_says_why(warmup_s: float, stopped: bool, told: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=told):
        made(tmp_path, [answered(1.0)] if warmup_s else [], warmup_s=warmup_s, interrupted=stopped)


@pytest.mark.parametrize(
    ("content", "told"), [(b"[]", "is not the run.json of a load test"), (None, "has a tier without a name")]
)
def test_run_file_of_another_kind_is_refused(content: bytes | None, told: str, tmp_path: Path) -> None:
    written(tmp_path, [answered(1.0)])
    file = tmp_path / "run.json"
    file.write_bytes(
        json.dumps(json.loads(file.read_bytes()) | {"tiers": [""]}).encode() if content is None else content
    )
    with pytest.raises(ValueError, match=told):
        report(read_run(tmp_path), read_rows(tmp_path), None)
