"""An answer is paused for a slow client: its silence is not the replica's fault."""

from __future__ import annotations

from gateway.core.deadlines import PROGRESS_EVERY_S
from gateway.core.policy import Policy
from gateway.core.pool_spec import Timeouts
from gateway.core.results import Outcome, Reason

from .made import policy, pool, tier
from .playbook import Story, cancel, commit, cut, dispatch, ended, play, refuse

IDLE_S = 5.0


def _policy() -> Policy:
    return policy(pool("p", "r1"), tier("std", timeouts=Timeouts(10.0, 20.0, IDLE_S, 100.0)))


def _streaming() -> Story:
    story = play(_policy()).at(0.0).arrives("a").expect(dispatch("r1")).sent("a")
    return story.after(1.0).first_token("a").expect(commit())


def test_only_the_total_deadline_holds_while_a_stream_is_paused() -> None:
    story = _streaming().pauses("a").at(99.9).expect()
    story.at(100.0).expect(cut(Reason.TOTAL_TIMEOUT), cancel())
    story.cancelled("a").expect(ended(Outcome.CUT))


def test_progress_report_does_not_end_a_pause() -> None:
    _streaming().pauses("a").progress("a", 7).at(99.9).expect()


def test_idle_timeout_starts_anew_when_the_client_reads_again() -> None:
    story = _streaming().pauses("a").at(50.0).resumes("a")
    story.at(50.0 + IDLE_S + PROGRESS_EVERY_S - 0.01).expect()
    story.after(0.02).expect(refuse(Reason.IDLE_TIMEOUT), cancel())


def test_end_of_a_pause_after_the_end_of_its_request_changes_nothing() -> None:
    story = _streaming().pauses("a").at(100.0).expect(cut(Reason.TOTAL_TIMEOUT), cancel())
    story.resumes("a").expect().cancelled("a").expect(ended(Outcome.CUT)).expect_alarm(float("inf"))
