"""Outcomes of requests for their clients."""

from __future__ import annotations

import pytest

from loadtests.live.planned import PlannedRequest
from loadtests.replay.request import Outcome, Request


def planned(at: float) -> PlannedRequest:
    return PlannedRequest(at, "tier-0", "key", 100, 10, 1.0)


def request(of: PlannedRequest, **became: object) -> Request:
    made = Request(0, of.arrival("default"))
    for name, value in became.items():
        setattr(made, name, value)
    return made


def test_latency_of_a_planned_request_counts_from_its_due_time() -> None:
    late = planned(10.0)
    late.note(request(late, sent_s=10.9, first_s=11.2, ended_s=12.0, output_tokens=10, outcome=Outcome.FINISHED))
    assert late.late_s == pytest.approx(0.9)
    assert late.ttft_s == pytest.approx(1.2)
    assert late.e2e_s == pytest.approx(2.0)
    assert not late.good  # though 0.3 s after it was sent


def test_live_request_is_good_if_it_finished_with_its_first_token_in_time() -> None:
    fine = planned(0.0)
    fine.note(request(fine, first_s=1.0, ended_s=9.0, output_tokens=10, outcome=Outcome.FINISHED))
    assert fine.good
    fine.note(request(fine, first_s=1.0, ended_s=9.0, outcome=Outcome.TRUNCATED, reason="connection lost"))
    assert not fine.good
    assert fine.e2e_s is None


def test_live_answer_shorter_than_requested_counts_as_cut_short() -> None:
    short = planned(0.0)
    short.note(request(short, first_s=0.5, ended_s=2.0, output_tokens=9, outcome=Outcome.FINISHED))
    assert short.reason == "answer cut short"


def test_unfinished_request_has_no_end_time() -> None:
    waiting = planned(0.0)
    waiting.note(request(waiting, ended_s=9.0, outcome=Outcome.UNFINISHED))
    assert waiting.ended_s is None
    assert not waiting.finished


def test_planned_request_past_its_objective_without_a_token_is_hopeless() -> None:
    waiting = planned(5.0)
    under_way = request(waiting)
    assert waiting.hopes(under_way, 6.0)
    assert not waiting.hopes(under_way, 6.1)
    under_way.first_s = 5.5
    assert waiting.hopes(under_way, 100.0)
