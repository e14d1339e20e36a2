"""A request that its own model cannot serve in time goes to the fallback of its tier, or is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gateway.core.policy import AdmissionMode, AdmissionSpec, Caps, Limits, Model, Policy
from gateway.core.pool_spec import Timeouts
from gateway.core.request import Endpoint
from gateway.core.results import AttemptOutcome, Outcome, Reason
from gateway.core.sessions import Session
from gateway.core.slo import Objective, Slo
from tests.interpreted import interpreted

from .made import NEVER_TOO_LATE, a_request, policy, pool, tier
from .oracle import ENFORCE, SLO, Oracle
from .playbook import Story, commit, dispatch, ended, play, refuse

pytestmark = interpreted


def rules(
    *, tier_pools: tuple[str, ...] | None = None, queue_limit: int = 256, small_queue: int = 256, **more: Any
) -> Policy:
    """A big model of one slot, a small one of one slot, and a tier that falls back from one to the other."""
    return policy(
        pool("large", "r1", queue_limit=queue_limit),
        pool("small", "s1", queue_limit=small_queue),
        tier("std", **{"slo": SLO, "admission": ENFORCE, "fallback": "small", "pools": tier_pools, **more}),
        models=(Model("m", ("large",)), Model("small", ("small",))),
    )


def told(made: Policy, **breach: float) -> tuple[Story, Oracle]:
    story = play(made, 0.5)
    return story, Oracle(story, **{"large": 0.0, "small": 0.0, **breach})


def test_a_predicted_miss_goes_to_the_fallback_that_would_be_in_time() -> None:
    story, _ = told(rules(), large=0.9)
    story.arrives("a").expect(dispatch("s1", model="small"))
    story.served("a", prompt_tokens=120, output_tokens=7).expect(commit(), ended(Outcome.OK, pool="small"))
    record = story.records["a"]
    assert (record.request.model.name, record.request.fallback_of) == ("small", "m")


def test_record_names_no_fallback_if_the_models_own_pool_serves() -> None:
    story, oracle = told(rules())
    story.arrives("a").expect(dispatch("r1", model=""))
    assert oracle.asked == [("large", "r1")]


def test_request_that_both_models_refuse_gets_the_reason_of_its_own_model() -> None:
    story, _ = told(rules(), large=0.8, small=0.9)
    story.arrives("a").expect(
        refuse(Reason.PREDICTED), ended(Outcome.REFUSED, why=Reason.PREDICTED, pool="large", attempts=0)
    )
    assert story.records["a"].request.fallback_of == ""


def test_a_full_queue_sends_the_newcomer_to_the_fallback() -> None:
    story, _ = told(rules(queue_limit=0))
    story.arrives("a").arrives("b").expect(dispatch("r1", of="a"), dispatch("s1", of="b", model="small"))


def test_a_request_waits_for_the_fallback_where_its_own_pool_has_no_queue() -> None:
    story, _ = told(rules(queue_limit=0))
    story.arrives("a").arrives("b").arrives("c").whatever().sent("b").first_token("b").whatever()
    story.finishes("b").expect(ended(Outcome.OK, of="b"), dispatch("s1", of="c", model="small"))


def test_fallback_serves_if_no_replica_of_the_requested_model_is_up() -> None:
    story, _ = told(rules())
    story.fails("r1").arrives("a").expect(dispatch("s1", model="small"))


def test_a_request_is_refused_where_neither_model_has_a_replica() -> None:
    story, _ = told(rules())
    story.fails("r1").fails("s1").arrives("a").expect(refuse(Reason.NO_REPLICAS), ended(Outcome.REFUSED))
    assert story.records["a"].request.model.name == "m"


def test_queue_timeout_sends_the_request_to_a_free_fallback() -> None:
    patient = Timeouts(2.0, NEVER_TOO_LATE.ttft_s, NEVER_TOO_LATE.idle_s, NEVER_TOO_LATE.total_s)
    story, _ = told(rules(timeouts=patient, slo=replace(SLO, ttft=())))
    story.arrives("a").arrives("b").whatever().at(2.0).expect(dispatch("s1", of="b", model="small"))


def test_queue_timeout_refuses_the_request_if_the_fallback_has_no_slot() -> None:
    patient = Timeouts(2.0, NEVER_TOO_LATE.ttft_s, NEVER_TOO_LATE.idle_s, NEVER_TOO_LATE.total_s)
    story, _ = told(rules(timeouts=patient, slo=replace(SLO, ttft=())))
    story.arrives("a").arrives("taker", model="small").arrives("b").whatever()
    detail = "It waited for 2 s: no replica became free within its timeout."
    story.at(2.0).expect(refuse(Reason.QUEUE_TIMEOUT, of="b", detail=detail), ended(Outcome.TIMEOUT, of="b"))


def test_a_request_whose_total_time_is_over_is_not_sent_to_the_fallback() -> None:
    brief = replace(NEVER_TOO_LATE, queue_s=2.0, total_s=2.0)
    story, _ = told(rules(slo=Slo(), timeouts=brief))
    story.arrives("a").arrives("b").whatever()
    story.at(2.0).whatever()
    assert story.records["b"].why is Reason.QUEUE_TIMEOUT
    assert story.records["b"].attempts == 0


def test_queued_request_whose_turn_comes_too_late_goes_to_the_fallback() -> None:
    story, oracle = told(rules())
    story.arrives("a").arrives("b").at(0.6).whatever()
    oracle.breach["large"] = 0.9
    story.finishes("a").expect(commit(of="a"), ended(Outcome.OK, of="a"), dispatch("s1", of="b", model="small"))
    assert ("judged", 2, True) in oracle.labels


def test_request_that_fell_back_past_a_queue_takes_back_no_turn_of_that_queue() -> None:
    story, oracle = told(rules())
    story.arrives("a").arrives("b").at(0.6).whatever()
    pool = next(each for each in story.controller.state.fleet if each.spec.name == "small")
    state = story.controller.state.requests[2]
    turns = pool.queue.of_tier(state.request.tier).turns
    turns.began(0.0)
    for _ in range(10):
        turns.sent(story.now)
    oracle.breach["large"] = 0.9
    story.finishes("a").expect(commit(of="a"), ended(Outcome.OK, of="a"), dispatch("s1", of="b", model="small"))
    assert (state.waited, state.took_turn) == (True, False)
    state.took_room = True  # as if another tier had waited for the small model
    before = turns.per_s(5.0)
    story.finishes("b", AttemptOutcome.REJECTED, status=400).whatever()
    assert before is not None
    assert turns.per_s(5.0) == before


def test_request_displaced_from_the_queue_goes_to_the_fallback() -> None:
    made = policy(
        pool("large", "r1", queue_limit=1),
        pool("small", "s1"),
        tier("urgent", 0),
        tier("std", 1, fallback="small", admission=ENFORCE),
        models=(Model("m", ("large",)), Model("small", ("small",))),
    )
    story = play(made, 0.5).arrives("a").arrives("b", tier="std").whatever()
    story.arrives("c").expect(dispatch("s1", of="b", model="small"))


def test_request_for_the_fallback_model_has_no_fallback() -> None:
    story, _ = told(rules(), small=0.9)
    story.arrives("a", model="small").expect(refuse(Reason.PREDICTED), ended(Outcome.REFUSED))


def test_embedding_and_token_id_requests_have_no_fallback() -> None:
    story, _ = told(rules(queue_limit=0))
    story.arrives("a").whatever()
    story.arrives("b", endpoint=Endpoint.EMBEDDINGS).expect(refuse(Reason.QUEUE_FULL), ended(Outcome.REFUSED))
    story.arrives("c", token_ids=True).expect(refuse(Reason.QUEUE_FULL), ended(Outcome.REFUSED))


def test_request_is_refused_if_its_tier_may_not_use_the_pools_of_the_fallback() -> None:
    story, _ = told(rules(tier_pools=("large",)), large=0.9)
    story.arrives("a").expect(refuse(Reason.PREDICTED), ended(Outcome.REFUSED))


def test_request_at_the_fallback_keeps_its_session() -> None:
    story, _ = told(rules(), large=0.9)
    story.arrives("a", session=Session("digest", 7)).served("a").whatever()
    request = story.records["a"].request
    assert (request.fallback_of, request.affinity.session) == ("m", Session("digest", 7))


def test_tenant_limits_charge_the_tokens_used_at_the_fallback() -> None:
    story, _ = told(rules(limits=Limits(tokens_per_min=1000.0)), large=0.9)
    story.arrives("a").served("a", prompt_tokens=40, output_tokens=10).whatever()
    assert story.limits().tokens_left == 1000.0 - 50


def test_failed_attempt_at_the_fallback_is_retried_in_the_pool_of_the_fallback() -> None:
    made = policy(
        pool("large", "r1", queue_limit=0),
        pool("small", "s1", "s2"),
        tier("std", fallback="small"),
        models=(Model("m", ("large",)), Model("small", ("small",))),
    )
    story = play(made, 0.5).arrives("a").arrives("b").whatever()
    first = story.controller.state.requests[story.ids["b"]].replica
    assert first is not None
    story.finishes("b", AttemptOutcome.UNREACHABLE)
    other = {"s1": "s2", "s2": "s1"}[first.spec.name]
    story.expect(dispatch(other, of="b", model="small"))


def test_request_refused_by_both_models_keeps_the_forecast_of_its_own_model() -> None:
    story, _ = told(rules(), large=0.8, small=0.9)
    story.arrives("a").whatever()
    assert story.records["a"].breach == 0.8


# ---- a verdict holds for one pool


IN_TIME = int(0.8 * (10.0 - 0.5) / 0.1)
"""Largest cap that the oracle's forecast allows within the objective of `waits_degraded`."""


def waits_degraded() -> tuple[Story, Oracle]:
    """Request `b` asks for 500 tokens, gets a lower cap, and waits for two seconds at most."""
    brief = replace(NEVER_TOO_LATE, queue_s=2.0)
    caps = Caps(max_tokens_limit=400, degrade=True)
    story, oracle = told(rules(timeouts=brief, caps=caps, slo=Slo(e2e=(Objective(0.99, 10.0),))))
    oracle.e2e = True
    story.arrives("a").arrives("b", max_tokens=500).whatever()
    assert story.controller.state.requests[story.ids["b"]].degraded
    return story, oracle


def test_shortened_cap_does_not_follow_a_request_to_the_fallback() -> None:
    story, oracle = waits_degraded()
    oracle.e2e = False
    story.at(2.0).expect(dispatch("s1", of="b", model="small", max_tokens=400, degraded=False))
    story.sent("b").first_token("b").finishes("b", output_tokens=400)
    assert (story.records["b"].degraded, story.records["b"].good) == (False, True)


def test_request_that_is_late_at_the_fallback_too_gets_a_shortened_cap_there() -> None:
    story, _ = waits_degraded()
    story.at(2.0).expect(dispatch("s1", of="b", model="small", max_tokens=IN_TIME, degraded=True))


def test_a_request_that_the_fallback_refuses_keeps_the_verdict_of_its_own_model() -> None:
    story, oracle = waits_degraded()
    oracle.e2e = False
    oracle.breach["small"] = 0.9
    story.at(2.0).whatever()
    assert (story.records["b"].outcome, story.records["b"].degraded) == (Outcome.TIMEOUT, True)


def test_exploration_of_the_own_model_does_not_count_at_the_fallback() -> None:
    curious = AdmissionSpec(AdmissionMode.ENFORCE, max_breach_probability=0.5, exploration=1.0)
    story, _ = told(rules(queue_limit=0, admission=curious), large=0.9)
    story.arrives("a").expect(dispatch("r1")).arrives("b").expect(dispatch("s1", model="small"))
    story.served("a").served("b")
    assert (story.records["a"].explored, story.records["b"].explored) == (True, False)


def test_shortened_cap_does_not_follow_a_request_to_another_pool() -> None:
    caps = Caps(max_tokens_limit=400, degrade=True)
    patient = tier("std", slo=Slo(e2e=(Objective(0.99, 10.0),)), admission=ENFORCE, caps=caps)
    story = play(policy(pool("large", "r1"), pool("spare", "x1"), patient), 0.5)
    oracle = Oracle(story, large=0.0, spare=0.0)
    oracle.e2e = True
    story.arrives("a").arrives("b", max_tokens=500).sent("a").first_token("a").whatever()
    oracle.e2e = False
    story.fails("r1").expect(dispatch("x1", of="b", max_tokens=400, degraded=False))


def test_copy_for_another_model_differs_only_in_what_belongs_to_the_first_model() -> None:
    made = rules()
    asked = a_request(1, made, 5.0, model="m", adapter="a", session=Session("digest", 7), truncates=True, batch=2)
    other = asked.for_model(made.models["small"])
    assert (other.model.name, other.fallback_of, other.affinity.adapter, other.truncates) == ("small", "m", "", False)
    assert asked == replace(other, model=asked.model, fallback_of="", affinity=asked.affinity, truncates=True)
