"""If a replica fails its health checks, requests that it has not begun to answer are taken from it."""

from gateway.core.policy import Retry
from gateway.core.request import AttemptOutcome, Outcome, Reason, Sample

from .made import policy, pool, tier
from .playbook import Story, cancel, commit, dispatch, ended, play, refuse

RULES = policy(pool("p", "r1", "r2", slots=4))


def waiting_at_r1(stream: bool = False) -> Story:
    return play(RULES).arrives("a", stream=stream).sent("a").expect(dispatch("r1"))


def test_unanswered_request_of_a_failing_replica_is_retried_elsewhere() -> None:
    for stream in (False, True):
        story = waiting_at_r1(stream).fails("r1", times=2).expect().fails("r1", times=1).expect(cancel())
        story.cancelled("a").expect(dispatch("r2")).served("a").whatever()
        assert (story.records["a"].outcome, story.records["a"].replica) == (Outcome.OK, "r2")


def test_committed_answer_of_a_failing_replica_goes_on() -> None:
    story = waiting_at_r1(stream=True).first_token("a").expect(commit()).fails("r1").expect()
    story.finishes("a").expect(ended(Outcome.OK))


def test_one_failed_check_suffices_for_a_replica_that_failed_requests() -> None:
    rules = policy(pool("p", "r1", slots=4))
    story = play(rules).arrives("a", stream=False).arrives("b").arrives("c").arrives("d").whatever()
    for name in ("b", "c", "d"):
        story.finishes(name, AttemptOutcome.CONNECT_TIMEOUT)
    story.whatever().fails("r1", times=1).expect(cancel(of="a"))


def test_request_of_a_down_replica_is_refused_where_no_other_replica_is() -> None:
    story = play(policy(pool("p", "r1"))).arrives("a", stream=False).sent("a").whatever().fails("r1").expect(cancel())
    story.cancelled("a").expect(refuse(Reason.UPSTREAM_UNREACHABLE), ended(Outcome.ERROR))


def test_request_of_a_down_replica_is_refused_without_a_retry_budget() -> None:
    rules = policy(pool("p", "r1", "r2", slots=4), tier("std", retry=Retry(0.0)))
    story = play(rules).arrives("a", stream=False).sent("a").whatever().fails("r1").expect(cancel())
    story.cancelled("a").expect(refuse(Reason.UPSTREAM_UNREACHABLE), ended(Outcome.ERROR))


def test_attempt_at_a_down_replica_is_cancelled_once() -> None:
    story = waiting_at_r1().fails("r1").expect(cancel()).fails("r1").expect()
    story.leaves("a").expect().cancelled("a").expect(ended(Outcome.ABANDONED))


def test_late_answer_of_a_cancelled_attempt_is_not_shown() -> None:
    story = waiting_at_r1(stream=True).fails("r1").expect(cancel()).first_token("a").expect()
    story.finishes("a").expect(dispatch("r2"))


def test_duplicate_goes_on_after_the_attempt_at_a_down_replica_is_cancelled() -> None:
    story = waiting_at_r1(stream=True).hedges("a", "r2").sent("a").whatever().fails("r1").expect(cancel(attempt=1))
    story.cancelled("a", attempt=1).expect().first_token("a", attempt=2).expect(commit(attempt=2))


def test_request_is_not_retried_after_its_duplicate_failed_too() -> None:
    story = waiting_at_r1(stream=True).hedges("a", "r2").sent("a").whatever().fails("r1").expect(cancel(attempt=1))
    story.finishes("a", AttemptOutcome.FAILED, attempt=2).expect()
    story.cancelled("a", attempt=1).expect(refuse(Reason.UPSTREAM_UNREACHABLE), ended(Outcome.ERROR, attempts=2))


def test_passing_check_gives_up_no_attempt() -> None:
    story = waiting_at_r1().fails("r1", times=2).recovers("r1").fails("r1", times=2).expect()
    story.observes("r1", Sample(waiting=3)).expect()
