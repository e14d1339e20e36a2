"""Retries: only requests that no engine worked on, once, elsewhere, within the budget, and unseen by the client."""

import pytest

from gateway.core.policy import Hedge, Retry
from gateway.core.pool_spec import Health, Timeouts
from gateway.core.redundancy.retries import MAX_TOLD_BACKOFF_S, NOT_ITS_FAULT, RETRYABLE
from gateway.core.redundancy.retry_budget import BURST, RetryBudget
from gateway.core.results import AttemptOutcome, Outcome, Reason
from gateway.core.sample import Sample
from gateway.core.snapshot import ReplicaState

from .made import policy, pool, tier
from .playbook import cancel, commit, dispatch, ended, play, refuse

RULES = policy(pool("p", "r1", "r2", "r3", slots=4))


@pytest.mark.parametrize("end", [end for end in RETRYABLE if end not in NOT_ITS_FAULT])
def test_attempt_that_no_engine_worked_on_is_retried(end: AttemptOutcome) -> None:
    story = play(RULES).arrives("a").expect(dispatch("r1"))
    story.finishes("a", end).expect(dispatch("r2"))
    story.served("a").whatever()
    assert (story.records["a"].outcome, story.records["a"].replica) == (Outcome.OK, "r2")
    assert (story.records["a"].attempts, story.records["a"].queue_s) == (2, 0.0)


@pytest.mark.parametrize(
    "end", [e for e in AttemptOutcome if e not in (*RETRYABLE, AttemptOutcome.COMPLETE, AttemptOutcome.CANCELLED)]
)
def test_attempt_that_an_engine_may_have_worked_on_is_not_retried(end: AttemptOutcome) -> None:
    story = play(RULES).arrives("a").sent("a").whatever().finishes("a", end).whatever()
    assert story.records["a"].attempts == 1


def test_request_answered_502_by_a_proxy_before_the_engine_is_retried() -> None:
    story = play(RULES).arrives("a").sent("a").expect(dispatch("r1"))
    story.finishes("a", AttemptOutcome.FAILED, status=502).expect(dispatch("r2"))
    story.finishes("a", AttemptOutcome.FAILED, status=500).expect(
        refuse(Reason.UPSTREAM_ERROR), ended(Outcome.ERROR, attempts=2)
    )


def test_request_is_not_retried_after_its_total_timeout() -> None:
    """With a late event loop the end is told first."""
    story = play(policy(pool("p", "r1", "r2"), tier("std", timeouts=Timeouts(total_s=1.0)))).arrives("a").whatever()
    story.now = 1.005
    story.finishes("a", AttemptOutcome.UNREACHABLE).expect(
        refuse(Reason.TOTAL_TIMEOUT), ended(Outcome.TIMEOUT, attempts=1)
    )


def test_request_is_retried_once() -> None:
    story = play(RULES).arrives("a").finishes("a", AttemptOutcome.UNREACHABLE).whatever()
    story.finishes("a", AttemptOutcome.UNREACHABLE).expect(
        refuse(Reason.UPSTREAM_UNREACHABLE), ended(Outcome.ERROR, attempts=2, replica="r2")
    )


def test_request_is_not_retried_at_the_same_replica() -> None:
    story = play(policy(pool("p", "r1", slots=4))).arrives("a").whatever()
    story.finishes("a", AttemptOutcome.UNREACHABLE).expect(refuse(Reason.UPSTREAM_UNREACHABLE), ended(Outcome.ERROR))


@pytest.mark.parametrize("end", NOT_ITS_FAULT)
def test_request_that_failed_without_a_fault_of_its_only_replica_is_sent_there_once_more(end: AttemptOutcome) -> None:
    one = policy(pool("p", "r1"), tier("std"))
    story = play(one).arrives("a").expect(dispatch("r1")).finishes("a", end).expect(dispatch("r1"))
    story.finishes("a", end).whatever()
    assert (story.records["a"].outcome, story.records["a"].attempts) == (Outcome.ERROR, 2)
    assert story.replica("r1").state is ReplicaState.UP


def test_request_whose_replica_is_drained_is_sent_to_another_after_an_idle_close() -> None:
    story = play(RULES).arrives("a").drains("r1").whatever()
    story.finishes("a", AttemptOutcome.IDLE_CLOSED).expect(dispatch("r2"))


def test_second_run_after_an_idle_close_counts_in_the_retry_budget() -> None:
    story = play(policy(pool("p", "r1"), tier("std", retry=Retry(0.0)))).arrives("a").sent("a").whatever()
    story.finishes("a", AttemptOutcome.IDLE_CLOSED).expect(refuse(Reason.UPSTREAM_ERROR), ended(Outcome.ERROR))
    story = play(policy(pool("p", "r1", slots=100), tier("std", retry=Retry(0.01))))
    for number in range(int(BURST)):
        story.arrives(f"{number}").sent(f"{number}").finishes(f"{number}", AttemptOutcome.IDLE_CLOSED).whatever()
    story.arrives("late").sent("late").whatever()
    story.finishes("late", AttemptOutcome.IDLE_CLOSED).expect(refuse(Reason.UPSTREAM_ERROR), ended(Outcome.ERROR))


def test_request_is_not_retried_where_no_slot_is_free() -> None:
    story = play(policy(pool("p", "r1", "r2"))).arrives("a").arrives("b").arrives("c").whatever()
    story.finishes("a", AttemptOutcome.CONNECT_TIMEOUT).expect(
        refuse(Reason.CONNECT_TIMEOUT, of="a"), ended(Outcome.ERROR, of="a"), dispatch("r1", of="c")
    )


def test_retry_avoids_a_replica_that_has_just_failed_others() -> None:
    story = play(policy(pool("p", "r1", "r2", "r3", slots=4, router="round-robin")))
    story.arrives("a").arrives("b").arrives("c").whatever().finishes("a", AttemptOutcome.UNREACHABLE).expect(
        dispatch("r2")
    )
    story.finishes("b", AttemptOutcome.UNREACHABLE).expect(dispatch("r3"))


def test_retry_avoids_a_replica_whose_check_passed_before_it_failed() -> None:
    """A replica passes its check, then breaks off with a request; the check is read last."""
    story = play(policy(pool("p", "r1", "r2", "r3", slots=4, router="round-robin")))
    story.arrives("a").sent("a").whatever().at(1.0).finishes("a", AttemptOutcome.RESET).expect(dispatch("r2"))
    story.observes("r1", Sample(healthy=True, asked_at=0.9))
    story.arrives("b").expect(dispatch("r3")).finishes("b", AttemptOutcome.UNREACHABLE).expect(dispatch("r2"))
    story.observes("r1", Sample(healthy=True, asked_at=1.0))
    assert [story.replica(name).failures for name in ("r1", "r2", "r3")] == [1, 0, 1], "a check is no answer"


def test_a_retry_is_counted_on_its_new_replica_only() -> None:
    story = play(RULES).arrives("a", prompt=700).finishes("a", AttemptOutcome.UNREACHABLE)
    assert [story.replica(r).in_flight for r in ("r1", "r2")] == [0, 1]
    assert [story.replica(r).unprefilled_tokens for r in ("r1", "r2")] == [0, 700]


def test_request_whose_client_left_is_not_retried() -> None:
    story = play(RULES).arrives("a").leaves("a").expect(dispatch("r1"), cancel())
    story.finishes("a", AttemptOutcome.UNREACHABLE).expect(ended(Outcome.ABANDONED, attempts=1))


def test_retry_budget_is_a_share_of_requests() -> None:
    rules = policy(pool("p", "r1", "r2", slots=None), tier("std", retry=Retry(0.1)))
    story = play(rules)
    for number in range(1000):
        name = f"a{number}"
        story.arrives(name).sent(name).finishes(name, AttemptOutcome.CLOSING)
        if name not in story.records:
            story.finishes(name)
        story.recovers("r1").recovers("r2")
    attempts = sum(record.attempts for record in story.records.values())
    assert attempts - 1000 == pytest.approx(BURST + 0.1 * 1000, abs=1)


def test_unsent_requests_of_a_dead_replica_are_all_retried() -> None:
    """A replica dies with many requests on their way to it: each is sent to the fleet once more."""
    health = Health(failures=1000)
    story = play(policy(pool("p", "r1", "r2", slots=1000, router="round-robin", health=health)))
    names = [f"a{number}" for number in range(40 * int(BURST))]
    for name in names:
        story.arrives(name)
    for name in names[::2]:
        story.whatever().finishes(name, AttemptOutcome.UNREACHABLE).expect(dispatch("r2", of=name))


def test_request_of_a_tier_without_retries_is_not_retried() -> None:
    rules = policy(pool("p", "r1", "r2", slots=4), tier("none", retry=Retry(0.0)), tier("some", retry=Retry(0.1)))
    story = play(rules).arrives("a", tier="none").whatever()
    story.finishes("a", AttemptOutcome.UNREACHABLE).expect(refuse(Reason.UPSTREAM_UNREACHABLE), ended(Outcome.ERROR))
    story.arrives("b", tier="some").whatever().finishes("b", AttemptOutcome.UNREACHABLE).expect(dispatch("r2"))


def test_retry_budget_saves_up_no_more_than_its_burst() -> None:
    budget, half = RetryBudget(), tier("half", retry=Retry(0.5))
    for _ in range(1000):
        budget.deposit(half)
    assert [budget.retry(half, was_sent=True) for _ in range(int(BURST) + 1)] == [True] * int(BURST) + [False]
    budget.deposit(half)
    assert not budget.retry(half, was_sent=True)
    budget.deposit(half)
    assert budget.retry(half, was_sent=True)


def test_duplicates_leave_half_of_the_budget_to_retries() -> None:
    budget, hedged = RetryBudget(), tier("hedged", retry=Retry(0.1), hedge=Hedge(budget=0.2))
    assert [budget.hedge() for _ in range(7)] == [True] * 6 + [False]
    assert [budget.retry(hedged, was_sent=True) for _ in range(5)] == [True] * 4 + [False]
    for _ in range(5):
        budget.deposit(hedged)  # the larger of the two shares bounds both together
    assert budget.retry(hedged, was_sent=True)
    assert not budget.retry(hedged, was_sent=True)


def test_retry_goes_to_another_pool_when_its_own_has_no_replica_left() -> None:
    rules = policy(pool("short", "s1", slots=4, max_prompt_tokens=1000), pool("long", "l1", slots=4))
    story = play(rules).arrives("a", prompt=10).expect(dispatch("s1"))
    story.finishes("a", AttemptOutcome.UNREACHABLE).expect(dispatch("l1"))
    story.served("a").whatever()
    assert (story.records["a"].pool, story.records["a"].replica) == ("long", "l1")


def test_retry_avoids_a_replica_of_another_pool_that_has_just_failed_others() -> None:
    rules = policy(pool("short", "s1", slots=4, max_prompt_tokens=1000), pool("long", "l1", "l2", slots=4))
    story = play(rules).arrives("b", prompt=5000).expect(dispatch("l1"))
    story.finishes("b", AttemptOutcome.UNREACHABLE).served("b").arrives("a", prompt=10).whatever()
    story.finishes("a", AttemptOutcome.UNREACHABLE).expect(dispatch("l2"))


def test_retry_does_not_go_to_a_pool_with_too_short_a_context() -> None:
    rules = policy(pool("short", "s1", slots=4, max_prompt_tokens=1000), pool("long", "l1", slots=4))
    story = play(rules).arrives("a", prompt=5000).expect(dispatch("l1"))
    story.finishes("a", AttemptOutcome.UNREACHABLE).expect(
        refuse(Reason.UPSTREAM_UNREACHABLE), ended(Outcome.ERROR, pool="long")
    )


def test_replica_is_passed_over_until_its_retry_after() -> None:
    story = play(RULES).arrives("a").expect(dispatch("r1"))
    story.sent("a").finishes("a", AttemptOutcome.BUSY, retry_after_s=5.0).expect(dispatch("r2"))
    story.served("a").whatever().arrives("b").expect(dispatch("r2")).served("b").whatever()
    story.at(4.9).arrives("c").expect(dispatch("r2")).served("c").whatever()
    story.at(5.0).arrives("d").expect(dispatch("r1"))
    assert story.replica("r1").failures == 0


def test_busy_replica_is_asked_before_its_retry_after_only_if_no_other_serves() -> None:
    """Otherwise a replica that refuses at once would get all requests as soon as the others are full."""
    story = play(policy(pool("p", "r1", "r2"))).arrives("a").arrives("b").whatever()
    story.finishes("b", AttemptOutcome.BUSY, retry_after_s=5.0).whatever().arrives("c").expect()
    story.finishes("a").whatever().arrives("d").expect()
    assert story.replica("r1").in_flight == 1
    story.fails("r1").expect(dispatch("r2", of="d"), cancel(of="c"))


def test_busy_replica_is_tried_again_with_exponential_backoff() -> None:
    """It is tried again after .25 s, .5 s, 1 s, up to 8 s, until it answers a request."""
    story = play(policy(pool("p", "r1", "r2", slots=4)))
    asked = []
    for number in range(400):
        name = f"q{number}"
        story.at(number / 10).whatever().arrives(name)
        if story.replica("r1").in_flight:
            asked.append(story.now)
            story.finishes(name, AttemptOutcome.BUSY, status=503)
        story.served(name)
    assert asked == [0.0, 0.3, 0.8, 1.8, 3.8, 7.8, 15.8, 23.8, 31.8, 39.8]
    assert story.replica("r1").state is ReplicaState.UP
    assert (story.replica("r1").refusals, story.replica("r1").rests_s) == (10, pytest.approx(7.9))
    story.at(48.0).whatever().arrives("a").expect(dispatch("r1")).served("a")
    assert story.replica("r1").refusals == 0


def test_after_its_backoff_a_replica_is_tried_with_one_request_first() -> None:
    story = (
        play(policy(pool("p", "r1", "r2", slots=2)))
        .arrives("a")
        .finishes("a", AttemptOutcome.BUSY)
        .served("a")
        .whatever()
    )
    for name in "bcdef":
        story.arrives(name)
    story.expect(dispatch("r2", of="b"), dispatch("r2", of="c"))
    story.at(0.25).expect(dispatch("r1", of="d")).at(5.0).expect()
    story.first_token("d").expect(commit(of="d"), dispatch("r1", of="e"))


def test_backoff_from_retry_after_of_a_replica_is_capped() -> None:
    story = play(RULES).arrives("a").finishes("a", AttemptOutcome.BUSY, retry_after_s=86400.0).served("a").whatever()
    story.at(MAX_TOLD_BACKOFF_S - 0.1).arrives("b").expect(dispatch("r2")).served("b").whatever()
    story.at(MAX_TOLD_BACKOFF_S).arrives("c").expect(dispatch("r1"))


def test_no_backoff_is_kept_for_a_removed_replica() -> None:
    story = play(policy(pool("p", "r1", "r2", slots=2))).arrives("a").sent("a").expect(dispatch("r1"))
    story.configured(policy(pool("p", "r2", slots=2))).finishes("a", AttemptOutcome.BUSY).expect(dispatch("r2"))
    assert not any(pool.backoffs.until for pool in story.controller.state.fleet)


def test_closing_attempt_counts_as_a_replica_failure_and_a_busy_one_does_not() -> None:
    story = (
        play(RULES).arrives("a").finishes("a", AttemptOutcome.CLOSING).arrives("b").finishes("b", AttemptOutcome.BUSY)
    )
    assert [story.replica(r).failures for r in ("r1", "r2", "r3")] == [1, 0, 0]


def test_refusal_carries_the_soonest_time_of_the_replicas_that_asked_for_one() -> None:
    story = play(RULES).arrives("a").finishes("a", AttemptOutcome.BUSY, retry_after_s=5.0).at(2.0).whatever()
    story.finishes("a", AttemptOutcome.BUSY, retry_after_s=20.0).expect(
        refuse(Reason.UPSTREAM_BUSY, retry_after_s=3.0), ended(Outcome.ERROR)
    )


@pytest.mark.parametrize(("chance", "told_s"), [(0.0, 20.0), (0.5, 22.5), (0.8, 24.0)])
def test_time_that_an_engine_told_is_spread_by_a_quarter_and_never_sooner(chance: float, told_s: float) -> None:
    story = play(policy(pool("p", "r1")), chance).arrives("a").whatever()
    story.finishes("a", AttemptOutcome.BUSY, retry_after_s=20.0).expect(
        refuse(Reason.UPSTREAM_BUSY, retry_after_s=told_s), ended(Outcome.ERROR)
    )
