"""What was counted when a request came and was sent is taken back if no engine worked on it."""

from __future__ import annotations

import math

import pytest

from gateway.core.admission.fairness import LengthFairness
from gateway.core.estimators.latency_model import LatencyModel
from gateway.core.estimators.rates import DrainRate, Rate, TurnRate
from gateway.core.estimators.replica_model import HEAD_SHARE, ReplicaModel
from gateway.core.fleet.autoscale import Demand
from gateway.core.fleet.slot import UNREAD
from gateway.core.policy import Retry
from gateway.core.queueing.limits import TenantUse
from gateway.core.results import AttemptOutcome

from .made import policy, pool, tier
from .playbook import Story, play
from .test_prefix_index import prefix

ONCE = policy(pool("p", "r1", slots=8), tier("std", retry=Retry(0.0), floor=0.5))


def begun(prompt: int = 4000) -> tuple[Story, TenantUse]:
    story = play(ONCE).at(1.0).arrives("a", prompt=prompt).sent("a").whatever()
    use = story.controller.state.requests[1].use
    assert use is not None
    return story, use


def rates(story: Story, use: TenantUse) -> dict[str, float]:
    """Everything that counts work that was sent, in the pool, at its replica and of its tenant."""
    (found,) = story.controller.state.fleet
    replica, tier_queue = found.replicas["r1"], found.queue.of_tier(ONCE.tiers["std"])
    return {
        "prompt tokens at the replica": replica.budget.prompt_tokens_per_s(story.now),
        "prompt tokens in the pool": found.prompts.per_s(story.now),
        "unread": float(replica.unprefilled_tokens),
        "growth": replica.budget.growth_tokens,
        "ends": found.ends.per_s(story.now),
        "owed": tier_queue.owed,
        "served": math.exp2(use.served) if use.served > -math.inf else 0.0,
        "demand": float(found.demand.prompt_tokens),
    }


def test_request_that_was_retried_in_another_pool_is_taken_back_where_it_was_charged() -> None:
    tried = policy(pool("p", "r1", slots=8), pool("q", "r2", slots=8), tier("std", retry=Retry(1.0), floor=0.5))
    story = play(tried).arrives("a").finishes("a", AttemptOutcome.UNREACHABLE).whatever()
    queues = [found.queue.of_tier(tried.tiers["std"]) for found in story.controller.state.fleet]
    assert [tier_queue.owed < 0.0 for tier_queue in queues] == [True, False]
    story.finishes("a", AttemptOutcome.UNREACHABLE).whatever()
    assert [tier_queue.owed for tier_queue in queues] == [0.0, 0.0]


@pytest.mark.parametrize("end", sorted(UNREAD))
def test_attempt_that_no_engine_has_read_leaves_no_rate(end: AttemptOutcome) -> None:
    story, use = begun()
    before = rates(story, use)
    assert before["prompt tokens at the replica"] == before["prompt tokens in the pool"] == 800.0
    assert before["owed"] < 0.0 < before["served"]
    story.after(0.5).finishes("a", end, status=400)
    left = rates(story, use)
    assert left.pop("demand") == (0.0 if end is AttemptOutcome.REJECTED else 4000.0)
    assert left == pytest.approx(dict.fromkeys(left, 0.0), abs=1e-6)


@pytest.mark.parametrize("end", [AttemptOutcome.COMPLETE, AttemptOutcome.FAILED, AttemptOutcome.TRUNCATED])
def test_attempt_that_was_read_keeps_its_rates(end: AttemptOutcome) -> None:
    story, use = begun()
    story.first_token("a").after(0.5).finishes("a", end, prompt_tokens=4000, output_tokens=10)
    after = rates(story, use)
    assert after["prompt tokens at the replica"] == pytest.approx(800.0 * math.exp(-0.1))
    assert after["ends"] > 0.0
    assert after["served"] >= 4000.0


def test_attempt_cancelled_before_its_turn_takes_back_the_whole_prompt() -> None:
    story, use = begun()
    story.arrives("b", prompt=2000).sent("b").leaves("b").cancelled("b")
    assert rates(story, use)["prompt tokens at the replica"] == pytest.approx(800.0)


def test_attempt_cancelled_while_its_prompt_is_read_takes_back_the_rest() -> None:
    story, use = begun(prompt=100_000)
    story.after(0.01).leaves("a").cancelled("a")
    token_s = LatencyModel().prompt_token_s()
    assert rates(story, use)["prompt tokens at the replica"] == pytest.approx(0.01 / token_s / 5.0, rel=0.01)


def test_replica_model_tells_what_is_left_of_each_prompt() -> None:
    model = ReplicaModel(LatencyModel(), 0.0)
    for number, tokens in enumerate((1000, 500, 300)):
        model.begin(number, tokens, math.inf, 0.0)
    read = 0.06 / model.costs.prompt_token_s()
    assert [model.left_of(number, 0.06) for number in range(4)] == [pytest.approx(1000 - read), 500, 300, 0.0]
    assert model.left_of(0, 1e3) == pytest.approx(1000 * (1.0 - HEAD_SHARE))
    model.forget(1, 0.06)
    assert model.backlog(0.06) == pytest.approx(1300 - read), "another prompt was being read"
    model.read(0, 0.06)
    assert model.left_of(0, 0.06) == 0.0


def test_prompt_that_counts_as_read_by_now_leaves_nothing() -> None:
    model = ReplicaModel(LatencyModel(), 0.0)
    model.begin(1, 1000, 0.5, 0.0)
    assert (model.left_of(1, 0.4) > 0.0, model.left_of(1, 0.5)) == (True, 0.0)


def test_rate_forgets_an_event_that_is_taken_back_as_if_it_had_never_been() -> None:
    rate, without = Rate(5.0), Rate(5.0)
    for counted in (rate, without):
        counted.add(1.0, 10.0)
        counted.add(3.0, 7.0)
    rate.add(2.0, 100.0)
    rate.take_back(2.0, 4.0, 100.0)
    assert rate.per_s(5.0) == pytest.approx(without.per_s(5.0))
    rate.take_back(1.0, 6.0, 1e6)
    assert rate.per_s(6.0) == 0.0


def test_drain_and_turns_forget_a_request_that_came_to_nothing() -> None:
    drain, turns = DrainRate(), TurnRate()
    turns.began(0.0)
    for second in range(10):
        drain.opened(True, float(second))
        turns.sent(float(second))
    before = drain.per_s(), turns.per_s(9.0)
    drain.opened(True, 9.0)
    turns.sent(9.0)
    drain.take_back(9.0)
    turns.take_back(9.0)
    assert (drain.per_s(), turns.per_s(9.0)) == pytest.approx(before)


def test_request_that_an_engine_refuses_is_no_demand() -> None:
    story, _ = begun()
    (found,) = story.controller.state.fleet
    story.finishes("a", AttemptOutcome.REJECTED, status=400)
    assert (found.demand.requests, found.demand.prompt_tokens) == (0, 0)
    assert found.asked.tiers["std"].rate.per_s(story.now) == 0.0
    assert found.queue.of_tier(ONCE.tiers["std"]).arrivals.per_s(story.now) == 0.0


def test_request_that_busy_engines_refuse_is_demand() -> None:
    story, _ = begun()
    story.finishes("a", AttemptOutcome.BUSY, status=503)
    (found,) = story.controller.state.fleet
    assert (found.demand.requests, found.demand.prompt_tokens) == (1, 4000)


def test_demand_that_is_taken_back_after_a_tick_lowers_the_next_tick() -> None:
    demand = Demand()
    demand.tick(LatencyModel(), 1.0, 8, 0.0)
    demand.arrived(100)
    demand.tick(LatencyModel(), 1.0, 8, 5.0)
    demand.take_back(100)
    demand.tick(LatencyModel(), 1.0, 8, 10.0)
    demand.arrived(300)
    demand.arrived(300)
    assert (demand.requests, demand.prompt_tokens) == (1, 500)


def test_prompt_that_was_never_read_is_in_no_prefix_index() -> None:
    story = play(policy(pool("p", "r1", slots=8, affinity=True), tier("std", retry=Retry(0.0))))
    story.arrives("a", prefix=prefix(1, 2)).sent("a").first_token("a").finishes("a")
    (found,) = story.controller.state.fleet
    cache = found.replicas["r1"].cache
    assert len(cache) == 2
    story.arrives("b", prefix=prefix(1, 2, 3, 4)).sent("b")
    assert len(cache) == 4
    story.finishes("b", AttemptOutcome.REJECTED, status=400)
    assert cache.matched(prefix(1, 2, 3, 4)) == prefix(1, 2).ends[-1]


def test_fairness_of_lengths_leaves_out_what_an_engine_refused() -> None:
    fairness, without = LengthFairness(), LengthFairness()
    for counted in (fairness, without):
        for admitted in (True, True, False):
            counted.decided(1000, admitted, 0.0)
    for _ in range(20):
        fairness.decided(6000, True, 0.0)
        fairness.take_back(6000, 0.0)
    for tokens in (1000, 6000):
        assert fairness.is_owed(tokens, 0.1, 0.0) is without.is_owed(tokens, 0.1, 0.0)
    assert fairness.is_long(1001) is without.is_long(1001)


@pytest.mark.parametrize("rate", [DrainRate(), TurnRate()], ids=["drain", "turns"])
def test_event_that_a_pool_counted_before_a_reload_made_it_anew_is_not_taken_back_from_the_new_one(
    rate: DrainRate | TurnRate,
) -> None:
    rate.take_back(1e6)
    assert (rate.per_s(1.0) if isinstance(rate, DrainRate) else rate.per_s(1e6)) is None
