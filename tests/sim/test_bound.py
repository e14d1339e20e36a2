"""The clairvoyant bound: cases solved by hand, operators' questions, and that no policy beats it."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from gateway.core.policy import Caps, Policy, Tier, Value
from gateway.core.slo import Objective, Slo
from gateway.sim.analysis.bound import Bound, bound, capacity, replay_set
from gateway.sim.analysis.costs import costs, job_of
from gateway.sim.baselines import baselines
from gateway.sim.engine.fleet import FleetSpec
from gateway.sim.engine.profiles import DEFAULT, Profile
from gateway.sim.run.run import simulate
from gateway.sim.workload.arrivals import Arrival
from gateway.sim.workload.lengths import LENGTHS, Uniform
from gateway.sim.workload.synthetic import Synthetic, TierTraffic
from tests.sim.made import arrival, policy, tier

# A second of engine for 1,000 tokens of prompt; steps, decodes and context cost next to nothing.
PREFILL = Profile("prefill", 100_000, 1000, 50_000, 1_000_000, 1e-9, 1e-3, 0.0, 0.0)
# A second of engine for 10 tokens of answer after the first: a step of 1.6 s has 16 slots.
DECODE = Profile("decode", 100_000, 16, 50_000, 1_000_000, 1.6, 0.0, 0.0, 0.0)


def fleet(profile: Profile) -> FleetSpec:
    return FleetSpec({"p": profile})


def solved(arrivals: list[Arrival], of: Policy, profile: Profile = PREFILL, **more: Any) -> Bound:
    return bound(arrivals, of, fleet(profile), **{"constrained": False, "horizon_s": 100.0, **more})


def test_bound_accepts_the_part_of_a_request_that_fits_its_deadline() -> None:
    # Each takes a second and must be done by 1.5 s: one and a half fit.
    found = solved([arrival(0.0, 1000), arrival(0.0, 1000)], policy(tier(ttft_s=1.5)))
    assert found.weighted == found.goodput == pytest.approx(0.75)
    assert sum(found.accepted) == pytest.approx(1.5)


def test_bound_doubles_with_a_second_replica_but_a_request_uses_only_one() -> None:
    assert solved([arrival(0.0, 1000)] * 2, policy(tier(ttft_s=1.5), replicas=2)).goodput == pytest.approx(1.0)
    assert solved([arrival(0.0, 2000)], policy(tier(ttft_s=1.5), replicas=2)).goodput == 0.0


def test_bound_serves_an_earlier_deadline_before_a_later_one() -> None:
    of = policy(tier("a", ttft_s=1.0 + 1e-6), tier("b", 1, ttft_s=2.0 + 1e-6))
    first, second = arrival(0.0, 1000, tier="a"), arrival(0.0, 1000, tier="b")
    assert solved([first, second], of).accepted == pytest.approx((1.0, 1.0))


def test_bound_accepts_the_tier_with_the_larger_weight() -> None:
    of = policy(tier("a", weight=4.0, ttft_s=1.0 + 1e-6), tier("b", 1, weight=1.0, ttft_s=1.0 + 1e-6))
    found = solved([arrival(0.0, 1000, tier="b"), arrival(0.0, 1000, tier="a")], of)
    assert found.accepted == pytest.approx((0.0, 1.0), abs=1e-5)
    assert found.weighted == pytest.approx(0.8, abs=1e-5)
    assert found.tiers == pytest.approx({"b": 0.0, "a": 1.0}, abs=1e-5)


def test_bound_values_a_request_by_its_tokens_if_the_tier_does() -> None:
    a, b = tier("a", value=Value.TOKENS), tier("b")
    arrivals = [arrival(0.0, 990, 10, tier="a"), arrival(0.0, 990, 2010, tier="a"), arrival(0.0, 990, 10, tier="b")]
    found = solved(arrivals, policy(a, b))
    # Worth 1/2, 3/2 and 1. Each takes .99 of the one second until the deadlines.
    assert found.accepted == pytest.approx((0.0, 1.0, 0.01 / 0.99), abs=1e-4)
    assert found.weighted == pytest.approx((1.5 + 0.01 / 0.99) / 3, abs=1e-4)


def test_bound_charges_an_answer_one_slots_part_of_each_step() -> None:
    # 101 tokens: 100 decodes of 0.1 s. Two of them need 20 s of engine, but there are 15.
    found = solved([arrival(0.0, 10, 101), arrival(0.0, 10, 101)], policy(tier(ttft_s=50.0)), DECODE, horizon_s=15.0)
    assert found.goodput == pytest.approx(0.75)
    # Open requests may still be decoded after the end: the ceiling includes that.
    assert found.ceiling == pytest.approx(1.0)


def test_bound_lets_few_answers_share_a_step_under_a_tight_tpot() -> None:
    # A step takes 0.1 s and 10 ms for each of its sequences: 0.2 s allow ten, of which each bears 20 ms.
    profile = Profile("tpot", 100_000, 1000, 50_000, 1_000_000, 0.1, 0.0, 0.01, 0.0)
    slo = Slo(ttft=(Objective(0.99, 50.0),), tpot=(Objective(0.99, 0.2),))
    arrivals = [arrival(0.0, 10, 101) for _ in range(10)]
    found = solved(arrivals, policy(Tier("default", slo=slo)), profile, horizon_s=15.0)
    assert found.goodput == pytest.approx(0.75)
    assert found.ceiling == pytest.approx(1.0)
    free = solved(arrivals, policy(tier(ttft_s=50.0)), profile, horizon_s=15.0)
    assert free.goodput == pytest.approx(1.0)


def test_bound_charges_an_answer_more_of_a_step_for_a_longer_prompt() -> None:
    of = costs(
        policy(), FleetSpec({"p": replace(DEFAULT, step_base_s=0.1, decode_s_per_sequence=0.01, kv_s_per_token=1e-4)})
    )
    rules = policy(Tier("default", slo=Slo(tpot=(Objective(0.99, 0.2),))))
    job = job_of(arrival(0.0, 100, 4), rules)
    assert of.decode_in_time(job) == pytest.approx(3 * (0.01 + (0.01 + 0.01) * 0.1 / 0.1) + 1e-4 * 303)
    assert of.decode_in_time(job_of(arrival(0.0, 100, 4), policy())) == pytest.approx(3 * 0.01 + 1e-4 * 303)


def test_bound_charges_the_context_that_an_answer_reads() -> None:
    job = job_of(arrival(0.0, 100, 4), policy())
    of = costs(
        policy(), FleetSpec({"p": replace(DEFAULT, step_base_s=0.064, decode_s_per_sequence=0.5, kv_s_per_token=0.1)})
    )
    # Three decodes, which read 100, 101 and 102 tokens.
    assert of.decode(job) == pytest.approx(3 * (0.5 + 0.001) + 0.1 * 303)
    assert of.prefill(job) == pytest.approx(100 * DEFAULT.prefill_s_per_token)


def test_the_cost_of_a_prompt_in_the_bound_includes_that_of_its_sequence() -> None:
    job = job_of(arrival(0.0, 100, 4), policy())
    of = costs(policy(), FleetSpec({"p": replace(DEFAULT, prefill_s_per_sequence=0.02)}))
    assert of.prefill(job) == pytest.approx(0.02 + 100 * DEFAULT.prefill_s_per_token)


def test_bound_counts_a_slower_replica_as_less_than_one() -> None:
    slow = replace(
        DEFAULT, name="s", step_base_s=0.04, prefill_s_per_token=2e-4, decode_s_per_sequence=16e-5, kv_s_per_token=2e-7
    )
    of = costs(policy(replicas=2), FleetSpec({"r1": DEFAULT, "r2": slow}))
    assert of.replicas == pytest.approx(1.25)
    assert of.prefill_s == DEFAULT.prefill_s_per_token


@pytest.mark.parametrize(
    ("slo", "possible"),
    [
        (Slo(ttft=(Objective(0.99, 0.9),)), False),
        (Slo(ttft=(Objective(0.99, 1.1),)), True),
        (Slo(tpot=(Objective(0.99, 1e-10),)), False),
        (Slo(e2e=(Objective(0.99, 0.9),)), False),
        (Slo(e2e=(Objective(0.99, 0.9),), e2e_up_to_tokens=5), True),
    ],
)
def test_request_that_misses_its_objective_alone_is_left_out_of_the_bound(slo: Slo, possible: bool) -> None:
    assert solved([arrival(0.0, 1000)], policy(Tier("default", slo=slo))).goodput == pytest.approx(float(possible))


def test_bound_charges_answers_only_up_to_their_caps() -> None:
    rules = policy(Tier("default", caps=Caps(max_tokens_default=1024)))
    assert job_of(arrival(0.0, 10, 5000), rules).answer == 1024
    assert job_of(arrival(0.0, 10, 5000, max_tokens=7), policy()).answer == 7


# ---- operators' questions


def test_bound_drops_long_prompts_unless_fairness_constrains_it() -> None:
    arrivals = [arrival(0.0, 100) for _ in range(10)] + [arrival(0.0, 2000) for _ in range(10)]
    of = policy(tier(ttft_s=10.0))
    free, bound_to = solved(arrivals, of), solved(arrivals, of, constrained=True)

    def shares(found: Bound) -> tuple[float, float]:
        return sum(found.accepted[:10]) / 10, sum(found.accepted[10:]) / 10

    assert shares(free) == pytest.approx((1.0, 0.45))
    short, long = shares(bound_to)
    mean = (short + long) / 2
    assert short - mean == pytest.approx(0.05)
    assert 1.0 * short + 20.0 * long == pytest.approx(10.0)
    assert bound_to.weighted < free.weighted


def test_bound_respects_priorities_and_gives_the_lowest_tier_its_floor() -> None:
    # The lower tier is worth more per second: without strict tiers it would get everything.
    high, low = tier("a", 0, ttft_s=5.0), tier("b", 1, ttft_s=5.0, weight=3.0)
    arrivals = [arrival(0.0, 1000, tier=name) for name in "ab" for _ in range(5)]
    assert solved(arrivals, policy(high, low)).tiers == pytest.approx({"a": 0.0, "b": 1.0}, abs=1e-4)
    assert solved(arrivals, policy(high, low), constrained=True).tiers == pytest.approx({"a": 0.5, "b": 0.5}, abs=1e-4)
    # And the other way round it would get nothing.
    low = replace(low, weight=0.1, floor=0.2)
    assert solved(arrivals, policy(high, low)).tiers == pytest.approx({"a": 1.0, "b": 0.0}, abs=1e-4)
    assert solved(arrivals, policy(high, low), constrained=True).tiers == pytest.approx({"a": 0.8, "b": 0.2}, abs=1e-4)


def test_floor_in_the_bound_asks_for_at_most_the_offered_load() -> None:
    of = policy(tier("a", 0, ttft_s=50.0), tier("b", 1, ttft_s=50.0, floor=0.5))
    arrivals = [arrival(0.0, 1000, tier="a")] * 9 + [arrival(0.0, 1000, tier="b")]
    assert solved(arrivals, of, constrained=True).goodput == pytest.approx(1.0)


# ---- uses of the bound


def test_replay_set_of_the_bound_keeps_whole_requests_and_rounds_the_rest() -> None:
    arrivals = [arrival(float(n), 100) for n in range(8)]
    shares = (1.0, 0.0, 0.4, 0.4, 0.4, 0.4, 0.4, 1.0)
    found = Bound(0.0, 0.0, 0.0, 0.0, {}, shares)
    assert [a.at for a in replay_set(arrivals, found)] == [0.0, 3.0, 5.0, 7.0]


def made(rate_per_s: float, seconds: float = 60.0) -> Synthetic:
    prompt, answer = LENGTHS["azure-conversation-prompt"], LENGTHS["azure-conversation-answer"]
    shares = (TierTraffic("a", 1, prompt, answer), TierTraffic("b", 3, prompt, answer))
    return Synthetic(rate_per_s, seconds, shares, cv=1.5)


TPOT = policy(
    Tier("a", 0, slo=Slo(ttft=(Objective(0.99, 1.0),), tpot=(Objective(0.99, 0.04),)), weight=4.0),
    Tier("b", 1, slo=Slo(ttft=(Objective(0.99, 4.0),), tpot=(Objective(0.99, 0.08),))),
    replicas=2,
)
TWO = policy(tier("a", 0, ttft_s=1.0, weight=4.0), tier("b", 1, ttft_s=4.0), replicas=2)


@pytest.mark.parametrize("rules", [TWO, TPOT], ids=["ttft", "ttft and tpot"])
@pytest.mark.parametrize("rate_per_s", [15.0, 40.0])
@pytest.mark.parametrize("name", ["least-requests", "static-cap", "static-cap-tiers"])
def test_no_policy_beats_the_bound(name: str, rate_per_s: float, rules: Policy) -> None:
    arrivals = list(made(rate_per_s).arrivals(1))
    free = bound(arrivals, rules, constrained=False)
    setup = baselines.setup(name, rules)
    result = simulate(setup.policy, arrivals, decider=setup.decider(setup.policy, Random(1)))
    assert 0 < result.weighted <= free.ceiling
    assert bound(arrivals, rules).weighted <= free.weighted + 1e-9


def test_requests_that_the_bound_accepts_are_nearly_all_good_when_simulated() -> None:
    arrivals = list(made(25.0).arrivals(1))
    found = bound(arrivals, TWO)
    assert found.weighted < 0.98
    chosen = replay_set(arrivals, found)
    assert len(chosen) == pytest.approx(found.goodput * len(arrivals), abs=5)
    assert simulate(TWO, chosen).weighted > 0.85


@pytest.mark.long
def test_capacity_is_the_rate_at_which_the_bound_begins_to_refuse() -> None:
    # 0.1 s of engine each, on two replicas.
    workload = Synthetic(1.0, 60.0, (TierTraffic("default", 1, Uniform(100, 100), Uniform(1, 1)),))
    of = policy(tier(ttft_s=2.0), replicas=2)
    found = capacity(workload, of, fleet(PREFILL), seeds=(1, 2), precision=0.05)
    assert found == pytest.approx(20.0, rel=0.1)
    accepted = [bound(list(workload.at_rate(found * k).arrivals(1)), of, fleet(PREFILL)).goodput for k in (0.75, 1.3)]
    assert accepted[0] == pytest.approx(1.0)
    assert accepted[1] < 0.9


def test_bound_without_requests_and_capacity_for_impossible_ones_are_errors() -> None:
    with pytest.raises(ValueError, match="no request arrives"):
        bound([], policy())
    workload = Synthetic(1.0, 50.0, (TierTraffic("default", 1, Uniform(100, 100), Uniform(1, 1)),))
    with pytest.raises(ValueError, match="some requests fit on no replica"):
        capacity(workload, policy(tier(ttft_s=0.01)), fleet(PREFILL), seeds=(1,))
    assert math.isfinite(capacity(workload, policy(tier(ttft_s=1.0)), fleet(PREFILL), seeds=(1,), precision=0.2))
