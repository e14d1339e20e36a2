"""Whole answers that replicas stream to the gateway, so that their tokens are seen."""

from __future__ import annotations

import math
from typing import Any

from gateway.core.deadlines import PROGRESS_EVERY_S
from gateway.core.pool_spec import Timeouts
from gateway.core.results import AttemptOutcome, Outcome, Reason
from gateway.core.slo import Objective, Slo

from .made import policy, pool, tier
from .playbook import Story, cancel, commit, cut, dispatch, ended, play, refuse
from .test_hedge import rules, warmed

TIMEOUTS = Timeouts(queue_s=10.0, ttft_s=20.0, idle_s=5.0, total_s=100.0)
WHOLE: dict[str, Any] = {"stream": False, "assembled": True}


def running(**more: Any) -> Story:
    """Sent at 0."""
    rules = policy(pool("p", "r1", slots=4), tier("std", timeouts=TIMEOUTS, **more))
    return play(rules).arrives("a", **WHOLE).sent("a").expect(dispatch("r1"))


def test_assembled_answer_has_a_first_token_deadline() -> None:
    story = running().at(19.999).expect()
    story.at(20.0).expect(refuse(Reason.TTFT_TIMEOUT), cancel())
    story.cancelled("a").expect(ended(Outcome.TIMEOUT))


def test_silence_within_an_assembled_answer_is_noticed() -> None:
    story = running().at(2.0).first_token("a").expect(commit())
    story.at(7.0 + PROGRESS_EVERY_S - 0.001).expect()
    story.at(7.0 + PROGRESS_EVERY_S).expect(refuse(Reason.IDLE_TIMEOUT), cancel())


def test_assembled_answer_at_its_total_timeout_is_sent_as_far_as_it_got() -> None:
    story = running().at(2.0).first_token("a").whatever()
    for second in range(3, 100):
        story.at(float(second)).progress("a", second)
    story.expect().at(100.0).expect(cut(Reason.TOTAL_TIMEOUT), cancel())
    story.cancelled("a").expect(ended(Outcome.CUT, output_tokens=99, good=False))


def test_client_of_an_assembled_answer_sees_no_first_token() -> None:
    """So TTFT and TPOT do not judge it, and are not in its record."""
    slo = Slo(ttft=(Objective(0.99, 1.0),), e2e=(Objective(0.99, 50.0),))
    story = running(slo=slo).at(9.0).first_token("a").at(12.0).progress("a", 60).at(15.0).whatever()
    story.finishes("a", output_tokens=80).expect(ended(Outcome.OK, ttft_s=None, tpot_s=None, e2e_s=15.0, good=True))


def test_prompt_of_an_assembled_answer_counts_as_read_at_its_first_token() -> None:
    story = running()
    assert story.replica("r1").unprefilled_tokens == 100
    story.at(3.0).first_token("a")
    assert story.replica("r1").unprefilled_tokens == 0


def test_assembled_answer_cut_off_after_its_first_token_is_not_retried() -> None:
    story = running().at(2.0).first_token("a").whatever()
    story.finishes("a", AttemptOutcome.TRUNCATED).expect(
        refuse(Reason.UPSTREAM_TRUNCATED), ended(Outcome.ERROR, why=Reason.UPSTREAM_TRUNCATED, attempts=1)
    )


def test_assembled_answer_is_hedged_like_a_stream() -> None:
    story = warmed(play(rules()), **WHOLE).arrives("a", **WHOLE).sent("a").expect(dispatch("r1"))
    story.after(1.1).expect(dispatch("r2"))
    story.sent("a").first_token("a", attempt=2).expect(commit(attempt=2), cancel(attempt=1))


def test_whole_answer_without_visible_tokens_is_not_hedged() -> None:
    story = warmed(play(rules())).arrives("a", stream=False).sent("a").expect(dispatch("r1"))
    story.after(60.0).expect()
    assert story.controller.state.hedges.timers.next_at() == math.inf
