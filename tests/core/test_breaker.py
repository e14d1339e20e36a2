"""The breaker of a replica: failures that open it, outcomes that do not, and how it closes."""

import pytest

from gateway.core.fleet.breaker import Breaker
from gateway.core.policy import Health
from gateway.core.request import AttemptOutcome, Outcome, Reason, Sample
from gateway.core.snapshot import ReplicaState

from .made import policy, pool
from .playbook import Story, commit, dispatch, ended, play, refuse

TWO = policy(pool("p", "r1", "r2", slots=4))
HEALTH = Health(failures=3, open_s=5.0)
FAULTS = (
    AttemptOutcome.CLOSING,
    AttemptOutcome.FAILED,
    AttemptOutcome.UNREACHABLE,
    AttemptOutcome.CONNECT_TIMEOUT,
    AttemptOutcome.RESET,
    AttemptOutcome.TRUNCATED,
)
NEUTRAL = (
    AttemptOutcome.REJECTED,
    AttemptOutcome.BUSY,
    AttemptOutcome.UNREADABLE,
    AttemptOutcome.CANCELLED,
    AttemptOutcome.GATEWAY_LATE,
    AttemptOutcome.IDLE_CLOSED,
)


def breaker(state: ReplicaState) -> Breaker:
    made = Breaker()
    if state is not ReplicaState.UP:
        for _ in range(HEALTH.failures):
            made.ended(AttemptOutcome.FAILED, HEALTH, 0.0)
    if state is ReplicaState.PROBING:
        made.cooled(HEALTH, HEALTH.open_s)
    assert made.state is state
    return made


def one_by_one(story: Story, ends: tuple[AttemptOutcome, ...]) -> Story:
    """Requests to the only replica, each with this outcome."""
    for number, end in enumerate(ends):
        name = f"a{number}"
        story.arrives(name).sent(name).finishes(name, end)
    return story.whatever()


# ---- the table


@pytest.mark.parametrize("end", FAULTS)
def test_consecutive_failures_open_the_breaker(end: AttemptOutcome) -> None:
    made = breaker(ReplicaState.UP)
    for _ in range(HEALTH.failures - 1):
        made.ended(end, HEALTH, 0.0)
        assert made.state is ReplicaState.UP
    made.ended(end, HEALTH, 0.0)
    assert made.state is ReplicaState.DOWN


@pytest.mark.parametrize("state", [ReplicaState.UP, ReplicaState.DOWN, ReplicaState.PROBING])
@pytest.mark.parametrize("end", NEUTRAL)
def test_neutral_attempt_outcome_leaves_the_breaker_unchanged(end: AttemptOutcome, state: ReplicaState) -> None:
    made = breaker(state)
    failures = made.failures
    for _ in range(1000):
        made.ended(end, HEALTH, 10.0)
    assert (made.state, made.failures) == (state, failures)


def test_every_attempt_outcome_is_judged_by_the_breaker() -> None:
    for end in AttemptOutcome:
        Breaker().ended(end, HEALTH, 0.0)
    assert {*FAULTS, *NEUTRAL, AttemptOutcome.COMPLETE} == set(AttemptOutcome)


@pytest.mark.parametrize(
    ("state", "event", "then"),
    [
        (ReplicaState.UP, "success", ReplicaState.UP),
        (ReplicaState.UP, "failure", ReplicaState.UP),
        (ReplicaState.UP, "healthy", ReplicaState.UP),
        (ReplicaState.DOWN, "success", ReplicaState.DOWN),
        (ReplicaState.DOWN, "failure", ReplicaState.DOWN),
        (ReplicaState.DOWN, "healthy", ReplicaState.PROBING),
        (ReplicaState.DOWN, "cooled", ReplicaState.PROBING),
        (ReplicaState.PROBING, "success", ReplicaState.UP),
        (ReplicaState.PROBING, "failure", ReplicaState.DOWN),
        (ReplicaState.PROBING, "healthy", ReplicaState.PROBING),
        (ReplicaState.PROBING, "cooled", ReplicaState.PROBING),
    ],
)
def test_breaker_transitions_for_each_event_and_state(state: ReplicaState, event: str, then: ReplicaState) -> None:
    made = breaker(state)
    if event == "cooled":
        made.cooled(HEALTH, 5.0)
    elif event == "healthy":
        made.checked(True, HEALTH, 1.0)
    else:
        made.ended(AttemptOutcome.COMPLETE if event == "success" else AttemptOutcome.FAILED, HEALTH, 1.0)
    assert made.state is then


def test_success_or_passing_check_resets_the_failure_count() -> None:
    for forgive in (lambda b: b.ended(AttemptOutcome.COMPLETE, HEALTH, 0.0), lambda b: b.checked(True, HEALTH, 0.0)):
        made = breaker(ReplicaState.UP)
        for _ in range(10):
            made.ended(AttemptOutcome.FAILED, HEALTH, 0.0)
            made.checked(False, HEALTH, 0.0)
            forgive(made)
        assert made.state is ReplicaState.UP


def test_check_begun_before_a_failure_does_not_reset_the_failure_count() -> None:
    """The replica answered the request, then died."""
    made = breaker(ReplicaState.UP)
    made.ended(AttemptOutcome.RESET, HEALTH, 2.0)
    made.checked(True, HEALTH, 2.1, asked_at=1.9)
    assert made.failures == 1
    made.checked(True, HEALTH, 2.3, asked_at=2.2)
    assert made.failures == 0
    for _ in range(HEALTH.failures):
        made.ended(AttemptOutcome.UNREACHABLE, HEALTH, 3.0)
    made.checked(True, HEALTH, 3.1, asked_at=2.9)
    assert made.state is ReplicaState.DOWN
    made.checked(True, HEALTH, 4.0, asked_at=3.9)
    assert made.state is ReplicaState.PROBING


def test_failures_of_checks_and_of_requests_count_together() -> None:
    made = breaker(ReplicaState.UP)
    made.checked(False, HEALTH, 0.0)
    made.ended(AttemptOutcome.UNREACHABLE, HEALTH, 0.0)
    made.checked(False, HEALTH, 0.0)
    assert made.state is ReplicaState.DOWN


def test_breaker_stays_open_longer_after_each_failed_probe() -> None:
    made = breaker(ReplicaState.DOWN)
    assert made.cools_in_s(HEALTH, 2.0) == 3.0
    made.cooled(HEALTH, 4.999)
    assert made.state is ReplicaState.DOWN
    made.cooled(HEALTH, 5.0)
    assert made.state is ReplicaState.PROBING
    assert made.cools_in_s(HEALTH, 5.0) == 0.0
    made.ended(AttemptOutcome.FAILED, HEALTH, 7.0)
    made.ended(AttemptOutcome.FAILED, HEALTH, 9.0)
    made.cooled(HEALTH, 11.999)
    assert made.state is ReplicaState.DOWN
    made.cooled(HEALTH, 12.0)
    assert made.state is ReplicaState.PROBING


# ---- in the controller


def test_replica_with_an_open_breaker_is_sent_no_requests() -> None:
    story = play(TWO).fails("r1")
    for name in ("a", "b", "c", "d"):
        story.arrives(name).expect(dispatch("r2"))
    story.arrives("e").expect()
    assert story.replica("r1").state is ReplicaState.DOWN


def test_failing_requests_open_the_breaker_without_any_check() -> None:
    story = one_by_one(play(policy(pool("p", "r1"))), (AttemptOutcome.FAILED,) * 3)
    assert story.replica("r1").state is ReplicaState.DOWN
    story.arrives("b").expect(refuse(Reason.NO_REPLICAS), ended(Outcome.REFUSED))


def test_thousand_client_errors_leave_the_breaker_closed() -> None:
    story = one_by_one(play(policy(pool("p", "r1"))), (AttemptOutcome.REJECTED, AttemptOutcome.BUSY) * 500)
    assert story.replica("r1").state is ReplicaState.UP


def test_half_open_breaker_lets_one_request_at_a_time_through() -> None:
    story = play(policy(pool("p", "r1", slots=4))).fails("r1").expect_alarm(5.0)
    story.at(4.999).arrives("a").expect(refuse(Reason.NO_REPLICAS), ended(Outcome.REFUSED))
    story.at(5.0).arrives("b").expect(dispatch("r1"))
    assert story.replica("r1").state is ReplicaState.PROBING
    story.arrives("c").arrives("d").expect()
    story.finishes("b", AttemptOutcome.BUSY).expect(
        refuse(Reason.UPSTREAM_BUSY), ended(Outcome.ERROR), dispatch("r1", of="c")
    )
    story.finishes("c").expect(commit(), ended(Outcome.OK), dispatch("r1", of="d"))
    assert story.replica("r1").state is ReplicaState.UP
    story.arrives("e").expect(dispatch("r1"))


def test_successful_probe_closes_the_breaker_for_queued_requests() -> None:
    story = play(policy(pool("p", "r1", slots=2))).fails("r1").at(5.0).arrives("a").arrives("b").arrives("c")
    story.expect(dispatch("r1", of="a"))
    story.finishes("a").expect(commit(), ended(Outcome.OK), dispatch("r1", of="b"), dispatch("r1", of="c"))


def test_failed_probe_opens_the_breaker_again() -> None:
    story = play(policy(pool("p", "r1"))).fails("r1").at(6.0).arrives("a").arrives("b").whatever()
    story.at(7.0).finishes("a", AttemptOutcome.FAILED).expect(refuse(Reason.UPSTREAM_ERROR), ended(Outcome.ERROR))
    assert story.replica("r1").state is ReplicaState.DOWN
    story.at(11.999).expect()
    story.at(12.0).expect(dispatch("r1", of="b"))


def test_passing_check_half_opens_the_breaker_at_once() -> None:
    story = play(policy(pool("p", "r1"))).arrives("a").arrives("b").first_token("a").fails("r1").whatever()
    story.finishes("a", AttemptOutcome.RESET).expect(refuse(Reason.UPSTREAM_ERROR), ended(Outcome.ERROR))
    story.recovers("r1").expect(dispatch("r1", of="b"))


def test_answers_begun_before_the_breaker_opened_still_complete() -> None:
    story = play(policy(pool("p", "r1", slots=2))).arrives("a").arrives("b")
    story.first_token("a").first_token("b").fails("r1").whatever()
    story.finishes("a").expect(ended(Outcome.OK))
    assert story.replica("r1").state is ReplicaState.DOWN
    story.recovers("r1").arrives("c").expect()
    story.finishes("b").expect(ended(Outcome.OK), dispatch("r1", of="c"))
    assert story.replica("r1").state is ReplicaState.UP


def test_each_breaker_half_opens_at_its_own_time() -> None:
    story = play(policy(pool("p", "r1", "r2"))).fails("r1").at(3.0).fails("r2")
    story.expect_alarm(5.0)
    story.at(5.0).expect_alarm(8.0)
    assert [story.replica(r).state for r in ("r1", "r2")] == [ReplicaState.PROBING, ReplicaState.DOWN]
    story.at(8.0)
    assert story.replica("r2").state is ReplicaState.PROBING
    assert story.controller.wake_at() == float("inf")


def test_scrape_alone_does_not_change_health() -> None:
    story = play(TWO).fails("r1").at(2.0).observes("r1", Sample(waiting=0, running=1))
    assert story.replica("r1").state is ReplicaState.DOWN
    assert story.replica("r1").sample == Sample(waiting=0, running=1)
    assert story.after(2.5).replica("r1").sample_age_s == 2.5


def test_health_check_keeps_the_last_scrape() -> None:
    story = play(TWO).observes("r1", Sample(waiting=3)).recovers("r1")
    assert story.replica("r1").sample == Sample(waiting=3)


def test_observation_of_an_unknown_replica_is_ignored() -> None:
    play(TWO).fails("r9").expect()


# ---- checks that are late


def late(asked_at: float) -> Sample:
    return Sample(healthy=False, late=True, asked_at=asked_at)


def test_late_health_check_is_no_failure_while_tokens_arrive() -> None:
    story = play(TWO).arrives("a").sent("a").at(1.0).first_token("a").whatever()
    for second in range(1, 6):
        story.at(second + 0.3).progress("a", 4 * second).at(second + 0.5).observes("r1", late(float(second)))
    assert (story.replica("r1").state, story.replica("r1").failures) == (ReplicaState.UP, 0)


def test_late_health_check_is_a_failure_if_no_token_arrived_meanwhile() -> None:
    story = play(TWO).arrives("a").sent("a").at(1.0).first_token("a").whatever()
    for second in (2.0, 3.0, 4.0):
        story.at(second + 0.5).observes("r1", late(second))
    assert story.replica("r1").state is ReplicaState.DOWN


def test_health_check_answered_with_an_error_is_a_failure_even_while_tokens_arrive() -> None:
    story = play(TWO).arrives("a").sent("a").at(1.0).first_token("a").whatever()
    for second in (2.0, 3.0, 4.0):
        story.at(second + 0.3).progress("a", 9).observes("r1", Sample(healthy=False, asked_at=second))
    assert story.replica("r1").state is ReplicaState.DOWN
