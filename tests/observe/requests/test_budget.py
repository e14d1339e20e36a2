"""Where slow requests spend their time, by tier, latency and percentile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.observe.requests.budget import budgets
from gateway.observe.requests.ring import RequestRing
from gateway.observe.requests.row import RequestRow
from tests.observe.made import ASK, OK
from tests.observe.requests.test_ring import ended


def row(
    queue_s: float, ttft_s: float | None, e2e_s: float, *, stream: bool = True, received_s: float = 0.0
) -> RequestRow:
    request = replace(ASK, stream=stream, head_at=ASK.body_at - received_s)
    return RequestRow(replace(OK, request=request, queue_s=queue_s, ttft_s=ttft_s, e2e_s=e2e_s))


def by_percentile(rows: list[RequestRow], latency: str) -> dict[str, Any]:
    return {str(each["percentile"]): each for each in budgets(rows) if each["latency"] == latency}


def test_slowest_requests_tell_another_stage_than_the_median() -> None:
    rows = [row(0.0, 0.1, 1.0) for _ in range(95)] + [row(0.9, 1.0, 2.0) for _ in range(5)]
    found = by_percentile(rows, "ttft")
    assert (found["p95"]["from_s"], found["p95"]["requests"]) == (1.0, 5)
    shares = {"receive": 0.0, "queue": 0.9, "engine-queue": 0.0, "prefill": 0.0, "first-token": 0.1}
    assert found["p95"]["stages"] == pytest.approx(shares)
    assert found["p50"]["stages"]["first-token"] == pytest.approx(5.0 / 9.5)
    assert found["p99"]["requests"] == 1


def test_whole_answer_has_all_stages_which_are_all_of_its_time() -> None:
    stages = by_percentile([row(1.0, 3.0, 7.0, received_s=1.0)], "e2e")["p50"]["stages"]
    told = {"receive": 0.125, "queue": 0.125, "first-token": 0.25, "rest": 0.5}
    assert stages == pytest.approx({"engine-queue": 0.0, "prefill": 0.0, **told})


def test_engine_that_tells_its_queue_divides_the_time_at_the_replica() -> None:
    told, untold = row(0.0, 1.0, 2.0), row(0.0, 1.0, 2.0)
    told.engine = 0.75
    stages = by_percentile([told, untold], "ttft")["p50"]["stages"]
    assert (stages["engine-queue"], stages["prefill"], stages["first-token"]) == (0.75, 0.25, 0.0)
    stages = by_percentile([told, told, untold, untold], "e2e")["p50"]["stages"]
    assert sum(stages.values()) == pytest.approx(1.0)


def test_requests_without_a_first_token_or_a_stream_have_no_budget() -> None:
    assert budgets([row(1.0, None, 1.0), row(0.0, 0.1, 1.0, stream=False)]) == []


def test_sample_begins_where_no_kind_of_record_has_been_pushed_out() -> None:
    ring = RequestRing(20)
    for number in range(100):
        ring.ended(ended(f"fine-{number}", at=float(number)))
    ring.ended(ended("late", at=0.0, good=False))
    ring.ended(ended("late-too", at=99.0, good=False))
    assert [each.request_id for each in ring.complete()] == [
        *(f"fine-{number}" for number in range(92, 100)),
        "late-too",
    ]
