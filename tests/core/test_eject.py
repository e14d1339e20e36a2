"""Ejection: a replica that is slow beside its pool is left out, up to a cap."""

import math
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.commands import Dispatch
from gateway.core.estimators.severity import Severity
from gateway.core.fleet.health.evidence import EjectionReason, Observation
from gateway.core.fleet.judging.terms import most_slow
from gateway.core.snapshot import ReplicaState

from .made import STEADY, policy, pool
from .playbook import Story, play
from .steady import Traffic, fleet, state


def test_replica_three_times_as_slow_is_ejected_within_fifteen_seconds() -> None:
    story = play(fleet(6))
    traffic = Traffic(story, per_s=30.0)
    traffic.until(20.0)
    traffic.times["r3"] = 3.0
    traffic.until(35.0)
    assert state(story, "r3") is ReplicaState.EJECTED
    assert traffic.share("r3", 35.0 - 1.0) < 0.05
    health = story.replica("r3").health
    assert health.out == "slow-ttft"
    assert "times that of its pool (z " in health.why
    assert health.ejections == (("slow-ttft", 1),)
    assert all(state(story, f"r{n}") is ReplicaState.UP for n in (1, 2, 4, 5, 6))


def test_replica_twelve_times_as_slow_is_ejected_before_its_answers_end() -> None:
    story = play(fleet(6, slots=64))
    traffic = Traffic(story, per_s=30.0, ttft_s=0.5)
    traffic.until(20.0)
    traffic.times["r3"] = 60.0
    traffic.until(33.0)
    assert state(story, "r3") is ReplicaState.EJECTED


def test_cancelled_requests_count_for_ejection() -> None:
    """Hedges and timeouts do not hide the slowness of the replica that they avoid."""
    story = play(fleet(5, stall_s=1e6))
    for number in range(600):
        story.at(number * 0.1).whatever().arrives(f"q{number}")
        (replica,) = (c.replica for c in story.commands if isinstance(c, Dispatch))
        story.sent(f"q{number}")
        if replica == "r2" and number > 200:
            story.after(0.095).leaves(f"q{number}").cancelled(f"q{number}")
        else:
            story.after(0.02).served(f"q{number}", output_tokens=1)
    assert story.replica("r2").health.out == "slow-ttft"


@pytest.mark.parametrize("ends", [Story.first_token, Story.leaves])
def test_first_token_awaited_while_the_gateway_stood_still_teaches_nothing(ends: Callable[[Story, str], Story]) -> None:
    story = play(fleet(3))
    Traffic(story, per_s=30.0).until(10.0)
    story.whatever().arrives("late")
    (replica,) = (c.replica for c in story.commands if isinstance(c, Dispatch))
    found = story.sent("late").controller.state.fleet.replica(replica)
    assert found is not None
    score = found.health.ttft
    before = score.mean, score.seen
    story.now += 3.0
    story.controller.lagged(2.9, story.now)
    ends(story.whatever(), "late").cancelled("late")
    assert (score.mean, score.seen) == before


@pytest.mark.parametrize(("stood_still", "then"), [(True, ReplicaState.UP), (False, ReplicaState.EJECTED)])
def test_open_requests_count_as_overdue_unless_the_gateway_stood_still(stood_still: bool, then: ReplicaState) -> None:
    story = play(fleet(6, slots=64, stall_s=1e6))
    traffic = Traffic(story, per_s=30.0)
    traffic.until(20.0)
    traffic.times["r3"] = math.inf
    traffic.until(21.5)
    if stood_still:
        story.controller.lagged(1.0, story.now)
    traffic.times["r3"] = 1.0
    traffic.until(30.0)
    assert state(story, "r3") is then


def test_attempt_cancelled_early_does_not_change_the_slowness_score() -> None:
    score = Severity()
    score.add(0.5)
    score.add_overdue(0.2)
    assert (score.mean, score.seen) == (0.5, 1.0)


def test_late_attempt_cancelled_below_the_mean_counts_as_a_sample() -> None:
    score = Severity()
    score.add(2.0)
    score.add_overdue(0.9)
    assert (score.mean, score.seen, score.window) == (2.0, 2.0, 2.0)


@pytest.mark.parametrize(("times", "most"), [(12.0, 9), (3.0, 15)])
def test_much_slower_replica_is_ejected_after_fewer_answers(times: float, most: int) -> None:
    """Five answers are needed before the replica is judged, and after that two windows. The larger the excess, the
    fewer answers a window needs.

    Routing counts the learned speed, so a much slower replica gets few requests.
    """
    story = play(fleet(5))
    answers = 0
    for number in range(150):
        story.at(number * 0.3).whatever().arrives(f"q{number}")
        (replica,) = (c.replica for c in story.commands if isinstance(c, Dispatch))
        answers += replica == "r2"
        story.sent(f"q{number}").after(0.02 * times if replica == "r2" else 0.02).served(f"q{number}", output_tokens=1)
        if story.replica("r2").health.out:
            break
    assert story.replica("r2").health.out == "slow-ttft"
    assert answers <= most


def test_one_slow_answer_ejects_no_replica() -> None:
    score = Severity()
    for _ in range(20):
        score.add(0.0)
    score.add(10.0)
    assert 0.0 < score.mean < 0.3


def test_slow_tokens_alone_eject_a_replica() -> None:
    story = play(fleet(5))
    for number in range(400):
        story.at(number * 0.1).whatever().arrives(f"q{number}")
        (replica,) = (c.replica for c in story.commands if isinstance(c, Dispatch))
        slow = replica == "r4" and number > 150
        story.sent(f"q{number}").after(0.001).first_token(f"q{number}")
        story.after(0.09 if slow else 0.03).finishes(f"q{number}", output_tokens=100)
    assert story.replica("r4").health.out == "slow-itl"


def test_slow_replica_is_ejected_long_before_its_long_answers_end() -> None:
    story = play(fleet(5, slots=200))
    streams: list[tuple[str, str, float]] = []
    for number in range(800):
        name = f"q{number}"
        story.at(number * 0.04).whatever().arrives(name)
        (replica,) = (c.replica for c in story.commands if isinstance(c, Dispatch))
        story.sent(name).after(0.001).first_token(name)
        streams.append((name, replica, story.now))
        for other, at, began in streams[number % 5 :: 5]:
            steps_s = 0.06 if at == "r4" and began > 12.0 else 0.02
            story.progress(other, 1 + int((story.now - began) / steps_s))
        if story.replica("r4").health.out:
            break
    assert story.replica("r4").health.out == "slow-itl"
    assert story.now < 26.0
    assert not story.records, "none has ended"


def test_no_replica_is_ejected_when_the_whole_pool_slows_down() -> None:
    story = play(fleet(6))
    traffic = Traffic(story, per_s=30.0, spread=0.5)
    traffic.until(20.0)
    traffic.times = {f"r{n}": 4.0 for n in range(1, 7)}
    traffic.until(80.0)
    assert all(state(story, f"r{n}") is ReplicaState.UP for n in range(1, 7))


@pytest.mark.parametrize("replicas", [1, 2])
def test_no_replica_of_a_pool_of_two_is_ejected(replicas: int) -> None:
    story = play(fleet(replicas))
    traffic = Traffic(story, per_s=20.0)
    traffic.times["r1"] = 5.0
    traffic.until(40.0)
    assert state(story, "r1") is ReplicaState.UP


def test_replica_that_was_always_slow_is_ejected() -> None:
    """A replica that was always slow is found like one that became slow."""
    story = play(fleet(6))
    traffic = Traffic(story, per_s=30.0)
    traffic.times["r3"] = 3.0
    traffic.until(25.0)
    assert state(story, "r3") is ReplicaState.EJECTED


def test_switching_ejection_off_ends_all_ejections_and_prevents_new_ones() -> None:
    story = play(fleet(6))
    traffic = Traffic(story, per_s=30.0)
    traffic.times["r3"] = 3.0
    traffic.until(25.0)
    assert state(story, "r3") is ReplicaState.EJECTED
    off = policy(pool("p", *(f"r{n}" for n in range(1, 7)), slots=8, router="round-robin"))
    story.configured(off)
    assert state(story, "r3") is ReplicaState.UP
    traffic.until(80.0)
    assert state(story, "r3") is ReplicaState.UP
    replica = story.controller.state.fleet.replica("r3")
    assert replica is not None
    health = replica.health
    assert health.is_typical, "nobody is held against others any more"
    assert health.ttft.memory < 1.0, "nor is a single answer once it is switched on again"


# ---- how many, and panic


@pytest.mark.parametrize(
    ("replicas", "most"), [(1, 1), (3, 1), (4, 1), (7, 1), (8, 2), (9, 2), (19, 2), (20, 2), (30, 3), (100, 10)]
)
def test_ejections_are_capped_at_a_share_of_the_pool(replicas: int, most: int) -> None:
    assert most_slow(replicas, 0.1) == most


def test_slowest_replica_is_ejected_first_and_the_cap_holds() -> None:
    story = play(fleet(7))
    traffic = Traffic(story, per_s=35.0)
    traffic.until(20.0)
    traffic.times |= {"r2": 3.0, "r5": 6.0}
    traffic.until(40.0)
    assert [n for n in range(1, 8) if state(story, f"r{n}") is ReplicaState.EJECTED] == [5]


def test_ejected_replicas_are_used_if_less_than_half_of_the_pool_is_healthy() -> None:
    story = play(fleet(6))
    traffic = Traffic(story, per_s=30.0)
    traffic.times["r3"] = 3.0
    traffic.until(25.0)
    for name in ("r1", "r2", "r4"):
        story.fails(name)
    assert story.pool("p").panic
    assert state(story, "r3") is ReplicaState.EJECTED
    traffic.until(27.0)
    assert traffic.share("r3", 25.0) > 0.2
    for name in ("r1", "r2", "r4"):
        story.recovers(name)


# ---- whatever happens


@given(
    replicas=st.integers(1, 32),
    slowdown=st.sampled_from([1.05, 2.0]),
    max_share=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    panic=st.sampled_from([0.0, 0.5, 1.0]),
    seed=st.integers(0, 10_000),
)
@settings(STEADY, max_examples=30)
def test_no_ejection_empties_a_pool_and_the_cap_holds(
    replicas: int, slowdown: float, max_share: float, panic: float, seed: int
) -> None:
    _minute(replicas, slowdown, max_share, panic, seed)


def test_random_latencies_of_the_property_test_do_eject_replicas() -> None:
    assert _minute(32, 1.05, 0.5, 0.5, 1) > 0, "what holds whatever happens would hold of nothing"


def _minute(replicas: int, slowdown: float, max_share: float, panic: float, seed: int) -> int:
    """A minute of random latencies, silences, breakers and drains. Returns the ejections for slowness, by second."""
    random = Random(seed)
    rules = fleet(replicas, slowdown=slowdown, max_share=max_share, panic_share=panic, time_s=7.0, max_time_s=20.0)
    story = play(rules)
    made = story.controller.state.fleet.pool("p")
    assert made is not None
    members = list(made.replicas.values())
    paces = [0.0] * 8 + [0.5, 1.5]
    pace = {replica: random.choice(paces) for replica in members}
    ejected = 0
    for second in range(60):
        story.at(float(second))
        for replica in members:
            if random.random() < 0.02:
                pace[replica] = random.choice(paces)
            if random.random() < 0.01:
                story.drains(replica.spec.name, on=not replica.drained)
            if random.random() < 0.02:
                if random.random() < 0.3:
                    story.fails(replica.spec.name)
                else:
                    story.recovers(replica.spec.name)
                    replica.health.saw(Observation.ANSWER, rules.pools["p"].health, story.now, "")
            for score in (replica.health.ttft, replica.health.itl):
                for _ in range(random.choice([0, 1, 5])):
                    score.add(random.gauss(pace[replica], 0.3))
        if second % 20 == 0:
            story.arrives(f"q{second}").whatever()  # these requests never get an answer
        story.controller.state.call.begin(story.now)
        story.controller.changes.check()
        meant = [replica for replica in members if not replica.drained]
        slow = [
            replica for replica in meant if replica.health.out in (EjectionReason.SLOW_TTFT, EjectionReason.SLOW_ITL)
        ]
        ejected += len(slow)
        assert len(slow) <= most_slow(len(meant), max_share) or len(meant) < replicas
        assert made.alive == any(replica.health.state is not ReplicaState.DOWN for replica in meant)
        assert made.slots == sum(replica.slots for replica in members)
    return ejected
