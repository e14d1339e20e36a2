"""Scenarios in the simulator: the same arrivals and faults, and an error for what it lacks."""

from __future__ import annotations

import math

import pytest

from gateway.core.results import Outcome
from loadtests.quantiles import interval, rank
from loadtests.scenarios.file import ContenderSection
from loadtests.scenarios.load import load_scenario
from loadtests.scenarios.simulated import NotSimulated, simulated

OURS = ContenderSection(kind="tailgate")
PART = 0.2


def test_simulated_scenario_counts_every_arrival_after_the_warm_up() -> None:
    scenario = load_scenario("overload")
    found = simulated(scenario, OURS, 1.0, PART, seed=0)
    due = [a for a in scenario.arrivals(1, 1.0, PART) if a.at >= scenario.warmup * PART]
    assert found.result.offered == len(due) > 50
    assert {tier: len(values) for tier, values in found.ttft_s.items()} == {
        name: tier.finished for name, tier in found.result.tiers.items()
    }
    assert all(values == sorted(values) for values in found.ttft_s.values())


def test_simulated_scenario_slows_engines_by_the_time_scale() -> None:
    scenario = load_scenario("overload")
    fast = simulated(scenario.model_copy(update={"time_scale": 5.0}), OURS, 0.5, PART, seed=0).ttft_s
    slow = simulated(scenario, OURS, 0.5, PART, seed=0).ttft_s
    assert all(rank(slow[tier], 0.5) > 8.0 * rank(fast[tier], 0.5) for tier in slow)


def test_http_time_is_added_to_the_simulated_ttft() -> None:
    scenario, way_s = load_scenario("overload"), 0.1
    near, far = (simulated(scenario, OURS, 0.2, 1.0, 0, ways_s).ttft_s["premium"] for ways_s in ((), (way_s,)))
    assert far[0] - near[0] >= way_s
    assert rank(far, 0.5) - rank(near, 0.5) > 0.8 * way_s


def test_faults_of_a_scenario_strike_the_simulated_replicas() -> None:
    """Round robin sends half of its requests to two replicas that are eight times as slow."""
    scenario = load_scenario("stragglers")
    calm = scenario.model_copy(update={"events": []})
    in_turns = ContenderSection(kind="round-robin")
    struck, well = (simulated(of, in_turns, 1.0, 1.0, 0).ttft_s["standard"] for of in (scenario, calm))
    assert rank(struck, 0.5) < 1.2 * rank(well, 0.5)
    assert rank(struck, 0.95) > 4.0 * rank(well, 0.95)


def test_simulated_scenario_counts_a_client_without_patience_as_a_miss() -> None:
    """As in a live run, where the load tester is that client."""
    scenario = load_scenario("retry-storm").model_copy(update={"patience": 0.2, "retries": 0})
    found = simulated(scenario, OURS, 1.0, PART, seed=0)
    assert found.result.counted < found.result.offered
    assert found.goodput == found.result.good / found.result.offered
    assert 0.0 < found.goodput < found.result.goodput


@pytest.mark.parametrize("name", ["rolling-restart", "policy-reload"])
def test_scenario_without_a_simulated_counterpart_is_refused(name: str) -> None:
    scenario = load_scenario(name)
    with pytest.raises(NotSimulated, match="own business"):
        simulated(scenario, OURS, 1.0, PART, 0)


def test_fault_unknown_to_the_simulator_is_refused() -> None:
    scenario = load_scenario("ballooning")
    event = scenario.events[0].model_copy(update={"fault": "truncated"})
    with pytest.raises(NotSimulated, match="does not have the fault truncated"):
        simulated(scenario.model_copy(update={"events": [event]}), OURS, 1.0, PART, 0)


def test_ballooning_answers_take_the_slots_of_others_unless_their_length_is_watched() -> None:
    scenario = load_scenario("ballooning")
    watched, unwatched = (simulated(scenario, of, 1.0, 1.0, 0) for of in scenario.contenders[:2])
    assert watched.result.tiers["standard"].outcomes[Outcome.CUT] > 0
    assert Outcome.CUT not in unwatched.result.tiers["standard"].outcomes
    assert watched.result.goodput > unwatched.result.goodput + 0.1


def test_interval_of_a_percentile_contains_it() -> None:
    ordered = [float(n) for n in range(1000)]
    low, high = interval(ordered, 0.5)
    assert low < rank(ordered, 0.5) < high
    assert interval(ordered, 0.99)[1] < math.inf
    assert interval([1.0, 2.0], 0.99) == (2.0, math.inf)
