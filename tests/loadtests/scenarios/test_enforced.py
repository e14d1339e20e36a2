"""Forecasts that decide whom they learn from have to stay true while they are acted upon."""

from __future__ import annotations

from random import Random
from statistics import fmean

import pytest

from gateway.core.controller import Controller
from gateway.policy.load import load
from gateway.sim.run.fleet import FleetSpec
from gateway.sim.run.run import simulate
from gateway.sim.run.simulation import Options
from loadtests.scenarios.file import policy_path
from loadtests.scenarios.load import load_scenario
from loadtests.scenarios.simulated import engine_of

SECONDS = 150.0


SEEDS = (1, 9, 2)
"""One run is off by .05 either way."""


@pytest.mark.long
def test_under_lasting_overload_forecasts_tell_more_than_the_base_rate() -> None:
    """Most of the last tier are refused when their turn comes: it is not only those who get through that teach.

    One in a hundred of those admitted waits in vain, so misses are rare, and a low base rate is a good forecast.
    """
    assert fmean(_skill(seed) for seed in SEEDS) > 0.0


def _skill(seed: int) -> float:
    """The Brier skill of the breach forecasts of one run."""
    scenario = load_scenario("overload").model_copy(update={"lasts": SECONDS})
    policy = load(policy_path(scenario.policy), {})
    controller = Controller(policy, Random(seed))
    simulate(
        policy,
        scenario.arrivals(seed=1, times=1.5, part=1.0),
        seed=seed,
        fleet=FleetSpec(dict.fromkeys(policy.pools, engine_of(scenario))),
        options=Options(duration_s=SECONDS, prompts_known=False, give_up_s=scenario.grace),
        decider=controller,
    )
    (pool,) = controller.forecaster.view(SECONDS).pools
    assert pool.reliability.labels > 2000
    return pool.reliability.skill
