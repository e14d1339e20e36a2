"""Records of ended requests in memory: which are kept for how long, and how they are found."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from gateway.core.history import AttemptHistory, EarlyRefusal, History, Origin
from gateway.core.results import HedgeResult, Outcome, Reason, Record
from gateway.observe.requests.ring import RequestRing
from gateway.observe.requests.row import RequestRow
from tests.footprint import footprint
from tests.observe.made import ASK, OK, REFUSED


def ended(request_id: str, record: Record = OK, at: float = 100.0, **changes: Any) -> Record:
    """The record of a request whose client knows this id."""
    request = replace(ASK, body_at=at, origin=Origin(request_id))
    return replace(record, request=request, **changes)


def ids(ring: RequestRing, count: int = 100) -> list[str]:
    return [one.request_id for one in ring.latest(lambda _: True, count)]


def answered(answer_id: str, ttft_s: float | None = None) -> History:
    attempt = AttemptHistory("short", "r0", False, "complete", 100.0, 103.0)
    attempt.answer_id = answer_id
    history = History([attempt], 120, 256)
    history.ttft_s = ttft_s
    return history


def test_refused_request_is_kept_while_ordinary_ones_push_each_other_out() -> None:
    ring = RequestRing(20)
    ring.ended(ended("refused", REFUSED))
    for number in range(100):
        ring.ended(ended(f"fine-{number}", at=200.0 + number))
    assert ids(ring) == [f"fine-{number}" for number in range(99, 91, -1)] + ["refused"]
    assert len(ring) == 9


def test_twenty_thousand_records_with_all_their_fields_take_at_most_30_mib() -> None:
    ring, draw = RequestRing(1000), Random(5).random
    for number in range(2000):
        history = answered(f"chatcmpl-tg-af87652eb9-{number}-0f1e2d.{number}", draw())
        (attempt,) = history.attempts
        attempt.opened_at, attempt.sent_at, attempt.first_at, attempt.ended_at = draw(), draw(), draw(), draw()
        attempt.expected_ttft_s, attempt.prompt_tokens, attempt.output_tokens = draw(), 1000 + number, 300 + number
        history.wait_s, history.tpot_s, history.e2e_s, history.threshold = draw(), draw(), draw(), draw()
        history.runner_up_breach, history.runner_up_ttft_s = draw(), draw()
        origin = Origin(f"tg-af87652eb9-{number}", "1a2b3c4d", f"00-{number:032x}-{number:016x}-01")
        request = replace(ASK, body_at=draw(), head_at=draw(), origin=origin)
        names = ("queue_s", "ttft_s", "tpot_s", "e2e_s", "breach")
        times: dict[str, Any] = {name: draw() for name in names}
        ring.ended(replace(OK, request=request, history=history, good=number % 2 > 0, **times))
    assert 20_000 / len(ring) * footprint(ring) <= 30 * 2**20


@pytest.mark.parametrize(
    ("stream", "first_at", "of_engine", "why", "status"),
    [
        (True, 101.0, None, Reason.CLIENT_GONE, 200),
        (False, 101.0, None, Reason.IDLE_TIMEOUT, 504),
        (True, None, 404, Reason.UPSTREAM_REJECTED, 404),
        (True, None, 422, Reason.UPSTREAM_REJECTED, 400),
        (True, None, 500, Reason.UPSTREAM_ERROR, 502),
    ],
)
def test_record_has_the_status_that_the_client_got(
    stream: bool, first_at: float | None, of_engine: int | None, why: Reason, status: int
) -> None:
    history = answered("an-answer")
    (attempt,) = history.attempts
    attempt.id = history.answered_by = 1
    attempt.status, attempt.first_at = of_engine, first_at
    record = replace(OK, request=replace(ASK, stream=stream), why=why, history=history)
    assert RequestRow(record).status == status


def test_flood_of_unread_requests_pushes_out_no_other_record() -> None:
    ring = RequestRing(20)
    ring.ended(ended("fine"))
    ring.ended(ended("refused", REFUSED))
    for number in range(100):
        ring.refused_early(EarlyRefusal(300.0 + number, Reason.UNAUTHORIZED.value, f"stranger-{number}"))
    assert ids(ring) == ["stranger-99", "stranger-98", "fine", "refused"]


@pytest.mark.parametrize(
    "changes",
    [
        {"good": False},
        {"outcome": Outcome.ERROR, "why": Reason.UPSTREAM_ERROR, "good": False},
        {"attempts": 2, "hedged": HedgeResult.WON},
        {"would_shed": True},
        {"explored": True},
        {"history": answered("", ttft_s=0.09)},
    ],
    ids=["late", "failed", "hedged", "shadow", "explored", "slower than twice its forecast"],
)
def test_request_that_operators_ask_for_is_notable(changes: dict[str, Any]) -> None:
    assert RequestRow(ended("a", **changes)).is_notable


def test_good_request_as_fast_as_forecast_is_not_notable() -> None:
    assert not RequestRow(ended("a", history=answered("", ttft_s=0.11))).is_notable


@pytest.mark.parametrize(
    "given",
    ["tg-ab-7", "tg-ab-7-0f1e2d.12", "chatcmpl-tg-ab-7-0f1e2d.12", "cmpl-tg-ab-7-0f1e2d.12-0", "resp_77"],
    ids=["the client's id", "the id at the replica", "vLLM's chat id", "vLLM's completion id", "the answer's own id"],
)
def test_request_is_found_by_each_id_that_client_or_replica_know(given: str) -> None:
    ring = RequestRing(100)
    for name in ("tg-ab-77", "tg-ab-7", "ab-7", "7"):
        ring.ended(ended(name, history=answered("resp_77" if name == "tg-ab-7" else f"other-{name}")))
    assert [one.request_id for one in ring.find(given)] == ["tg-ab-7"]


def test_id_that_a_client_used_twice_finds_both_requests_the_latest_first() -> None:
    ring = RequestRing(100)
    for at in (100.0, 300.0, 200.0):
        ring.ended(ended("again", at=at))
    found = ring.find("again")
    assert [one.ended_at for one in found if isinstance(one, RequestRow)] == [303.0, 203.0, 103.0]


def test_unknown_id_finds_nothing() -> None:
    ring = RequestRing(100)
    ring.ended(ended("known"))
    ring.ended(ended(""))
    assert ring.find("unknown") == []


def test_each_reader_gets_each_record() -> None:
    ring, read = RequestRing(10), []
    ring.readers.append(lambda row: read.append(row.request_id))
    ring.ended(ended("a"))
    ring.ended(ended("b", REFUSED))
    assert read == ["a", "b"]
