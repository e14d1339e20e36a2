"""Loads that other gateways tell are added to the own bookings, change none of them, and age out."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from gateway.core.estimators.latency_model import LatencyModel
from gateway.core.forecast.wait import drain_per_s, own_drain_per_s
from gateway.core.offer import Offer
from gateway.core.sample import NO_LOAD, GatewayLoad, PoolLoad, ReplicaLoad, Sample
from gateway.core.snapshot import ReplicaState
from tests.effort import examples

from .drivers import POOLS, TIERS
from .made import STEADY, a_request, policy, pool, tier
from .playbook import Story, dispatch, play
from .steady import Traffic, fleet, state
from .test_any_driver import AnyDriver

INTERVAL_S = 0.1


def hears(story: Story, source: str, *loads: ReplicaLoad | PoolLoad) -> Story:
    """Another gateway tells its load."""
    replicas = tuple(each for each in loads if isinstance(each, ReplicaLoad))
    pools = tuple(each for each in loads if isinstance(each, PoolLoad))
    return story.hears(source, GatewayLoad(INTERVAL_S, replicas, pools))


def test_a_request_goes_where_others_sent_least() -> None:
    story = play(policy(pool("p", "r1", "r2", slots=4)))
    hears(story, "b", ReplicaLoad("r1", 1, 1, 500, 500)).arrives("x").expect(dispatch("r2"))
    hears(story, "b").arrives("y", prompt=10).expect(dispatch("r1"))


def test_a_replica_filled_by_others_takes_nothing_until_they_tell_of_room() -> None:
    story = play(policy(pool("p", "r1", slots=2)))
    hears(story, "b", ReplicaLoad("r1", 2)).arrives("x").expect()
    hears(story, "b", ReplicaLoad("r1", 1)).expect(dispatch("r1", of="x"))


def test_a_silent_gateway_is_forgotten_after_three_intervals() -> None:
    story = play(policy(pool("p", "r1", slots=2)))
    hears(story, "b", ReplicaLoad("r1", 2)).arrives("x").at(0.29).expect()
    story.at(0.31).expect(dispatch("r1", of="x"))
    assert story.controller.state.others.next_at() == float("inf")


def test_an_ejection_by_another_gateway_is_shown_and_makes_an_own_one_sooner() -> None:
    ejected_at = []
    for told in ((), (("r3", "slow-ttft"),)):
        story = play(fleet(6))
        traffic = Traffic(story, per_s=30.0)
        traffic.until(20.0)
        traffic.times["r3"] = 3.0
        while state(story, "r3") is not ReplicaState.EJECTED:
            story.hears("b", GatewayLoad(1.0, ejected=told))
            assert story.replica("r3").health.elsewhere == tuple(reason for _, reason in told)
            traffic.until(story.now + 1.0)
        ejected_at.append(story.now)
    alone, told_at = ejected_at
    assert told_at <= alone - 2.0
    assert story.controller.load(1.0, story.now).ejected == (("r3", "slow-ttft"),)
    story.hears("b", GatewayLoad(1.0))
    assert story.replica("r3").health.elsewhere == ()
    assert state(story, "r2") is ReplicaState.UP


def test_strict_slots_are_divided_among_gateways() -> None:
    strict = pool("p", "r1", slots=5, strict_slots=True)
    story = play(policy(strict)).shares(2)
    story.arrives("a").expect(dispatch("r1")).arrives("b").expect(dispatch("r1")).arrives("c").expect()
    hears(story, "b", ReplicaLoad("r1", 2)).expect()
    story.shares(1).expect(dispatch("r1", of="c"))
    assert story.replica("r1").slots == 5
    story.arrives("d").expect()
    hears(story, "b", ReplicaLoad("r1", 1)).expect(dispatch("r1", of="d"))
    story.configured(policy(strict, pool("q", "r2", slots=5, strict_slots=True))).shares(3)
    story.configured(policy(strict, pool("z", "r3", slots=5, strict_slots=True)))
    assert [story.replica(name).slots for name in ("r1", "r3")] == [2, 1]


def test_gateway_that_does_not_know_how_many_there_are_uses_one_strict_slot() -> None:
    strict = pool("p", "r1", slots=8, strict_slots=True)
    story = play(policy(strict, pool("q", "r2", slots=8))).shares(0)
    story.arrives("a").expect(dispatch("r1")).arrives("b").expect()
    story.configured(policy(strict, pool("q", "r2", slots=8), pool("z", "r3", slots=5, strict_slots=True)))
    assert [story.replica(name).slots for name in ("r1", "r2", "r3")] == [1, 8, 1]
    story.shares(4).expect(dispatch("r1", of="b"))


def test_loads_of_several_gateways_add_up() -> None:
    story = play(policy(pool("p", "r1", slots=3)))
    hears(story, "b", ReplicaLoad("r1", 1))
    hears(story, "c", ReplicaLoad("r1", 2)).arrives("x").expect()
    assert story.replica("r1").others_in_flight == 3
    hears(story, "c", ReplicaLoad("r1", 1)).expect(dispatch("r1", of="x"))


def test_less_urgent_requests_leave_room_for_urgent_ones_that_wait_elsewhere() -> None:
    story = play(policy(pool("p", "r1", slots=4), tier("high"), tier("low", 1)))
    hears(story, "b", PoolLoad("p", (), ((0, 2),)), ReplicaLoad("r1", 1))
    story.arrives("a", tier="low").expect(dispatch("r1"))
    story.arrives("b", tier="low").expect()
    story.arrives("c", tier="high").expect(dispatch("r1"))
    hears(story, "b").expect(dispatch("r1", of="b"))


def test_a_reserve_that_others_already_use_is_not_kept_again() -> None:
    story = play(policy(pool("p", "r1", slots=4, reserve=(("high", 0.5),)), tier("high"), tier("low", 1)))
    hears(story, "b", PoolLoad("p", (("high", 2),)), ReplicaLoad("r1", 2))
    story.arrives("a", tier="low").expect(dispatch("r1")).arrives("b", tier="low").expect(dispatch("r1"))


def test_the_size_of_a_kv_cache_counts_tokens_that_others_hold() -> None:
    story = play(policy(pool("p", "r1", slots=9)))
    hears(story, "b", ReplicaLoad("r1", 4, held_tokens=900)).arrives("x", prompt=100)
    story.observes("r1", Sample(waiting=0, running=5, kv_fraction=0.5))
    assert story.replica("r1").kv_capacity_tokens == 2000


def test_a_reload_keeps_what_others_told() -> None:
    story = play(policy(pool("p", "r1", slots=2)))
    hears(story, "b", ReplicaLoad("r1", 2), ReplicaLoad("r2", 1))
    story.configured(policy(pool("p", "r2", "r1", slots=2)))
    assert [story.replica(name).others_in_flight for name in ("r1", "r2")] == [2, 1]


def test_requests_that_others_finish_make_room_too() -> None:
    story = play(policy(pool("p", "r1", slots=4), tier("high"), tier("low", 1)))
    story.arrives("x", tier="low")
    hears(story, "b", PoolLoad("p", (("low", 3),), ((0, 5), (1, 7))), ReplicaLoad("r1", 3))
    (served,) = story.controller.state.fleet
    costs = LatencyModel()
    costs.stay_s = 2.0
    assert drain_per_s(costs, served) == 2.0  # 4 requests, 2 s each
    assert own_drain_per_s(costs, served) == 0.5


def test_urgent_requests_that_wait_elsewhere_are_ahead_of_a_new_one() -> None:
    story = play(policy(pool("p", "r1", slots=1), tier("high"), tier("low", 1)))
    hears(story, "b", PoolLoad("p", (), ((0, 5), (1, 7))), ReplicaLoad("r1", 1))
    ahead = [
        story.controller.state.admission.outlook.ahead(_offer(story, name), 0.0).requests for name in ("high", "low")
    ]
    assert ahead == [5, 12]


def _offer(story: Story, name: str) -> Offer:
    found = story.controller.state.places.find(a_request(1, story.controller.policy, 0.0, tier=name), 0.0)
    assert isinstance(found, Offer)
    return found


def test_a_gateway_tells_its_own_load_alone() -> None:
    story = play(policy(pool("p", "r1", slots=2)))
    hears(story, "b", ReplicaLoad("r1", 1, 1, 50, 50, 7.0, 9.0), PoolLoad("p", (("std", 1),)))
    story.arrives("x", prompt=100).arrives("y", prompt=30)
    told = story.controller.load(INTERVAL_S, story.now)
    assert told.pools == (PoolLoad("p", (("std", 1),), ((0, 1),)),)
    (load,) = told.replicas
    assert (load.name, load.in_flight, load.unread_prompts, load.unread_tokens, load.held_tokens) == (
        "r1",
        1,
        1,
        100,
        100,
    )
    assert load.prompt_tokens_per_s == 20.0  # 100 tokens, forgotten with a time constant of 5 s
    assert load.growth_tokens > 0.0


counts = st.integers(0, 3)
tokens = st.sampled_from([0, 0, 100, 5000])
loads = st.builds(
    GatewayLoad,
    st.sampled_from([0.1, 1.0]),
    st.lists(
        st.builds(
            ReplicaLoad,
            st.sampled_from([*(f"{name}r{i}" for name in POOLS for i in range(3)), "gone"]),
            counts,
            counts,
            tokens,
            tokens,
            st.sampled_from([0.0, 33.3]),
            st.sampled_from([0.0, 1e3]),
        ),
        max_size=5,
        unique_by=lambda load: load.name,
    ).map(tuple),
    st.lists(
        st.builds(
            PoolLoad,
            st.sampled_from(POOLS),
            st.lists(st.tuples(st.sampled_from(TIERS), st.integers(1, 2)), max_size=2, unique_by=lambda e: e[0]).map(
                tuple
            ),
            st.lists(st.tuples(st.integers(0, 2), st.integers(1, 2)), max_size=2, unique_by=lambda e: e[0]).map(tuple),
        ),
        max_size=2,
        unique_by=lambda load: load.name,
    ).map(tuple),
)


class AnySharedDriver(AnyDriver):
    """Any caller of a controller, while two other gateways tell loads. Each call also checks the own bookings."""

    @rule(source=st.sampled_from("bc"), load=loads)
    def hear(self, source: str, load: GatewayLoad) -> None:
        before = self.driver.controller.load(1.0, self.driver.now)
        waiting = len([state for state in self.driver.controller.state.requests.values() if state.waiting])
        self.driver.tell("told", source, load)
        if not waiting:
            assert self.driver.controller.load(1.0, self.driver.now) == before, "own bookings changed"
        self.heard = {**getattr(self, "heard", {}), source: (load, self.driver.now + 3.0 * load.interval_s)}

    @invariant()
    def sums_are_those_of_the_sources_that_are_not_silent(self) -> None:
        if not hasattr(self, "driver"):
            return
        others = self.driver.controller.state.others
        expected: Counter[str] = Counter()
        known = [load for load, until in getattr(self, "heard", {}).values() if until > self.driver.now]
        assert len(others) >= len(known)
        if len(others) > len(known):
            return  # one is due at this very moment, and the controller was not woken yet
        for load in known:
            expected.update({each.name: each.in_flight for each in load.replicas})
        for pool_now in self.driver.controller.state.fleet:
            assert pool_now.spare >= 0
            for name, replica in pool_now.replicas.items():
                assert replica.others.in_flight == expected[name]
                assert min(replica.imputed, replica.imputed_tokens, replica.total_held_tokens) >= 0
                assert replica.budget.others is replica.others

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        self.driver.end_all()
        self.driver.pass_time(3.0)
        controller = self.driver.controller
        assert not len(controller.state.others)
        for pool_now in controller.state.fleet:
            assert not pool_now.others_by_tier
            assert not pool_now.others_waiting
            assert all(replica.others is NO_LOAD for replica in pool_now.replicas.values())
        super().teardown()


TestAnySharedDriver = AnySharedDriver.TestCase
TestAnySharedDriver.settings = settings(
    STEADY,
    max_examples=examples(120),
    stateful_step_count=60,
    phases=(Phase.generate, Phase.shrink),
    report_multiple_bugs=False,
)
cast(Any, TestAnySharedDriver).pytestmark = [pytest.mark.timeout(600)]
