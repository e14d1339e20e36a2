"""Health of a replica: evidence that takes it down, evidence that does not, and how it comes back."""

import pytest

from gateway.core.fleet.health.evidence import EVIDENCE, Observation, seen_of
from gateway.core.fleet.health.replica_health import ReplicaHealth
from gateway.core.pool_spec import Health
from gateway.core.results import AttemptOutcome, AttemptResult, Outcome, Reason
from gateway.core.sample import Proof, Sample
from gateway.core.snapshot import ReplicaState

from .made import policy, pool
from .playbook import Story, commit, dispatch, ended, play, refuse
from .steady import fleet

TWO = policy(pool("p", "r1", "r2", slots=4))
HEALTH = Health(failures=3, open_s=5.0)
DEAD = (AttemptOutcome.CLOSING, AttemptOutcome.UNREACHABLE, AttemptOutcome.CONNECT_TIMEOUT)
FAILED = (AttemptOutcome.FAILED, AttemptOutcome.RESET, AttemptOutcome.TRUNCATED)
NEUTRAL = (
    AttemptOutcome.REJECTED,
    AttemptOutcome.BUSY,
    AttemptOutcome.UNREADABLE,
    AttemptOutcome.CANCELLED,
    AttemptOutcome.GATEWAY_LATE,
    AttemptOutcome.IDLE_CLOSED,
)


def saw(made: ReplicaHealth, end: AttemptOutcome, now: float = 0.0) -> None:
    """An attempt ended."""
    made.saw(seen_of(AttemptResult(end)), HEALTH, now, "")


def looked(made: ReplicaHealth, healthy: bool, now: float = 0.0, asked_at: float | None = None) -> None:
    """A health check passed or failed."""
    seen = Observation.CHECK_PASSED if healthy else Observation.CHECK_FAILED
    made.saw(seen, HEALTH, now, "", asked_at)


def replica(state: ReplicaState, by: AttemptOutcome = AttemptOutcome.UNREACHABLE) -> ReplicaHealth:
    """A replica in this state, down `by` such outcomes."""
    made = ReplicaHealth()
    if state is not ReplicaState.UP:
        for _ in range(HEALTH.failures):
            saw(made, by)
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


@pytest.mark.parametrize("end", DEAD)
def test_consecutive_signs_of_death_take_a_replica_down(end: AttemptOutcome) -> None:
    made = ReplicaHealth()
    for _ in range(HEALTH.failures - 1):
        saw(made, end)
        assert made.state is ReplicaState.UP
    saw(made, end)
    assert made.state is ReplicaState.DOWN


@pytest.mark.parametrize("state", [ReplicaState.UP, ReplicaState.DOWN])
@pytest.mark.parametrize("end", [*NEUTRAL, *FAILED])
def test_outcome_that_a_request_may_cause_takes_no_replica_down(end: AttemptOutcome, state: ReplicaState) -> None:
    made = replica(state)
    for _ in range(1000):
        saw(made, end, 10.0)
    assert made.state is state


@pytest.mark.parametrize("end", [AttemptOutcome.GATEWAY_LATE, AttemptOutcome.IDLE_CLOSED])
def test_outcome_that_we_noticed_late_is_no_evidence(end: AttemptOutcome) -> None:
    made = ReplicaHealth()
    for _ in range(10):
        made.saw(seen_of(AttemptResult(end)), HEALTH, 1.0, "")
    assert (made.state, made.failures, made.error.count) == (ReplicaState.UP, 0, 0)


def test_every_attempt_outcome_is_evidence() -> None:
    assert {*DEAD, *FAILED, *NEUTRAL, AttemptOutcome.COMPLETE} == set(AttemptOutcome)
    for end in AttemptOutcome:
        for facts in ({}, {"status": 200}, {"empty": True}):
            assert seen_of(AttemptResult(end, **facts)) in EVIDENCE
    assert set(EVIDENCE) == set(Observation)


@pytest.mark.parametrize("end", [AttemptOutcome.FAILED, AttemptOutcome.REJECTED, AttemptOutcome.BUSY])
def test_answer_of_any_status_proves_that_an_unreachable_replica_lives(end: AttemptOutcome) -> None:
    made = replica(ReplicaState.PROBING)
    saw(made, end)
    assert (made.state, made.deaths) == (ReplicaState.UP, 0)


@pytest.mark.parametrize("end", [AttemptOutcome.FAILED, AttemptOutcome.REJECTED, AttemptOutcome.BUSY])
def test_error_answer_does_not_refute_failed_checks(end: AttemptOutcome) -> None:
    """An engine that died behind its server answers checks and requests with errors."""
    made = ReplicaHealth()
    for _ in range(HEALTH.failures):
        looked(made, False)
        saw(made, end)
    assert made.state is ReplicaState.DOWN
    made.cooled(HEALTH, HEALTH.open_s)
    saw(made, end)
    assert made.state is ReplicaState.PROBING


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
def test_state_after_each_event(state: ReplicaState, event: str, then: ReplicaState) -> None:
    made = replica(state)
    if event == "cooled":
        made.cooled(HEALTH, 5.0)
    elif event == "healthy":
        looked(made, True, 1.0)
    else:
        saw(made, AttemptOutcome.COMPLETE if event == "success" else AttemptOutcome.UNREACHABLE, 1.0)
    assert made.state is then


def test_success_or_passing_check_resets_the_failure_count() -> None:
    for forgive in (lambda h: saw(h, AttemptOutcome.COMPLETE), lambda h: looked(h, True)):
        made = ReplicaHealth()
        for _ in range(10):
            saw(made, AttemptOutcome.UNREACHABLE)
            looked(made, False)
            forgive(made)
        assert made.state is ReplicaState.UP


def test_check_begun_before_a_failure_does_not_reset_the_failure_count() -> None:
    """The replica answered the check, then died."""
    made = ReplicaHealth()
    saw(made, AttemptOutcome.UNREACHABLE, 2.0)
    looked(made, True, 2.1, asked_at=1.9)
    assert made.failures == 1
    looked(made, True, 2.3, asked_at=2.2)
    assert made.failures == 0
    for _ in range(HEALTH.failures):
        saw(made, AttemptOutcome.UNREACHABLE, 3.0)
    looked(made, True, 3.1, asked_at=2.9)
    assert made.state is ReplicaState.DOWN
    looked(made, True, 4.0, asked_at=3.9)
    assert made.state is ReplicaState.PROBING


def test_failures_of_checks_and_of_requests_count_together() -> None:
    made = ReplicaHealth()
    looked(made, False)
    saw(made, AttemptOutcome.UNREACHABLE)
    looked(made, False)
    assert made.state is ReplicaState.DOWN


def test_replica_stays_down_longer_after_each_failed_probe() -> None:
    made = replica(ReplicaState.DOWN)
    assert made.cools_in_s(HEALTH, 2.0) == 3.0
    made.cooled(HEALTH, 4.999)
    assert made.state is ReplicaState.DOWN
    made.cooled(HEALTH, 5.0)
    assert made.state is ReplicaState.PROBING
    assert made.cools_in_s(HEALTH, 5.0) == 0.0
    saw(made, AttemptOutcome.RESET, 7.0)
    saw(made, AttemptOutcome.UNREACHABLE, 9.0)
    made.cooled(HEALTH, 11.999)
    assert made.state is ReplicaState.DOWN
    made.cooled(HEALTH, 12.0)
    assert made.state is ReplicaState.PROBING


# ---- the gateway's own probe


@pytest.mark.parametrize("proof", [Proof.LISTED, Proof.COMPLETED])
def test_probe_of_our_own_brings_a_replica_back_without_a_request(proof: Proof) -> None:
    story = play(TWO).fails("r1").at(2.0).observes("r1", Sample(healthy=True, proof=proof, asked_at=1.5))
    assert story.replica("r1").state is ReplicaState.UP


def test_probe_begun_before_the_latest_failure_is_ignored() -> None:
    story = play(TWO).at(2.0).fails("r1").observes("r1", Sample(healthy=True, proof=Proof.COMPLETED, asked_at=1.5))
    assert story.replica("r1").state is ReplicaState.DOWN


def test_engine_that_shuts_down_is_not_back_because_it_lists_its_models() -> None:
    story = one_by_one(play(policy(pool("p", "r1"))), (AttemptOutcome.CLOSING,) * 3)
    story.observes("r1", Sample(healthy=True, proof=Proof.LISTED))
    assert story.replica("r1").state is ReplicaState.PROBING
    story.observes("r1", Sample(healthy=True, proof=Proof.COMPLETED))
    assert story.replica("r1").state is ReplicaState.UP


def test_pool_without_traffic_serves_again_after_our_own_probes() -> None:
    story = play(fleet(3)).fails("r1").fails("r2").fails("r3")
    for name in ("r1", "r2", "r3"):
        story.at(3.0).recovers(name)
        assert story.replica(name).state is ReplicaState.PROBING
        story.observes(name, Sample(healthy=True, proof=Proof.LISTED))
    assert {story.replica(name).state for name in ("r1", "r2", "r3")} == {ReplicaState.UP}


# ---- why


def test_last_error_has_its_count_and_age() -> None:
    story = play(policy(pool("p", "r1"))).at(1.0)
    for number in range(3):
        story.arrives(f"a{number}").sent(f"a{number}").finishes(f"a{number}", AttemptOutcome.FAILED, status=500)
    health = story.at(3.0).replica("r1").health
    assert health.last_error == "3 x HTTP 500 on /v1/chat/completions, last 2 s ago"
    story.arrives("b").served("b").arrives("c").sent("c").finishes("c", AttemptOutcome.FAILED, status=500)
    assert story.replica("r1").health.error_count == 1, "an answer came between"


def test_reason_of_a_replica_that_is_down_is_its_last_error() -> None:
    story = play(TWO).observes("r1", Sample(healthy=False, error="timeout: no answer within 2 s"), times=3)
    why = "3 x health check failed: timeout: no answer within 2 s"
    assert story.replica("r1").health.why == why
    assert ("p", "r1", ReplicaState.DOWN, why) in story.controller.states()


# ---- in the controller


def test_replica_with_an_open_breaker_is_sent_no_requests() -> None:
    story = play(TWO).fails("r1")
    for name in ("a", "b", "c", "d"):
        story.arrives(name).expect(dispatch("r2"))
    story.arrives("e").expect()
    assert story.replica("r1").state is ReplicaState.DOWN


def test_lost_connections_take_a_replica_down_without_any_check() -> None:
    story = one_by_one(play(policy(pool("p", "r1"))), (AttemptOutcome.UNREACHABLE,) * 3)
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
    story.at(7.0).finishes("a", AttemptOutcome.RESET).expect(refuse(Reason.UPSTREAM_ERROR), ended(Outcome.ERROR))
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
