"""Data-parallel ranks of one server: separate replicas that share a process."""

from __future__ import annotations

from dataclasses import replace

from gateway.core.policy import Policy
from gateway.core.pool_spec import ReplicaSpec
from gateway.core.results import AttemptOutcome
from gateway.core.sample import Sample
from gateway.core.snapshot import ReplicaState

from .made import policy, pool
from .playbook import Story, dispatch, play


def ranks(server: str, count: int) -> tuple[ReplicaSpec, ...]:
    return tuple(ReplicaSpec(f"{server}#{rank}", f"http://{server}:8000", rank) for rank in range(count))


def made(*specs: ReplicaSpec, slots: int = 1) -> Policy:
    return policy(replace(pool("p", slots=slots), replicas=specs))


def states(story: Story) -> dict[str, ReplicaState]:
    return {view.name: view.state for view in story.pool("p").replicas}


def test_each_rank_has_its_own_slots() -> None:
    story = play(made(*ranks("gpu", 3)))
    for name, rank in zip("abc", ("gpu#0", "gpu#1", "gpu#2"), strict=True):
        story.arrives(name).expect(dispatch(rank))
    story.arrives("d").expect()


def test_failed_connection_counts_for_every_rank_of_the_server() -> None:
    story = play(made(*ranks("gpu", 2), ReplicaSpec("other", "http://other:8000")))
    for name in "abc":
        story.arrives(name).expect(dispatch("gpu#0")).finishes(name, AttemptOutcome.UNREACHABLE).whatever()
        story.finishes(name).whatever()  # the retry
    assert states(story) == {
        "gpu#0": ReplicaState.DOWN,
        "gpu#1": ReplicaState.DOWN,
        "other": ReplicaState.UP,
    }


def test_rank_that_fails_requests_goes_down_alone() -> None:
    story = play(made(*ranks("gpu", 2)))
    story.fails("gpu#0")
    assert states(story) == {"gpu#0": ReplicaState.DOWN, "gpu#1": ReplicaState.UP}


def test_a_retry_goes_to_another_server_before_a_rank_of_the_same() -> None:
    story = play(made(*ranks("gpu", 2), ReplicaSpec("other", "http://other:8000")))
    story.arrives("a").expect(dispatch("gpu#0")).finishes("a", AttemptOutcome.RESET).expect(dispatch("other"))
    alone = play(made(*ranks("gpu", 2)))
    alone.arrives("a").expect(dispatch("gpu#0")).finishes("a", AttemptOutcome.RESET).expect(dispatch("gpu#1"))


def test_crash_of_two_ranks_of_one_server_counts_once_for_quarantine() -> None:
    story = play(made(*ranks("gpu", 2)))
    story.arrives("a").expect(dispatch("gpu#0"))
    story.finishes("a", AttemptOutcome.RESET, body_hash=7).expect(dispatch("gpu#1"))
    story.finishes("a", AttemptOutcome.RESET, body_hash=7).whatever()
    story.after(1.0).arrives("again", body_hash=7).expect(dispatch("gpu#0"))


def test_ranks_that_stay_keep_their_requests_and_further_ones_are_used_after_a_reload() -> None:
    story = play(made(*ranks("gpu", 2))).arrives("a").arrives("b").whatever()
    story.arrives("c").expect()
    story.configured(made(*ranks("gpu", 3))).expect(dispatch("gpu#2", of="c"))
    assert [view.in_flight for view in story.pool("p").replicas] == [1, 1, 1]


def test_a_drained_server_stays_drained_when_its_number_of_ranks_changes() -> None:
    drained = play(made(*ranks("gpu", 2))).drains("gpu#0").drains("gpu#1").whatever()
    assert set(states(drained.configured(made(*ranks("gpu", 4)))).values()) == {ReplicaState.DRAINED}
    whole = play(made(ReplicaSpec("gpu", "http://gpu:8000"))).drains("gpu").whatever()
    assert set(states(whole.configured(made(*ranks("gpu", 2)))).values()) == {ReplicaState.DRAINED}
    one = play(made(*ranks("gpu", 2))).drains("gpu#0").whatever()
    assert states(one.configured(made(*ranks("gpu", 3)))) == {
        "gpu#0": ReplicaState.DRAINED,
        "gpu#1": ReplicaState.UP,
        "gpu#2": ReplicaState.UP,
    }


def test_each_rank_is_observed_with_its_own_load() -> None:
    story = play(made(*ranks("gpu", 2))).observes("gpu#1", Sample(waiting=3, running=4)).whatever()
    assert [view.sample for view in story.pool("p").replicas] == [None, Sample(waiting=3, running=4)]
