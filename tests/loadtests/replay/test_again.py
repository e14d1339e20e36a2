"""Outcomes of clients that were told when to retry."""

from __future__ import annotations

import time
from email.utils import formatdate

import pytest

from gateway.sim.workload.arrivals import Arrival
from loadtests.replay.again import MAX_REASONS, OTHERS, Again, Newcomers, Told
from loadtests.replay.request import Outcome, Request
from tests.loadtests.replay.test_answer import read


def tried(
    again: Again,
    request: Request,
    outcome: Outcome,
    rest_s: float | None,
    *,
    told_s: float | None = None,
    status: int = 429,
    reason: str = "full",
) -> None:
    """A try: sent when it was due or its last pause was over, ended .1 s later; `rest_s` until the next try."""
    request.outcome, request.reason, request.status, request.retry_after_s = outcome, reason, status, told_s
    request.tried_s = max(request.tried_s, request.arrival.at)
    request.ended_s = request.tried_s + 0.1
    again.tried(request, comes_again=rest_s is not None)
    request.tried_s = request.ended_s + (rest_s or 0.0)
    request.tries += 1


def request(number: int = 0, at: float = 5.0) -> Request:
    return Request(number, Arrival(at, "free", "free-1", "m", 10, 10))


def test_retries_are_counted_by_the_reason_of_the_refusal_before_them() -> None:
    again, first, second, third = Again(0.0), request(1), request(2), request(3)
    tried(again, first, Outcome.SHED, 2.0, told_s=2.0)
    tried(again, first, Outcome.SHED, 3.0, told_s=3.0, reason="evicted")
    tried(again, first, Outcome.FINISHED, None, status=200)
    tried(again, second, Outcome.SHED, 2.5, told_s=2.0)
    tried(again, second, Outcome.CONNECT, None, status=0)
    tried(again, third, Outcome.QUOTA, None, told_s=90.0, reason="limit-tokens")
    assert again.tiers == {
        "free": {
            "full": Told(told=2, obeyed=2, admitted=0, refused=1),
            "evicted": Told(told=1, obeyed=1, admitted=1, refused=0),
            "limit-tokens": Told(told=1),
        }
    }
    assert again.newcomers == {"free": Newcomers(admitted=0, refused=3)}


def test_retry_counts_as_obedient_only_with_retry_after_and_not_before_it() -> None:
    again, early, untold = Again(0.0), request(1), request(2)
    tried(again, early, Outcome.SHED, 0.5, told_s=90.0)
    tried(again, early, Outcome.FINISHED, None, status=200)
    tried(again, untold, Outcome.SHED, 0.5)
    tried(again, untold, Outcome.FINISHED, None, status=200)
    assert again.tiers == {"free": {"full": Told(told=1)}}


def test_retry_counts_as_obedient_when_it_is_not_before_retry_after() -> None:
    """A timer may be a little early, but a client that retries clearly sooner than told has not obeyed."""
    again, nearly, early = Again(0.0), request(1), request(2)
    tried(again, nearly, Outcome.SHED, 1.9995, told_s=2.0)
    tried(again, nearly, Outcome.FINISHED, None, status=200)
    tried(again, early, Outcome.SHED, 1.9, told_s=2.0)
    tried(again, early, Outcome.FINISHED, None, status=200)
    assert again.tiers == {"free": {"full": Told(told=2, obeyed=1, admitted=1)}}


def test_retries_in_the_warm_up_are_not_counted() -> None:
    again, warm = Again(10.0), request(at=9.9)
    tried(again, warm, Outcome.SHED, 2.0, told_s=2.0)
    tried(again, warm, Outcome.SHED, None, told_s=2.0)
    assert again.tiers == {}


def test_invented_reasons_of_a_target_are_bounded_in_number() -> None:
    again = Again(0.0)
    for number in range(MAX_REASONS + 10):
        tried(again, request(number), Outcome.SHED, None, told_s=1.0, reason=f"reason-{number}")
    assert again.tiers["free"][OTHERS].told == 10
    assert len(again.tiers["free"]) == MAX_REASONS + 1


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("retry-after: 3", 3.0),
        ("retry-after-ms: 2500\r\nretry-after: 3", 2.5),
        ("retry-after: Sun, 06 Nov 1994 08:49:37 GMT", 0.0),
        ("retry-after: soon", None),
        ("retry-after: 1e39", None),
        ("retry-after: -1e39", None),
        ("retry-after-ms: 1e39\r\nretry-after: 3", 3.0),
    ],
)
def test_retry_after_is_read_in_seconds(header: str, seconds: float | None) -> None:
    answer = read(f"HTTP/1.1 503 No\r\n{header}\r\ncontent-length: 0\r\n\r\n".encode(), 99)
    assert answer.retry_after_s == seconds


def test_retry_after_date_is_read_as_seconds_from_now() -> None:
    date = formatdate(time.time() + 3600, usegmt=True)
    answer = read(f"HTTP/1.1 503 No\r\nretry-after: {date}\r\ncontent-length: 0\r\n\r\n".encode(), 99)
    assert answer.retry_after_s == pytest.approx(3600, abs=300)
