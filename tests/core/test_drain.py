"""Drains by hand, and slow start: which requests a replica gets, and when it is back."""

from dataclasses import replace
from itertools import pairwise

from gateway.core.pool_spec import Health, ReplicaSpec
from gateway.core.results import AttemptOutcome, Outcome, Reason
from gateway.core.snapshot import ReplicaState

from .made import QUIET, policy, pool
from .playbook import commit, dispatch, ended, play, refuse
from .steady import out_of_six

TWO = policy(pool("p", "r1", "r2", slots=2))
SLOWLY = Health(failures=3, open_s=5.0, slow_start_s=30.0, ejection=None)

# ---- drain


def test_drained_replica_gets_no_new_request_and_finishes_the_running_ones() -> None:
    story = play(TWO).arrives("a").expect(dispatch("r1")).first_token("a").whatever()
    story.drains("r1")
    assert story.replica("r1").state is ReplicaState.DRAINED
    story.arrives("b").expect(dispatch("r2")).arrives("c").expect(dispatch("r2")).arrives("d").expect()
    story.finishes("a").expect(ended(Outcome.OK))
    assert story.replica("r1").in_flight == 0
    story.drains("r1", on=False).expect(dispatch("r1", of="d"))
    assert story.replica("r1").state is ReplicaState.UP


def test_queued_requests_of_a_drained_pool_move_to_another() -> None:
    story = play(policy(pool("p", "r1"), pool("q", "s1"))).arrives("a").arrives("b").whatever()
    story.drains("r1").expect(dispatch("s1", of="b"))
    story.arrives("c").whatever()
    story.finishes("a").expect(commit(), ended(Outcome.OK))


def test_queued_requests_stay_when_every_replica_is_drained() -> None:
    story = play(policy(pool("p", "r1"))).arrives("a").arrives("b").whatever().drains("r1").expect()
    story.arrives("c").expect(refuse(Reason.NO_REPLICAS), ended(Outcome.REFUSED))
    story.finishes("a").whatever().drains("r1", on=False).expect(dispatch("r1", of="b"))


def test_retry_does_not_go_to_a_drained_replica() -> None:
    story = play(TWO).drains("r2").arrives("a").expect(dispatch("r1"))
    story.finishes("a", AttemptOutcome.UNREACHABLE).expect(refuse(Reason.UPSTREAM_UNREACHABLE), ended(Outcome.ERROR))


def test_ejected_replica_is_not_probed_while_drained_or_down() -> None:
    for leave in (lambda story: story.drains("r3"), lambda story: story.fails("r3")):
        story, traffic, out_at = out_of_six(per_s=45.0)
        traffic.until(out_at + 6.0)
        before = story.replica("r3").in_flight
        leave(story).whatever().arrives("a").sent("a")
        assert story.replica("r3").in_flight == before, "though it was due for a probe"


def test_drained_replica_still_gets_health_checks() -> None:
    story = play(TWO).drains("r1").fails("r1").drains("r1", on=False)
    assert story.replica("r1").state is ReplicaState.DOWN


def test_reload_keeps_a_replica_drained_by_name_even_at_another_url() -> None:
    story = play(TWO).drains("r1").configured(policy(pool("p", "r1", "r2", "r3", slots=2)))
    assert story.replica("r1").state is ReplicaState.DRAINED
    story.configured(policy(replace(TWO.pools["p"], replicas=(ReplicaSpec("r1", "http://elsewhere:8000"),))))
    assert story.replica("r1").state is ReplicaState.DRAINED
    story.configured(policy(pool("p", "r2", slots=2))).configured(TWO)
    assert story.replica("r1").state is ReplicaState.UP, "one that was gone is another one"


def test_draining_is_idempotent_and_ignores_unknown_replicas() -> None:
    story = play(TWO).drains("r1").drains("r1").drains("r9").drains("r2", on=False)
    assert [story.replica(r).state for r in ("r1", "r2")] == [ReplicaState.DRAINED, ReplicaState.UP]


# ---- slow start


def slots(*, slots: int = 20) -> tuple[int, ...]:
    """Share of a replica whose breaker closed at 5 s, every five seconds from then on."""
    story = play(policy(pool("p", "r1", "r2", slots=slots, health=SLOWLY))).fails("r1").at(5.0)
    story.arrives("a").expect(dispatch("r1")).finishes("a")
    return tuple(story.at(5.0 + later).replica("r1").slots for later in (0, 5, 10, 15, 20, 25, 30))


def test_a_replica_that_recovers_is_given_its_slots_over_half_a_minute() -> None:
    assert slots() == (2, 3, 6, 10, 13, 16, 20)


def test_slow_start_leaves_at_least_one_slot() -> None:
    assert slots(slots=3) == (1, 1, 1, 1, 2, 2, 3)


def test_queue_of_a_recovered_pool_drains_at_the_pace_of_slow_start() -> None:
    story = play(policy(pool("p", "r1", "r2", slots=10, queue_limit=1000, health=SLOWLY)))
    for n in range(20):
        story.arrives(f"old{n}")
    for n in range(200):
        story.arrives(f"q{n}")
    story.whatever().fails("r1").fails("r2")
    for n in range(20):
        story.finishes(f"old{n}", AttemptOutcome.RESET)
    story.whatever().recovers("r1").recovers("r2")
    assert story.pool("p").in_flight == 2, "one probe each"
    busiest = []
    for second in range(35):
        story.at(float(second))
        for name in [name for name, attempts in story.attempts.items() if attempts and name not in story.records]:
            story.served(name)
        story.whatever()
        busiest.append(story.pool("p").in_flight)
    assert busiest[0] <= 4
    assert all(later <= earlier + 4 for earlier, later in pairwise(busiest))
    assert not story.pool("p").queued


def test_slow_start_applies_to_replicas_added_by_a_reload_but_not_at_start() -> None:
    rules = policy(pool("p", "r1", slots=10, health=SLOWLY))
    story = play(rules).at(1.0)
    assert story.replica("r1").slots == 10
    story.configured(policy(pool("p", "r1", "r2", slots=10, health=SLOWLY), pool("q", "s1", slots=10, health=SLOWLY)))
    assert [story.replica(r).slots for r in ("r1", "r2", "s1")] == [10, 1, 1]
    story.at(31.0)
    assert [story.replica(r).slots for r in ("r1", "r2", "s1")] == [10, 10, 10]


def test_recovered_replica_has_all_slots_at_once_without_slow_start() -> None:
    story = play(policy(pool("p", "r1", slots=10, health=QUIET))).drains("r1").drains("r1", on=False)
    assert story.replica("r1").slots == 10
