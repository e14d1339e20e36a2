"""A tier that may be given shorter answers, under an overload and after it."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from gateway.core.controller import Controller
from gateway.policy.load import load_text
from gateway.sim.run.options import Options
from gateway.sim.run.run import simulate
from gateway.sim.workload.load import load_text as load_workload_text

POLICY = """
apiVersion: tailgate/v1
kind: Policy
models: {default: {pools: [main]}}
pools:
  main:
    replicas:
      - {name: r1, url: "http://127.0.0.1:8101"}
      - {name: r2, url: "http://127.0.0.1:8102"}
tiers:
  standard: {slo: {e2e: {p99: 8s}}, timeouts: {queue: 8s}, max_tokens: {degrade: true}}
defaults: {tier: standard}
"""
WORKLOAD = """
apiVersion: tailgate/v1
kind: Workload
rate: 40/s
duration: 120s
model: default
arrivals: {cv: 1}
prompt_tokens: 500
output_tokens: azure-conversation-answer
tiers:
  standard: {share: 100%}
"""
BUSY_S, CALM_S = 120.0, 60.0


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
def test_answers_cut_to_be_in_time_do_not_raise_the_breach_forecast(seed: int) -> None:
    """No such answer is good. Labels of "missed" would make ever more requests doubtful, until the whole tier is
    shed."""
    policy = load_text(POLICY, "policy.yaml", {})
    busy = load_workload_text(WORKLOAD, "workload.yaml")
    controller = Controller(policy, Random(seed))
    calm = replace(busy, rate_per_s=5.0, duration_s=CALM_S)
    arrivals = [*busy.arrivals(seed), *(replace(one, at=one.at + BUSY_S) for one in calm.arrivals(seed + 100))]
    options = Options(duration_s=BUSY_S + CALM_S, prompts_known=True, give_up_s=60.0)
    found = simulate(policy, iter(arrivals), seed=seed, options=options, decider=controller)
    (pool,) = controller.forecaster.view().pools
    tier = found.tiers["standard"]
    assert pool.reliability.ece < 0.12
    assert tier.finished > 0.75 * tier.counted
