"""The core assumes no size of an engine: few seats or 2,048, prompts of a million tokens, chunks of 256 or 32k."""

from __future__ import annotations

from random import Random

import pytest

from gateway.core.controller import Controller
from gateway.core.request import Endpoint, Request
from gateway.core.scheduling.explanation import PlacementExplanation
from gateway.sim.engine.fleet import FleetSpec
from gateway.sim.engine.profiles import Profile
from gateway.sim.run.options import Options
from gateway.sim.run.run import simulate

from .made import ENFORCE, arrival, policy, tier

MILLION = 1_000_000
SECONDS = 1500.0
TOKENS_PER_S = 50_000.0


def vast(seats: int, chunk: int) -> Profile:
    """An engine that reads a prompt of a million tokens in some 20 s, and holds three of them."""
    return Profile(
        name="vast",
        max_model_len=MILLION + 100_000,
        max_num_seqs=seats,
        max_batched_tokens=chunk,
        kv_capacity_tokens=3 * MILLION + 300_000,
        step_base_s=0.0005,
        prefill_s_per_token=1.0 / TOKENS_PER_S,
        decode_s_per_sequence=1e-5,
        kv_s_per_token=1e-9,
    )


def ttft_s(controller: Controller, prompt_tokens: int) -> float:
    rules = controller.policy
    (std,) = rules.tiers.values()
    (model,) = rules.models.values()
    asked = Request(
        id=0,
        policy=rules,
        tier=std,
        model=model,
        tenant="default",
        endpoint=Endpoint.CHAT,
        stream=True,
        prompt_bytes=0,
        prompt_exact=prompt_tokens,
        max_tokens=10,
        choices=1,
        body_bytes=0,
        head_at=2 * SECONDS,
        body_at=2 * SECONDS,
    )
    found = controller.explain(asked, 2 * SECONDS)
    assert isinstance(found, PlacementExplanation)
    assert found.verdict == "sent"
    return found.best.ttft_s


@pytest.mark.parametrize(("seats", "chunk"), [(4, 256), (255, 256), (2048, 32_768)])
def test_prompts_of_a_million_tokens_are_served_and_forecast_beside_short_ones(seats: int, chunk: int) -> None:
    rules = policy(tier(ttft_s=120.0, admission=ENFORCE), replicas=2, slots=None)
    controller = Controller(rules, Random(1))
    arrivals = [arrival(30.0 * n, MILLION) for n in range(int(SECONDS / 30.0))]
    arrivals += [arrival(2.0 * n + 0.5, 300 + n % 7 * 100) for n in range(int(SECONDS / 2.0))]
    arrivals.sort(key=lambda one: one.at)
    found = simulate(
        rules, arrivals, fleet=FleetSpec({"p": vast(seats, chunk)}), options=Options(SECONDS), decider=controller
    )
    assert found.goodput > 0.97
    long_s, tenth_s = ttft_s(controller, MILLION), ttft_s(controller, MILLION // 10)
    assert 0.5 * MILLION / TOKENS_PER_S < long_s < 2.0 * MILLION / TOKENS_PER_S
    assert 5.0 < long_s / tenth_s < 15.0
