"""Replicas that the policy names and that were never seen alive: absent is no fault."""

from gateway.core.results import AttemptOutcome
from gateway.core.sample import Sample
from gateway.core.snapshot import ReplicaState

from .made import policy, pool
from .playbook import Story, commit, dispatch, play
from .steady import fleet


def unstarted(*replicas: str) -> Story:
    """A pool of r1 and `replicas`. Only r1 runs; the others have failed their checks since the start."""
    story = play(policy(pool("p", "r1", *replicas)), alive=False).recovers("r1")
    for name in replicas:
        story.fails(name)
    return story


def test_replica_that_was_never_seen_alive_is_absent_not_down() -> None:
    story = unstarted("r2")
    assert story.replica("r2").state is ReplicaState.ABSENT
    assert story.replica("r1").state is ReplicaState.UP


def test_replica_that_was_seen_alive_before_it_fails_is_down() -> None:
    assert unstarted("r2").fails("r1").replica("r1").state is ReplicaState.DOWN


def test_absent_replica_stays_absent_while_requests_try_it_in_vain() -> None:
    story = play(policy(pool("p", "r1")), alive=False).fails("r1").after(10.0)
    assert story.replica("r1").state is ReplicaState.ABSENT
    story.arrives("a").expect(dispatch("r1")).sent("a").finishes("a", AttemptOutcome.UNREACHABLE).whatever()
    assert story.replica("r1").state is ReplicaState.ABSENT


def test_absent_replica_that_answers_a_request_is_up() -> None:
    story = play(policy(pool("p", "r1")), alive=False).fails("r1").after(10.0)
    story.arrives("a").sent("a").first_token("a").finishes("a").whatever()
    assert story.replica("r1").state is ReplicaState.UP


def test_absent_replica_whose_metrics_are_read_was_seen_alive() -> None:
    story = unstarted("r2").observes("r2", Sample(waiting=0, running=0))
    assert story.replica("r2").state is ReplicaState.DOWN


def test_pool_of_one_replica_among_three_absent_ones_is_not_in_panic() -> None:
    story = play(fleet(4), alive=False).recovers("r1")
    for name in ("r2", "r3", "r4"):
        story.fails(name)
    assert not story.pool("p").panic


def test_pool_whose_replicas_are_all_down_is_not_in_panic() -> None:
    story = play(fleet(2)).fails("r1").fails("r2")
    assert not story.pool("p").panic, "no ejected replica is used, because there is none"


def test_request_goes_to_the_running_replica_while_others_are_absent() -> None:
    story = unstarted("r2", "r3")
    story.arrives("a").expect(dispatch("r1")).sent("a").first_token("a").expect(commit())
