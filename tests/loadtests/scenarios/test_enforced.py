"""Forecasts decide which requests they learn from, and must stay right while they are enforced."""

from __future__ import annotations

from random import Random

import pytest

from gateway.core.controller import Controller
from gateway.policy.load import load
from gateway.sim.engine.fleet import FleetSpec
from gateway.sim.run.options import Options
from gateway.sim.run.run import simulate
from loadtests.scenarios.file import policy_path
from loadtests.scenarios.load import load_scenario
from loadtests.scenarios.simulated import engine_of

SECONDS = 150.0


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 9])
def test_breach_probabilities_hold_in_lasting_overload(seed: int) -> None:
    """Most requests of the last tier are refused at their turn, so not only served requests teach.

    Nearly all admitted ones are in time, so their Brier skill is chance: from -.34 to .17 over ten seeds.
    """
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
    (pool,) = controller.forecaster.view().pools
    assert pool.reliability.labels > 2000
    assert pool.reliability.ece <= 0.03
