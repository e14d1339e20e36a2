"""Deadlines: each counts from its own anchor, none is early, none is forgotten."""

import math

import pytest

from gateway.core.deadlines import PROGRESS_EVERY_S
from gateway.core.policy import OnTotal, Policy
from gateway.core.pool_spec import Timeouts
from gateway.core.results import AttemptOutcome, Outcome, Reason
from gateway.core.snapshot import ReplicaState

from .made import policy, pool, tier
from .playbook import Story, cancel, commit, cut, dispatch, ended, play, refuse

TIMEOUTS = Timeouts(queue_s=10.0, ttft_s=20.0, idle_s=5.0, total_s=100.0)
RULES = policy(pool("p", "r1"), tier("std", timeouts=TIMEOUTS))


def with_timeouts(queue_s: float, ttft_s: float, idle_s: float, total_s: float) -> Policy:
    return policy(pool("p", "r1"), tier("std", timeouts=Timeouts(queue_s, ttft_s, idle_s, total_s)))


def streaming(rules: Policy = RULES) -> Story:
    """A request whose first token came at 2.0."""
    return play(rules).arrives("a").at(1.0).sent("a").at(2.0).first_token("a").whatever()


# ---- waiting


def test_queue_timeout_counts_from_body_complete() -> None:
    story = play(RULES).arrives("running").at(4.0).arrives("a", head_at=1.0, body_at=3.0).whatever()
    story.at(12.999).expect()
    story.at(13.0).expect(refuse(Reason.QUEUE_TIMEOUT), ended(Outcome.TIMEOUT, why=Reason.QUEUE_TIMEOUT, e2e_s=10.0))
    assert story.pool("p").queued == 0


def test_dispatched_request_has_no_queue_timeout() -> None:
    story = play(RULES).arrives("running").arrives("a").at(9.9).finishes("running").whatever()
    story.at(30.0).expect()


def test_total_timeout_applies_in_the_queue() -> None:
    """If the queue took the time, another try may be faster."""
    story = play(with_timeouts(50.0, 50.0, 50.0, 30.0)).arrives("running", stream=False).at(10.0)
    story.arrives("a", head_at=5.0, body_at=9.0).whatever()
    story.at(30.0).whatever()
    story.at(34.999).expect()
    story.at(35.0).expect(refuse(Reason.QUEUE_TIMEOUT), ended(Outcome.TIMEOUT, e2e_s=26.0))


# ---- running


def test_ttft_timeout_counts_from_sent() -> None:
    story = play(RULES).arrives("a").at(3.0).sent("a").whatever()
    story.at(22.999).expect()
    story.at(23.0).expect(refuse(Reason.TTFT_TIMEOUT), cancel())
    story.cancelled("a").expect(ended(Outcome.TIMEOUT, why=Reason.TTFT_TIMEOUT, e2e_s=23.0, ttft_s=None))


def test_idle_timeout_counts_from_the_last_progress() -> None:
    story = streaming().at(4.0).progress("a", 10).at(8.0).progress("a", 20)
    story.at(13.0 + PROGRESS_EVERY_S - 0.001).expect()
    story.at(13.0 + PROGRESS_EVERY_S).expect(refuse(Reason.IDLE_TIMEOUT), cancel())
    story.cancelled("a").expect(ended(Outcome.TIMEOUT, why=Reason.IDLE_TIMEOUT, output_tokens=20))


def test_a_stall_right_after_the_first_token_is_noticed_although_ttft_had_more_time() -> None:
    story = streaming()
    story.expect_alarm(2.0 + 5.0 + PROGRESS_EVERY_S)
    story.at(8.0).expect(refuse(Reason.IDLE_TIMEOUT), cancel())


def test_tokens_that_come_seldom_are_no_stall() -> None:
    story = streaming()
    for second in range(3, 90):
        story.at(float(second)).progress("a", second)
    story.expect()


def test_the_total_deadline_ends_a_stream_that_still_flows() -> None:
    story = streaming(with_timeouts(10.0, 20.0, 5.0, 30.0))
    for second in range(3, 30):
        story.at(float(second)).progress("a", second)
    story.expect()
    story.at(30.0).expect(cut(Reason.TOTAL_TIMEOUT, prompt_tokens=100), cancel())
    story.after(0.1).finishes("a", AttemptOutcome.CANCELLED, tokens_seen=31)
    story.expect(
        ended(Outcome.CUT, why=Reason.TOTAL_TIMEOUT, output_tokens=31, tokens_exact=False, good=False, e2e_s=30.0)
    )


def test_stream_at_its_total_timeout_ends_in_an_error_if_the_tier_says_so() -> None:
    rules = policy(
        pool("p", "r1"),
        tier("std", timeouts=Timeouts(ttft_s=20.0, idle_s=math.inf, total_s=30.0), on_total=OnTotal.ERROR),
    )
    story = play(rules).arrives("a").sent("a").after(1.0).first_token("a").whatever()
    story.at(29.0).progress("a", 9).at(30.0).expect(refuse(Reason.TOTAL_TIMEOUT), cancel())
    story.cancelled("a").expect(ended(Outcome.TIMEOUT, good=False))


def test_answer_that_completes_while_it_is_cut_frees_its_slot_once() -> None:
    rules = with_timeouts(10.0, 20.0, math.inf, 30.0)
    story = play(rules).arrives("a").sent("a").after(1.0).first_token("a").at(5.0).progress("a", 1)
    story.at(29.9).progress("a", 30).at(30.0).whatever().finishes("a", output_tokens=40)
    assert story.records["a"].outcome is Outcome.CUT
    assert story.records["a"].output_tokens == 40
    assert story.pool("p").in_flight == 0


def test_the_total_deadline_counts_from_the_head_received() -> None:
    story = play(with_timeouts(10.0, 20.0, 5.0, 15.0)).at(7.0).arrives("a", head_at=0.0, body_at=6.0).whatever()
    story.sent("a").at(14.999).expect()
    story.at(15.0).expect(refuse(Reason.TOTAL_TIMEOUT), cancel())


def test_total_timeout_applies_while_a_connection_is_made() -> None:
    story = play(with_timeouts(10.0, 20.0, 5.0, 1.0)).arrives("a").expect(dispatch("r1"))
    story.at(1.0).expect(refuse(Reason.TOTAL_TIMEOUT), cancel())
    story.cancelled("a").expect(ended(Outcome.TIMEOUT))


def test_an_answer_in_one_piece_has_only_the_total_deadline() -> None:
    story = play(RULES).arrives("a", stream=False).sent("a").whatever()
    story.at(99.999).expect()
    story.at(100.0).expect(refuse(Reason.TOTAL_TIMEOUT), cancel())


def test_a_long_answer_in_one_piece_that_was_committed_early_has_no_idle_deadline() -> None:
    story = play(RULES).arrives("a", stream=False).sent("a").at(30.0).first_token("a").whatever()
    story.at(99.999).expect()
    story.at(100.0).expect(refuse(Reason.TOTAL_TIMEOUT), cancel())


def test_whole_answer_whose_body_stalls_ends_at_its_idle_timeout() -> None:
    story = play(RULES).arrives("a", stream=False).sent("a").whatever()
    story.at(30.0).progress("a", 0).at(33.0).progress("a", 0).expect()
    story.at(33.0 + 5.0 + PROGRESS_EVERY_S - 0.01).expect()
    story.at(33.0 + 5.0 + PROGRESS_EVERY_S).expect(refuse(Reason.IDLE_TIMEOUT), cancel())
    story.cancelled("a").expect(ended(Outcome.TIMEOUT, why=Reason.IDLE_TIMEOUT))
    assert story.replica("r1").state is ReplicaState.UP


def test_whole_answer_that_its_client_does_not_read_does_not_stall() -> None:
    story = play(RULES).arrives("a", stream=False).sent("a").whatever()
    story.at(30.0).progress("a", 0).pauses("a").at(80.0).expect()
    story.resumes("a").at(85.0).progress("a", 0).at(88.0).finishes("a").expect(commit(), ended(Outcome.OK))


def test_ttft_timeout_of_a_second_attempt_counts_from_its_own_dispatch() -> None:
    rules = policy(pool("p", "r1", "r2"), tier("std", timeouts=TIMEOUTS))
    story = play(rules).arrives("a").at(2.0).finishes("a", AttemptOutcome.UNREACHABLE).at(3.0).sent("a").whatever()
    story.at(22.999).expect()
    story.at(23.0).expect(refuse(Reason.TTFT_TIMEOUT), cancel())


# ---- of the pool, and none


def test_the_tighter_timeout_of_tier_and_pool_counts() -> None:
    tight = Timeouts(queue_s=math.inf, ttft_s=3.0, idle_s=math.inf, total_s=50.0)
    story = play(policy(pool("p", "r1", timeouts=tight), tier("std", timeouts=TIMEOUTS)))
    story.arrives("a").arrives("b").sent("a").expect(dispatch("r1", of="a"))
    story.at(3.0).expect(refuse(Reason.TTFT_TIMEOUT), cancel())
    story.at(10.0).expect(refuse(Reason.QUEUE_TIMEOUT, of="b"), ended(Outcome.TIMEOUT, of="b"))


def test_request_without_timeouts_sets_no_timer() -> None:
    story = play(with_timeouts(math.inf, math.inf, math.inf, math.inf)).arrives("a").arrives("b").sent("a")
    assert story.controller.wake_at() == math.inf
    story.first_token("a")
    assert story.controller.wake_at() == math.inf


# ---- alarms


@pytest.mark.parametrize("phase", ["waiting", "connecting", "sent", "streaming"])
def test_waking_the_controller_early_changes_nothing(phase: str) -> None:
    story = play(RULES)
    if phase == "waiting":
        story.arrives("running")
    story.arrives("a")
    if phase in ("sent", "streaming"):
        story.sent("a")
    if phase == "streaming":
        story.first_token("a")
    story.whatever()
    at = story.controller.wake_at()
    story.wakes().after(1.0).wakes().expect()
    assert story.controller.wake_at() == at


def test_no_timer_is_left_after_all_requests_have_ended() -> None:
    story = streaming().arrives("b").arrives("c").leaves("b").finishes("a").sent("c").finishes("c")
    assert story.controller.wake_at() == math.inf


def test_refusal_at_a_deadline_has_retry_after() -> None:
    story = play(RULES, 0.5).arrives("running").arrives("a").at(10.0)
    assert story.retry_after_s() == pytest.approx(1.0)


def test_passed_deadline_is_handled_once() -> None:
    story = play(RULES).arrives("a").sent("a").expect(dispatch("r1"))
    story.at(20.0).expect(refuse(Reason.TTFT_TIMEOUT), cancel())
    story.at(99.0).expect()
    story.wakes().expect()
    story.first_token("a").expect()
    story.progress("a", 5).expect()
    story.cancelled("a").expect(ended(Outcome.TIMEOUT))


def test_answer_that_completes_after_its_deadline_passed_is_a_timeout() -> None:
    story = play(RULES).arrives("a").sent("a").at(20.0).whatever()
    story.finishes("a", output_tokens=50).expect(ended(Outcome.TIMEOUT, output_tokens=50, good=False))


def test_deadline_after_commit_is_an_error_inside_the_answer() -> None:
    story = play(RULES).arrives("a").sent("a").at(1.0).first_token("a").expect(dispatch("r1"), commit())
    story.at(7.0).expect(refuse(Reason.IDLE_TIMEOUT), cancel())
    story.cancelled("a").expect(ended(Outcome.TIMEOUT, ttft_s=1.0))
