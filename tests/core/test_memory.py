"""A successor takes over what a controller has learned."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.controller import Controller
from gateway.core.fleet.prefix_cache.prefix_index import holding
from gateway.core.policy import Policy
from gateway.core.request import Prefix
from gateway.core.slo import Objective, Slo
from gateway.core.snapshot import ReplicaState, Trust
from tests.effort import examples

from .made import STEADY, memory_of, policy, pool, tier
from .playbook import Story, dispatch, play
from .steady import Traffic, fleet, state

PROMISED = tier("std", slo=Slo((Objective(0.99, 5.0),), (Objective(0.99, 1.0),), (Objective(0.99, 60.0),)))


def written(story: Story) -> dict[str, Any]:
    """The memory of a story, as it is read from a file."""
    return memory_of(story.controller, story.now)


def successor(of: Story, rules: Policy | None = None, away_s: float = 0.0, clock_s: float = 1000.0) -> Story:
    """A story that begins with the memory of another. `clock_s`: how much more its clock shows."""
    story = play(rules or of.controller.policy)
    story.now = of.now + clock_s
    story.controller.recall(written(of), away_s, story.now)
    return story


def taught() -> Story:
    story = play(fleet(4, PROMISED))
    Traffic(story, per_s=30.0).until(40.0)
    return story


def test_successor_has_the_same_memory() -> None:
    before = taught()
    memory = written(before)
    assert memory["pools"]["p"]["samples"] > 100
    assert memory["lengths"]["buckets"]
    assert written(successor(before, clock_s=0.0)) == memory


def test_forecast_of_a_successor_is_trusted_at_once() -> None:
    before = taught()
    after = successor(before)
    (old,), (new,) = before.controller.forecaster.view().pools, after.controller.forecaster.view().pools
    assert new.trust is Trust.TRUSTED
    assert (new.ttft_coefficients, new.step_coefficients) == (old.ttft_coefficients, old.step_coefficients)


def test_rates_of_a_predecessor_are_forgotten_while_nobody_serves() -> None:
    before = taught()
    (old,) = before.controller.state.fleet
    rate = old.ends.per_s(before.now)
    assert rate > 10.0
    for away_s in (0.0, 5.0, 60.0):
        after = successor(before, away_s=away_s)
        (new,) = after.controller.state.fleet
        assert new.ends.per_s(after.now) == pytest.approx(rate * math.exp(-away_s / new.ends.tau_s))


def test_ejected_replica_stays_out_for_the_rest_of_its_time() -> None:
    before = play(fleet(6))
    traffic = Traffic(before, per_s=30.0)
    traffic.until(20.0)
    traffic.times["r3"] = 3.0
    traffic.until(35.0)
    left_s = before.replica("r3").health.back_in_s
    assert left_s is not None
    after = successor(before, away_s=2.0)
    assert state(after, "r3") is ReplicaState.EJECTED
    health = after.replica("r3").health
    assert health.back_in_s == pytest.approx(left_s - 2.0)
    assert health.why == before.replica("r3").health.why
    assert all(state(after, f"r{n}") is ReplicaState.UP for n in (1, 2, 4, 5, 6))
    Traffic(after, per_s=30.0).until(after.now + 60.0)
    assert state(after, "r3") is ReplicaState.UP, "it is as fast as the others now"


def test_ejected_replica_that_discovery_found_waits_for_its_first_check() -> None:
    before = play(fleet(6))
    traffic = Traffic(before, per_s=30.0)
    traffic.times["r3"] = 3.0
    traffic.until(35.0)
    rules = before.controller.policy
    specs = tuple(replace(spec, is_found=True) for spec in rules.pools["p"].replicas)
    found = replace(rules, pools={"p": replace(rules.pools["p"], replicas=specs)})
    after = play(found, alive=False)
    after.controller.recall(written(before), 0.0, after.now)
    assert state(after, "r3") is ReplicaState.ABSENT
    assert state(after.recovers("r3"), "r3") is ReplicaState.EJECTED


def test_drain_by_an_operator_outlives_the_process() -> None:
    before = taught().drains("r2")
    assert state(successor(before), "r2") is ReplicaState.DRAINED


def test_conversation_goes_on_at_its_replica_after_a_restart() -> None:
    prefix = Prefix(blocks=(11, 12, 13), ends=(2048, 4096, 6000), size=6000)
    before = play(policy(pool("p", "r1", "r2", "r3"), tier("std")))
    before.arrives("q", prompt=1500, prefix=prefix).expect(dispatch("r1", of="q"))
    after = successor(before)
    (found,) = after.controller.state.fleet
    assert [replica.cache.matched(prefix) for replica in found.replicas.values()] == [6000, 0, 0]
    assert len(holding(prefix, found.holders)) == 1
    assert written(after)["replicas"]["r1"]["blocks"] == ((13, 30, False), (12, 32, False), (11, 32, True))


def test_facts_of_other_pools_and_of_other_engines_are_left_out() -> None:
    before = taught().drains("r2")
    after = successor(before, policy(pool("q", "r1", "r2", "r5")))
    assert state(after, "r2") is ReplicaState.UP
    assert written(after)["pools"].keys() <= {"q"}


def test_memory_without_fields_teaches_nothing() -> None:
    story = play(fleet(2))
    before = written(story)
    story.controller.recall({}, 0.0, story.now)
    after = written(story)
    assert after["replicas"] == {
        name: {**each, "model": after["replicas"][name]["model"]} for name, each in before["replicas"].items()
    }
    assert story.controller.forecaster.trust("p") is Trust.COLD


TAUGHT = written(taught())
ODD = st.sampled_from([None, "x", (), ("a", 2), ((0.5,), "y"), {}, {"x": 1}])


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """All places in plain data."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, tuple) else ()
    return [path, *(place for key, item in items for place in places(item, (*path, key)))]


def changed(data: Any, path: tuple[Any, ...], odd: object) -> Any:
    if not path:
        return odd
    if isinstance(data, dict):
        return {key: changed(item, path[1:], odd) if key == path[0] else item for key, item in data.items()}
    return tuple(changed(item, path[1:], odd) if at == path[0] else item for at, item in enumerate(data))


@pytest.mark.parametrize("odd", ["x", (1.0,), ("x",) * 14, (1.0,) * 13])
def test_sums_in_another_form_are_not_added_to_others(odd: object) -> None:
    story = play(fleet(4, PROMISED))
    story.controller.recall(changed(TAUGHT, ("pools", "p", "costs", "ttft", "blocks"), (odd, odd)), 0.0, story.now)
    Traffic(story, per_s=30.0).until(story.now + 10.0)
    assert written(story)["pools"]["p"]["costs"]["ttft"]["blocks"]


@settings(STEADY, max_examples=examples(100))
@given(place=st.sampled_from(places(TAUGHT)[1:]), odd=ODD)
def test_field_in_another_form_is_ignored_and_the_gateway_serves(place: tuple[Any, ...], odd: object) -> None:
    story = play(fleet(4, PROMISED))
    story.controller.recall(changed(TAUGHT, place, odd), 0.0, story.now)
    Traffic(story, per_s=30.0).until(story.now + 1.0)
    assert Controller(story.controller.policy, Random(1)).recall(written(story), 0.0, 0.0) == []
