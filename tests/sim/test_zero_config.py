"""`tailgate serve --replica` beside round robin, cold, on engines with far more seats than learned slots begin with."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from gateway.core.controller import Controller
from gateway.core.policy import Policy
from gateway.core.slo import Objective, Slo
from gateway.policy.builtin import builtin
from gateway.sim.baselines import baselines
from gateway.sim.engine.fleet import FleetSpec
from gateway.sim.engine.profiles import COSTS, ENGINES, Profile
from gateway.sim.run.decider import Decider
from gateway.sim.run.options import Options
from gateway.sim.run.results import Result
from gateway.sim.run.run import simulate
from gateway.sim.workload.lengths import LENGTHS
from gateway.sim.workload.synthetic import Synthetic, TierTraffic

LLAMA_8B_A100 = ENGINES["llama3-8b-a100"]
KNEE_PER_S = 16.5
"""Highest rate at which two of these engines, with round robin, serve 97% of Azure's conversations of 2023 in time."""
SECONDS = 20.0


def policy(replicas: int = 2) -> Policy:
    """The policy of `--replica`, with objectives that are only counted."""
    rules = builtin([f"http://127.0.0.1:{port}" for port in range(9001, 9001 + replicas)])
    slo = Slo(ttft=(Objective(0.99, 2.0),), tpot=(Objective(0.99, 0.15),))
    return replace(rules, tiers={"default": replace(rules.tiers["default"], slo=slo)})


def run(rules: Policy, decider: Decider, load: float, fleet: dict[str, Profile]) -> Result:
    share = TierTraffic(
        "default", 1.0, LENGTHS["azure-conversation-prompt"], LENGTHS["azure-conversation-answer"], model="any"
    )
    workload = Synthetic(load * KNEE_PER_S, SECONDS, (share,))
    options = Options(duration_s=SECONDS, warmup_s=0.0, prompts_known=False)
    return simulate(rules, workload.arrivals(1), fleet=FleetSpec(fleet), options=options, decider=decider)


def both(load: float, fleet: dict[str, Profile]) -> tuple[Result, Result]:
    """The gateway and round robin, on the same arrivals."""
    rules = policy()
    plain = baselines.setup("round-robin", rules).decider(rules, Random(1))
    return run(rules, Controller(rules, Random(1)), load, fleet), run(rules, plain, load, fleet)


@pytest.mark.parametrize("load", [1.0, 1.5])
def test_zero_config_is_no_worse_than_round_robin_from_the_first_second(load: float) -> None:
    ours, plain = both(load, {"default": LLAMA_8B_A100})
    assert ours.tiers["default"].queue.p99 == 0.0
    assert ours.goodput >= plain.goodput - 0.005
    p99, plain_p99 = ours.tiers["default"].ttft.p99, plain.tiers["default"].ttft.p99
    assert p99 is not None
    assert plain_p99 is not None
    assert load > 1.0 or p99 <= plain_p99 + 0.02


def test_zero_config_gives_a_replica_that_is_four_times_slower_no_more_than_it_can_do() -> None:
    costs = {name: 4 * getattr(LLAMA_8B_A100, name) for name in COSTS}
    slow = replace(LLAMA_8B_A100, name="slow", **costs)
    names = [replica.name for replica in policy().pools["default"].replicas]
    ours, plain = both(0.5, dict(zip(names, (LLAMA_8B_A100, slow), strict=True)))
    assert plain.goodput < 0.7
    assert ours.goodput > 0.9
