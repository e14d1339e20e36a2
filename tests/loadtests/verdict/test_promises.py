"""Which requests keep which promises, and when a stretch of time may be judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.core.slo import Metric
from loadtests.replay.columns import read_rows
from loadtests.replay.request import Outcome, Request
from loadtests.report.figures import report
from loadtests.report.run_file import read_run
from loadtests.verdict.promises import Promise, Tally, Verdict, is_missed, promises_of
from tests.loadtests.report.made import answered, policy, refused, written

TTFT = Promise("gold", 0.5, Metric.TTFT, 0.2)
GOOD = Promise("gold", 0.99)
SLO = policy().tiers["gold"].slo


def test_every_percentile_and_the_goodput_of_each_tier_are_promises() -> None:
    names = [promise.name for promise in promises_of(policy(), {"gold", "free"}, 0.95)]
    assert names == [
        "free: p95 e2e ≤ 10 s",
        "free: goodput ≥ 95%",
        "gold: p50 TTFT ≤ 200 ms",
        "gold: p99 TTFT ≤ 1 s",
        "gold: p99 TPOT ≤ 100 ms",
        "gold: goodput ≥ 95%",
    ]


def test_percentiles_are_of_answers_and_goodput_is_of_all() -> None:
    shed, bad = refused(0.0), refused(0.0, outcome=Outcome.INVALID, status=400)
    assert [is_missed(one, SLO, shed) for one in (TTFT, GOOD)] == [None, True]
    assert [is_missed(one, SLO, bad) for one in (TTFT, GOOD)] == [None, None]
    late = answered(0.0, ttft_s=0.5)
    assert [is_missed(one, SLO, late) for one in (TTFT, GOOD)] == [True, False]


def test_tally_has_the_shares_of_a_report(tmp_path: Path) -> None:
    requests = [answered(n / 10, ttft_s=0.1 if n % 5 else 1.5) for n in range(500)]
    requests += [refused(n / 10) for n in range(0, 500, 10)]
    promises = promises_of(policy(), {"gold"}, 0.9)
    tally = Tally(policy(), promises, 1.0)
    for request in requests:
        tally.due(request.arrival.at)
        tally.ended(request)
    written(tmp_path, requests, seconds=50.0)
    tier = report(read_run(tmp_path), read_rows(tmp_path), policy())["tiers"]["gold"]
    *_, goodput = tally.judgements(60.0, 0.01)
    assert goodput.kept is not None
    assert goodput.kept.share == pytest.approx(tier["goodput"])


def test_stretch_is_judged_once_all_its_requests_are_over() -> None:
    tally = Tally(policy(), [GOOD], 1.0)
    for second in range(30):
        for part in range(10):
            tally.due(second + part / 10)
            if (second, part) != (12, 5):
                tally.ended(answered(second + part / 10))
    open_one = Request(0, answered(12.5).arrival, sent_s=12.5)
    (found,) = tally.judgements(13.2, 0.01, [open_one])
    assert found.requests == 120
    (found,) = tally.judgements(30.0, 0.01, [open_one])
    assert (found.requests, found.misses) == (300, 1)


def test_target_that_hangs_is_judged() -> None:
    tally = Tally(policy(), [GOOD, TTFT], 1.0)
    hanging = [Request(n, answered(n / 10).arrival, sent_s=n / 10) for n in range(200)]
    for request in hanging:
        tally.due(request.arrival.at)
    assert {one.verdict for one in tally.judgements(25.0, 0.01, hanging)} == {Verdict.FAIL}
    assert {one.verdict for one in tally.judgements(25.0, 0.01)} == {Verdict.UNDECIDED}
