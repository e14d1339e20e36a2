"""Requests are sent, wait or are refused by scripted forecasts."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gateway.core.commands import Refuse
from gateway.core.policy import AdmissionMode, AdmissionSpec, Tier, Value
from gateway.core.pool_spec import Timeouts
from gateway.core.results import Outcome, Reason
from gateway.core.sample import Sample
from gateway.core.slo import Objective, Slo
from tests.interpreted import interpreted

from .made import a_request, policy, pool, tier
from .oracle import ENFORCE, SLO, STRICT, Oracle, degrading, late, story_of
from .playbook import Story, commit, dispatch, ended, play, refuse

pytestmark = interpreted

# ---- at the door


def test_predicted_miss_is_refused_though_a_slot_is_free() -> None:
    story, _ = story_of(pool("p", "r1"), STRICT, breach={"p": 0.51})
    story.arrives("a").expect(
        refuse(Reason.PREDICTED), ended(Outcome.REFUSED, why=Reason.PREDICTED, breach=0.51, attempts=0)
    )


def test_probable_success_is_sent_or_queued() -> None:
    story, oracle = story_of(pool("p", "r1"), STRICT, breach={"p": 0.5})
    story.arrives("a").expect(dispatch("r1"))
    story.arrives("b").expect()
    assert oracle.asked == [("p", "r1"), ("p", None)]


def test_predicted_breach_refusal_has_the_forecast_and_retry_after() -> None:
    story, _ = story_of(pool("p", "r1"), STRICT, breach={"p": 0.87})
    story.arrives("a")
    (said,) = (command for command in story.commands if isinstance(command, Refuse))
    assert (
        "an objective, most likely the time to first token, is missed with a probability of 0.87, above 0.50"
        in said.detail
    )
    assert "0.87, above 0.50" in said.detail
    assert story.retry_after_s() == pytest.approx(1.0)


def test_request_goes_to_a_replica_where_it_is_in_time_before_it_is_shed() -> None:
    replicas = ("r1", "r2", "r3", "r4", "r5", "r6")
    story, oracle = story_of(pool("p", *replicas, slots=9), STRICT, breach={"p": 1.0, "r3": 0.2})
    story.arrives("a").expect(dispatch("r3"))
    assert story.records == {}
    oracle.breach["r3"], oracle.breach["r6"] = 1.0, 0.2
    oracle.asked.clear()
    story.arrives("b").expect(refuse(Reason.PREDICTED), ended(Outcome.REFUSED))
    assert len(oracle.asked) == 4, "the next in line are asked, not the whole fleet"


def test_untrusted_forecast_refuses_no_request() -> None:
    story, oracle = story_of(pool("p", "r1", queue_limit=1), STRICT, breach={"p": 1.0})
    oracle.trusted = False
    story.arrives("a").expect(dispatch("r1"))
    story.arrives("b").expect()
    story.arrives("c").expect(refuse(Reason.QUEUE_FULL), ended(Outcome.REFUSED))


def test_tier_without_objectives_or_with_admission_off_is_not_forecast() -> None:
    off = tier("off", slo=SLO, admission=AdmissionSpec(AdmissionMode.OFF))
    story, oracle = story_of(pool("p", "r1", slots=9), off, tier("plain", admission=ENFORCE), breach={"p": 1.0})
    story.arrives("a", tier="off").expect(dispatch("r1"))
    story.arrives("b", tier="plain").expect(dispatch("r1"))
    assert oracle.asked == []


# ---- shadow, exploration


def test_request_that_shadow_mode_would_shed_is_sent_and_counted() -> None:
    shadow = tier("std", slo=SLO, admission=AdmissionSpec(AdmissionMode.SHADOW))
    story, _ = story_of(pool("p", "r1"), shadow, breach={"p": 0.9})
    story.arrives("a").expect(dispatch("r1"))
    story.sent("a").at(0.5).first_token("a").finishes("a", output_tokens=5)
    assert (story.records["a"].would_shed, story.records["a"].breach, story.records["a"].good) == (True, 0.9, True)


def explorers(share: float) -> Tier:
    return tier("std", slo=SLO, admission=AdmissionSpec(AdmissionMode.ENFORCE, 0.5, share))


def test_exploration_admits_a_share_of_the_doubtful_requests() -> None:
    story, oracle = story_of(
        pool("p", "r1", slots=9), explorers(0.01), breach={"p": 0.0}, draws=(0.5, 0.5, 0.009, 0.5, 0.01)
    )
    story.arrives("good").expect(dispatch("r1"))
    oracle.breach["p"] = 0.9
    story.arrives("a").expect(dispatch("r1"))
    story.arrives("b").expect(refuse(Reason.PREDICTED), ended(Outcome.REFUSED))
    story.sent("a").first_token("a").finishes("a")
    assert story.records["a"].explored
    assert not story.records["b"].explored


def test_tier_without_admissions_for_a_second_gets_a_probe_admitted() -> None:
    story, oracle = story_of(pool("p", "r1", slots=9), explorers(1e-9), breach={"p": 0.9})
    story.arrives("probe").expect(dispatch("r1"))
    story.after(0.9).arrives("a").expect(refuse(Reason.PREDICTED), ended(Outcome.REFUSED))
    story.after(0.1).arrives("another").expect(dispatch("r1"))
    assert oracle.trusted


def test_rarely_admitted_prompt_length_gets_a_doubtful_request_admitted() -> None:
    story, oracle = story_of(pool("p", "r1", slots=99), STRICT, breach={"p": 0.0})
    for number in range(20):
        story.arrives(f"short {number}", prompt=100).expect(dispatch("r1"))
    oracle.breach["p"] = 0.9
    story.arrives("a", prompt=5000).expect(refuse(Reason.PREDICTED), ended(Outcome.REFUSED))
    story.arrives("b", prompt=5500).expect(dispatch("r1"))
    story.arrives("short", prompt=100).expect(refuse(Reason.PREDICTED), ended(Outcome.REFUSED))
    story.sent("b").first_token("b").finishes("b")
    assert not story.records["b"].explored


@pytest.mark.parametrize(("value", "refused"), [(Value.REQUEST, 2), (Value.TOKENS, 0)])
def test_long_prompts_are_admitted_as_often_as_others_if_the_tier_values_tokens(value: Value, refused: int) -> None:
    of = tier("std", slo=SLO, admission=ENFORCE, value=value, fairness=0.6)
    story, oracle = story_of(pool("p", "r1", slots=99), of, breach={"p": 0.0}, draws=(0.5,))
    for number in range(20):
        story.arrives(f"short {number}", prompt=100).expect(dispatch("r1"))
    oracle.breach["p"] = 0.9
    for number in range(refused):
        story.arrives(f"long {number}", prompt=5000).expect(refuse(Reason.PREDICTED), ended(Outcome.REFUSED))
    story.arrives("long", prompt=5000).expect(dispatch("r1"))


def test_tier_with_fairness_100_percent_admits_no_doubtful_long_prompt() -> None:
    unfair = tier("std", slo=SLO, admission=ENFORCE, fairness=1.0)
    story, oracle = story_of(pool("p", "r1", slots=99), unfair, breach={"p": 0.0}, draws=(0.5,))
    for number in range(20):
        story.arrives(f"short {number}", prompt=100).expect(dispatch("r1"))
    oracle.breach["p"] = 0.9
    for number in range(20):
        story.arrives(f"long {number}", prompt=5000).expect(refuse(Reason.PREDICTED), ended(Outcome.REFUSED))


# ---- once its turn has come


def test_queued_request_that_would_be_late_is_not_sent() -> None:
    story, oracle = story_of(pool("p", "r1"), STRICT)
    late(story)
    oracle.breach["p"] = 0.6
    story.finishes("running").expect(
        commit(), ended(Outcome.OK), refuse(Reason.PREDICTED, of="a"), ended(Outcome.REFUSED, of="a", attempts=0)
    )


def test_queued_request_is_not_forecast_again_while_there_is_time() -> None:
    story, oracle = story_of(pool("p", "r1"), tier("std", slo=Slo(ttft=(Objective(0.99, 9.0),)), admission=ENFORCE))
    story.arrives("running").arrives("a").whatever()
    oracle.breach["p"] = 1.0
    story.at(1.0).finishes("running").expect(commit(), ended(Outcome.OK), dispatch("r1", of="a"))


@pytest.mark.parametrize(("ttft_s", "sent"), [(0.99, True), (1.01, False)])
def test_expected_ttft_decides_a_late_request_even_with_untrusted_forecasts(ttft_s: float, sent: bool) -> None:
    story, oracle = story_of(pool("p", "r1"), STRICT)
    oracle.trusted = False
    late(story)
    oracle.breach["p"], oracle.ttft_s = (1.0 if sent else 0.0), ttft_s
    told = [command.detail for command in story.finishes("running").commands if isinstance(command, Refuse)]
    assert ("a" not in story.records) is sent
    assert told == (
        [] if sent else ["The replicas are busy. This request's turn came too late for a first token within 1 s."]
    )


@pytest.mark.parametrize("trusted", [True, False])
def test_request_is_not_sent_after_its_wait_bound_even_with_untrusted_forecasts(trusted: bool) -> None:
    story, oracle = story_of(pool("p", "r1"), STRICT)
    oracle.trusted = trusted
    story.arrives("running").arrives("a").whatever()
    story.at(1.0).expect(refuse(Reason.PREDICTED, of="a"), ended(Outcome.REFUSED, of="a", queue_s=1.0))
    story.finishes("running").expect(commit(), ended(Outcome.OK))


@pytest.mark.parametrize("trusted", [True, False])
def test_slot_freed_between_wait_bound_and_alarm_is_not_given_to_the_late_request(trusted: bool) -> None:
    """With a late event loop the slot's release is told first."""
    story, oracle = story_of(pool("p", "r1"), STRICT)
    oracle.trusted = trusted
    story.arrives("running").arrives("a").at(0.5).arrives("b").whatever()
    story.now = 1.005
    story.finishes("running").expect(
        commit(of="running"),
        ended(Outcome.OK, of="running"),
        refuse(Reason.PREDICTED, of="a"),
        ended(Outcome.REFUSED, of="a", attempts=0),
        dispatch("r1", of="b"),
    )


def test_slot_freed_after_the_longest_wait_is_not_given_to_the_late_request() -> None:
    story = play(policy(pool("p", "r1"), tier("std", timeouts=Timeouts(queue_s=0.5))))
    story.arrives("running").arrives("a").whatever()
    story.now = 0.501
    story.finishes("running").expect(
        commit(), ended(Outcome.OK), refuse(Reason.QUEUE_TIMEOUT, of="a"), ended(Outcome.TIMEOUT, of="a", attempts=0)
    )


def test_late_request_of_a_dead_pool_is_refused() -> None:
    story, _ = story_of(pool("p", "r1"), pool("q", "r2"), STRICT, breach={"p": 0.0, "q": 0.0})
    story.arrives("running").arrives("a").whatever()
    story.now = 1.005
    story.drains("r1").expect(refuse(Reason.PREDICTED, of="a"), ended(Outcome.REFUSED, of="a", attempts=0))


def test_late_request_of_a_pool_removed_by_reload_is_refused() -> None:
    story, _ = story_of(pool("p", "r1"), pool("q", "r2"), STRICT, breach={"p": 0.0, "q": 0.0})
    story.arrives("running").arrives("a").whatever()
    story.now = 1.005
    story.configured(policy(pool("q", "r2"), STRICT)).expect(
        refuse(Reason.PREDICTED, of="a"), ended(Outcome.REFUSED, of="a", attempts=0)
    )


def test_wait_bound_of_a_tier_in_shadow_ends_no_wait() -> None:
    patient = Timeouts(queue_s=5.0)
    story, _ = story_of(
        pool("p", "r1"), tier("std", slo=SLO, admission=AdmissionSpec(AdmissionMode.SHADOW), timeouts=patient)
    )
    story.arrives("running").arrives("a").whatever().at(4.9).expect()
    story.at(5.0).expect(refuse(Reason.QUEUE_TIMEOUT, of="a"), ended(Outcome.TIMEOUT, of="a"))


# ---- spilling


def spilling(breach_long: float, *, slots: int = 4, spill: tuple[str, ...] = ("p",)) -> tuple[Story, Oracle]:
    short = pool("p", "r1", max_prompt_tokens=500)
    long = pool("long", "l1", slots=slots, spill_from=spill)
    return story_of(short, long, STRICT, breach={"p": 0.9, "long": breach_long})


def test_request_to_be_shed_spills_to_a_pool_with_spare_slots() -> None:
    story, _ = spilling(0.04)
    story.arrives("a").expect(dispatch("l1"))
    assert story.pool("long").in_flight == 1
    story.sent("a").first_token("a").finishes("a")
    assert story.records["a"].pool == "long"


def test_request_spilled_to_another_pool_is_no_probe_of_the_shedding_pool() -> None:
    short = pool("p", "r1", max_prompt_tokens=500)
    long = pool("long", "l1", slots=9, spill_from=("p",))
    story, oracle = story_of(short, long, explorers(1e-9), breach={"p": 0.0, "long": 0.0})
    story.arrives("good").expect(dispatch("r1"))
    oracle.breach["p"] = 0.9
    story.at(0.5).arrives("spilled").expect(dispatch("l1"))
    oracle.breach["long"] = 0.9
    story.at(1.0).arrives("probe", prompt=10).expect()
    story.finishes("good").expect(commit(), ended(Outcome.OK), dispatch("r1", of="probe"))
    story.finishes("probe").whatever()
    assert story.records["probe"].explored


def test_pool_with_a_doubtful_forecast_takes_no_spilled_request() -> None:
    spilling(0.06)[0].arrives("a").expect(refuse(Reason.PREDICTED), ended(Outcome.REFUSED))


def test_pool_with_few_free_slots_takes_no_spilled_request() -> None:
    story, _ = spilling(0.0)
    for number in range(3):
        story.arrives(f"long{number}", prompt=900).expect(dispatch("l1"))
    story.arrives("a").expect(refuse(Reason.PREDICTED), ended(Outcome.REFUSED))


def test_pool_takes_spilled_requests_only_from_pools_it_names() -> None:
    spilling(0.0, spill=())[0].arrives("a").expect(refuse(Reason.PREDICTED), ended(Outcome.REFUSED))


# ---- shorter answers


def test_answer_is_capped_to_meet_its_objective() -> None:
    story, _ = degrading()
    cap = int(0.8 * (10.0 - 0.5) / 0.1)
    story.arrives("a", max_tokens=500).expect(dispatch("r1", max_tokens=cap, degraded=True))
    story.sent("a").first_token("a").finishes("a", output_tokens=cap)
    assert (story.records["a"].degraded, story.records["a"].good) == (True, False), "we cut it short"


def test_answer_that_ends_before_its_shortened_cap_is_good() -> None:
    story, _ = degrading()
    story.arrives("a", max_tokens=500).whatever().sent("a").first_token("a").finishes("a", output_tokens=20)
    assert story.records["a"].good


def test_answer_is_not_capped_where_the_tier_does_not_allow_it() -> None:
    story, _ = degrading(allowed=False)
    story.arrives("a", max_tokens=500).expect(refuse(Reason.PREDICTED), ended(Outcome.REFUSED))


def test_answer_with_several_choices_is_not_capped() -> None:
    degrading()[0].arrives("a", max_tokens=500, choices=2).expect(refuse(Reason.PREDICTED), ended(Outcome.REFUSED))


def test_answer_within_its_objective_is_not_capped() -> None:
    degrading()[0].arrives("a", max_tokens=90).expect(dispatch("r1", max_tokens=90, degraded=False))


# ---- windows


def test_engine_behind_with_prompts_gets_no_request_until_it_has_read_some() -> None:
    story = play(policy(pool("p", "r1", slots=99), tier("std")))
    for name in ("a", "b", "c"):
        story.arrives(name, prompt=8000)
    story.observes("r1", sample()).whatever()
    story.arrives("d", prompt=10).expect()
    story.sent("a").first_token("a").expect(commit(), dispatch("r1", of="d"))


def test_prompts_of_whole_answers_count_as_read_after_their_expected_time() -> None:
    story = play(policy(pool("p", "r1", slots=99), tier("std"))).observes("r1", sample())
    for name in ("a", "b", "c"):
        story.arrives(name, prompt=8000, stream=False)
    story.whatever().arrives("d", prompt=10).expect()
    story.after(4.0).expect(dispatch("r1", of="d"))
    assert story.pool("p").in_flight == 4, "and none of them has ended"


def test_drain_rate_counts_read_prompts_while_unread_prompts_are_the_bound() -> None:
    story = play(policy(pool("p", "r1", slots=99), tier("std")))
    story.arrives("0", prompt=8000).arrives("1", prompt=8000).arrives("2", prompt=8000)
    story.observes("r1", sample()).whatever()
    for number in range(40):  # four in a second, and none of them ends
        story.arrives(str(number + 3), prompt=8000).after(0.25).sent(str(number)).first_token(str(number)).whatever()
    assert story.pool("p").drain_rate == pytest.approx(4.0, rel=0.05)


def test_drain_rate_does_not_count_ended_requests_while_engines_are_behind() -> None:
    story = play(policy(pool("p", "r1", slots=99), tier("std")))
    for number in range(80):
        story.arrives(str(number), prompt=10)
    story.sent("0").first_token("0").whatever()
    for name in ("a", "b", "c"):
        story.arrives(name, prompt=8000)
    story.observes("r1", sample()).whatever()
    for number in range(60):
        story.after(0.1).finishes(str(number)).whatever()
    assert story.pool("p").drain_rate is None


def test_engine_with_a_nearly_full_kv_cache_gets_no_further_request() -> None:
    story = play(policy(pool("p", "r1", slots=99, kv_headroom=0.2), tier("std")))
    story.arrives("a", prompt=700).sent("a").first_token("a").whatever()
    story.observes("r1", sample(kv_fraction=0.7)).arrives("b", prompt=200).expect(dispatch("r1"))
    story.arrives("c", prompt=1).expect()
    story.sent("b").first_token("b").finishes("b").expect(
        commit(of="b"), ended(Outcome.OK, of="b"), dispatch("r1", of="c")
    )


def test_paused_answers_do_not_raise_the_estimated_kv_cache_size() -> None:
    story = play(policy(pool("p", "r1", slots=99, kv_headroom=0.2), tier("std")))
    for name in "abc":
        story.arrives(name, prompt=1000).sent(name).first_token(name).whatever()
    story.observes("r1", sample(kv_fraction=0.5))
    held = story.controller.state.fleet.pool("p")
    assert held is not None
    known = held.replicas["r1"].kv.capacity_tokens
    for name in "abc":
        story.pauses(name)
    story.observes("r1", sample(kv_fraction=0.0), times=10).whatever()
    assert held.replicas["r1"].kv.capacity_tokens == known


def sample(**facts: Any) -> Sample:
    return Sample(waiting=0, running=1, **facts)


# ---- an objective of its own


def test_request_is_judged_by_its_tightened_objective() -> None:
    story, _ = story_of(pool("p", "r1"), STRICT)
    story.arrives("running").whatever()
    tight = SLO.tightened(0.3, None)
    made = a_request(77, story.controller.policy, 0.0)
    made.slo = tight
    assert story.controller.arrive(made, 0.0) == []
    refusal = story.controller.wake(0.3)[0]
    assert isinstance(refusal, Refuse)
    assert (refusal.request_id, refusal.why) == (77, Reason.PREDICTED)
    assert tight.tpot_bound_s == math.inf


def test_nobody_is_refused_for_a_wait_that_nothing_has_shown_yet() -> None:
    """Before requests of a tier were sent from a queue, how long one waits there is a guess."""
    patient = tier("std", slo=Slo(e2e=(Objective(0.99, 60.0),)), admission=ENFORCE)
    story = play(policy(pool("p", "r1", slots=1, queue_limit=1000), patient))
    for number in range(100):
        name = f"{number}"
        story.arrives(name).sent(name).after(0.25).first_token(name).after(0.25).finishes(name, output_tokens=20)
        story.whatever()
    for number in range(300):
        story.arrives(f"b{number}").whatever()
    assert not any(f"b{number}" in story.records for number in range(300)), "the last would wait for 150 s"
    for number in range(8):
        name = f"b{number}"
        story.sent(name).after(0.25).first_token(name).after(0.25).finishes(name, output_tokens=20).whatever()
    story.arrives("after").whatever()
    assert story.records["after"].why is Reason.PREDICTED
