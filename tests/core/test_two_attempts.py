"""Two open attempts of one request. No rule opens the second one here; the playbook does."""

from gateway.core.pool_spec import Timeouts
from gateway.core.results import AttemptOutcome, Outcome, Reason

from .made import NEVER_TOO_LATE, policy, pool, tier
from .playbook import Story, cancel, commit, dispatch, ended, play, refuse

RULES = policy(pool("p", "r1", "r2"))


def hedged() -> Story:
    story = play(RULES).arrives("a").sent("a").at(1.0).hedges("a", "r2").expect(dispatch("r1"), dispatch("r2"))
    return story.sent("a")


def test_attempt_with_the_first_token_wins_and_the_other_is_cancelled() -> None:
    story = hedged().at(2.0).first_token("a", attempt=2).expect(commit(attempt=2), cancel(attempt=1))
    story.at(3.0).finishes("a", attempt=2, output_tokens=11).expect()
    story.cancelled("a", attempt=1).expect(
        ended(Outcome.OK, replica="r2", attempts=2, output_tokens=11, ttft_s=2.0, e2e_s=3.0, queue_s=0.0)
    )


def test_a_request_is_over_when_its_last_attempt_is_closed() -> None:
    story = hedged().first_token("a", attempt=1).cancelled("a", attempt=2).expect(commit(attempt=1), cancel(attempt=2))
    assert [story.replica(r).in_flight for r in ("r1", "r2")] == [1, 0]
    story.finishes("a", attempt=1).expect(ended(Outcome.OK, replica="r1"))


def test_token_of_the_losing_attempt_is_not_shown() -> None:
    story = hedged().first_token("a", attempt=2).expect(commit(attempt=2), cancel(attempt=1))
    story.first_token("a", attempt=1).expect()
    assert story.replica("r1").unprefilled_tokens == 0


def test_losing_attempt_that_completes_changes_nothing() -> None:
    story = hedged().first_token("a", attempt=2).whatever()
    story.finishes("a", attempt=1, output_tokens=99).expect()
    story.finishes("a", attempt=2, output_tokens=5).expect(ended(Outcome.OK, output_tokens=5, replica="r2"))


def test_first_complete_whole_answer_wins() -> None:
    story = play(RULES).arrives("a", stream=False).sent("a").hedges("a", "r2").sent("a").whatever()
    story.finishes("a", attempt=1).expect(commit(attempt=1), cancel(attempt=2))
    story.cancelled("a", attempt=2).expect(ended(Outcome.OK, replica="r1"))


def test_failed_attempt_leaves_the_request_to_the_other() -> None:
    story = hedged().finishes("a", AttemptOutcome.FAILED, attempt=1).expect()
    story.first_token("a", attempt=2).expect(commit(attempt=2))
    story.finishes("a", attempt=2).expect(ended(Outcome.OK))


def test_request_fails_when_both_of_its_attempts_fail() -> None:
    story = hedged().finishes("a", AttemptOutcome.FAILED, attempt=1).expect()
    story.finishes("a", AttemptOutcome.RESET, attempt=2).expect(refuse(Reason.UPSTREAM_ERROR), ended(Outcome.ERROR))


def test_request_failed_after_commit_ends_once_the_loser_is_closed() -> None:
    story = hedged().first_token("a", attempt=1).expect(commit(attempt=1), cancel(attempt=2))
    story.finishes("a", AttemptOutcome.TRUNCATED, attempt=1).expect(refuse(Reason.UPSTREAM_TRUNCATED))
    story.cancelled("a", attempt=2).expect(ended(Outcome.ERROR, replica="r1"))


def test_an_attempt_is_cancelled_once() -> None:
    story = hedged().first_token("a", attempt=1).expect(commit(attempt=1), cancel(attempt=2))
    story.shuts().expect(refuse(Reason.SHUTTING_DOWN), cancel(attempt=1))


def test_client_that_leaves_cancels_both_attempts() -> None:
    story = hedged().leaves("a").expect(cancel(attempt=1), cancel(attempt=2))
    story.cancelled("a", attempt=2).expect()
    story.cancelled("a", attempt=1).expect(ended(Outcome.ABANDONED))
    assert story.pool("p").in_flight == 0


def test_first_token_deadline_is_that_of_the_latest_attempt() -> None:
    timeouts = Timeouts(NEVER_TOO_LATE.queue_s, 10.0, NEVER_TOO_LATE.idle_s, NEVER_TOO_LATE.total_s)
    story = play(policy(pool("p", "r1", "r2"), tier("std", timeouts=timeouts))).arrives("a").sent("a")
    story.at(6.0).hedges("a", "r2").sent("a").whatever()
    story.at(15.999).expect()
    story.at(16.0).expect(refuse(Reason.TTFT_TIMEOUT), cancel(attempt=1), cancel(attempt=2))
