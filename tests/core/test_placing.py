"""The pool of a request: by prompt length, order in the policy, and available replicas."""

import pytest

from gateway.core.policy import Model
from gateway.core.pool_spec import Health
from gateway.core.results import Outcome, Reason

from .made import policy, pool, tier
from .playbook import Story, dispatch, ended, play, refuse

SHORT = pool("short", "s1", slots=8, max_prompt_tokens=1000)
LONG = pool("long", "l1", slots=8, max_prompt_tokens=8000)
RULES = policy(SHORT, LONG)


# ---- by length


@pytest.mark.parametrize(("prompt", "replica"), [(1, "s1"), (1000, "s1"), (1001, "l1"), (8000, "l1")])
def test_prompt_goes_to_the_first_pool_that_takes_its_length(prompt: int, replica: str) -> None:
    play(RULES).arrives("a", prompt=prompt).expect(dispatch(replica))


def test_pool_without_max_prompt_tokens_takes_any_prompt() -> None:
    rules = policy(SHORT, pool("any", "x1"))
    play(rules).arrives("a", prompt=10**6).expect(dispatch("x1"))


def test_estimated_prompt_is_placed_by_its_high_estimate() -> None:
    # Nothing is learned yet: at most .40 tokens per byte and 16 of the template.
    story = play(RULES)
    story.arrives("a", prompt=None, prompt_bytes=2450).expect(dispatch("s1"))
    story.arrives("b", prompt=None, prompt_bytes=2470).expect(dispatch("l1"))


def test_a_prompt_that_is_too_long_for_every_pool_is_refused_at_once() -> None:
    story = play(RULES).arrives("a", prompt=8001)
    story.expect(
        refuse(Reason.CONTEXT_LENGTH, retry_after_s=None),
        ended(Outcome.INVALID, why=Reason.CONTEXT_LENGTH, pool=None, attempts=0),
    )


def test_too_long_prompt_refusal_names_its_length_and_the_limit() -> None:
    exact = "the prompt has 9000 tokens; the longest prompt this model serves is 8000 tokens"
    play(RULES).arrives("a", prompt=9000).expect(refuse(Reason.CONTEXT_LENGTH, detail=exact), ended(Outcome.INVALID))
    estimate = "the prompt has at least 12000 tokens; the longest prompt this model serves is 8000 tokens"
    play(RULES).arrives("a", prompt=None, prompt_bytes=100_000).expect(
        refuse(Reason.CONTEXT_LENGTH, detail=estimate), ended(Outcome.INVALID)
    )


def test_prompt_that_may_fit_goes_to_the_longest_pool() -> None:
    # Between 3,600 and 12,016 tokens, in pools of at most 8,000: the engine decides.
    play(RULES).arrives("a", prompt=None, prompt_bytes=30_000).expect(dispatch("l1"))
    play(RULES).arrives("a", prompt=None, prompt_bytes=66_667).expect(dispatch("l1"))
    play(RULES).arrives("a", prompt=None, prompt_bytes=66_675).expect(
        refuse(Reason.CONTEXT_LENGTH), ended(Outcome.INVALID)
    )


def test_learned_prompt_length_moves_the_placement_bound() -> None:
    story = play(RULES)
    for number in range(3000):
        name = f"a{number}"
        story.arrives(name, prompt=None, prompt_bytes=3000).finishes(name, prompt_tokens=750).whatever()
    story.arrives("b", prompt=None, prompt_bytes=3000).expect(dispatch("s1"))


def test_each_prompt_of_a_batch_has_to_fit_by_itself() -> None:
    story = play(RULES)
    story.arrives("a", prompt=20_000, batch=20).expect(dispatch("s1"))
    story.arrives("b", prompt=20_001, batch=20).expect(dispatch("l1"))
    assert [story.replica(r).unprefilled_tokens for r in ("s1", "l1")] == [20_000, 20_001]
    story.arrives("c", prompt=None, prompt_bytes=24_500, batch=10).expect(dispatch("s1"))
    story.arrives("d", prompt=None, prompt_bytes=24_700, batch=10).expect(dispatch("l1"))
    assert story.replica("s1").unprefilled_tokens == 20_000 + 10 * 996


def test_batch_answer_teaches_the_length_of_each_prompt() -> None:
    story = play(RULES).arrives("a", prompt=None, prompt_bytes=4000, batch=10)
    story.sent("a").finishes("a", prompt_tokens=3000).whatever()
    prompts = story.controller.prompts
    assert prompts.estimate("m", 400)[1] > 200
    assert prompts.estimate("m", 100) == (12, 56), "a length nobody has seen"


# ---- by model and tier


def test_pools_are_tried_in_the_order_of_the_model() -> None:
    models = (Model("m", ("short", "long")), Model("backwards", ("long", "short")))
    story = play(policy(SHORT, LONG, models=models))
    story.arrives("a", model="m").expect(dispatch("s1"))
    story.arrives("b", model="backwards").expect(dispatch("l1"))


def test_tier_uses_only_the_pools_that_it_lists() -> None:
    rules = policy(SHORT, LONG, tier("std"), tier("bound", pools=("long",)))
    play(rules).arrives("a", tier="bound").expect(dispatch("l1"))


def test_a_tier_that_shares_no_pool_with_the_model_may_not_use_it() -> None:
    rules = policy(SHORT, LONG, tier("bound", pools=("short",)), models=(Model("m", ("long",)),))
    play(rules).arrives("a").expect(
        refuse(Reason.FORBIDDEN_MODEL, detail="tier bound may not use model m"),
        ended(Outcome.INVALID, why=Reason.FORBIDDEN_MODEL),
    )


# ---- by what is up


def test_next_pool_of_the_model_serves_while_the_first_is_down() -> None:
    story = play(RULES).fails("s1").arrives("a").expect(dispatch("l1"))
    story.recovers("s1").arrives("b").expect(dispatch("s1"))


def test_request_waits_at_a_busy_pool_instead_of_going_to_the_next() -> None:
    rules = policy(pool("short", "s1", max_prompt_tokens=1000), LONG)
    play(rules).arrives("a").whatever().arrives("b").expect()


def test_a_long_prompt_does_not_fail_over_to_a_short_pool() -> None:
    play(RULES, 0.5).fails("l1").arrives("a", prompt=5000).expect(
        refuse(Reason.NO_REPLICAS, retry_after_s=5.0), ended(Outcome.REFUSED, why=Reason.NO_REPLICAS)
    )


def all_down(*chances: float) -> Story:
    rules = policy(
        pool("short", "s1", "s2", max_prompt_tokens=1000, health=Health(failures=1, open_s=20.0)),
        pool("long", "l1", health=Health(failures=1, open_s=6.0)),
    )
    story = play(rules, *chances).fails("s1", times=1).at(4.0)
    return story.fails("s2", times=1).fails("l1", times=1)


def test_retry_after_with_all_pools_down_is_the_time_of_the_next_probe() -> None:
    story = all_down(0.5).arrives("a")
    assert story.retry_after_s() == pytest.approx(6.0)
    story.expect(refuse(Reason.NO_REPLICAS), ended(Outcome.REFUSED, why=Reason.NO_REPLICAS, replica=None))


def test_retry_after_of_a_down_pool_is_random_and_at_least_a_second() -> None:
    assert all_down(0.0).arrives("a").retry_after_s() == pytest.approx(3.0)
    story = all_down(0.5).at(9.9).arrives("a")
    assert story.retry_after_s() == pytest.approx(1.0)


def test_retry_after_of_a_down_pool_is_capped_near_a_minute() -> None:
    story = play(policy(pool("p", "r1", health=Health(failures=1, open_s=3600.0))), 0.5).fails("r1", times=1)
    assert story.arrives("a").retry_after_s() == pytest.approx(60.0)


def test_pool_without_replicas_counts_as_down() -> None:
    play(policy(pool("p")), 0.5).arrives("a").expect(
        refuse(Reason.NO_REPLICAS, retry_after_s=1.0), ended(Outcome.REFUSED)
    )


def test_prompt_that_surely_fits_nowhere_goes_to_a_longest_pool_that_is_up() -> None:
    twin = pool("twin", "t1", max_prompt_tokens=8000)
    story = play(policy(SHORT, LONG, twin)).fails("l1")
    story.arrives("a", prompt=None, prompt_bytes=30_000).expect(dispatch("t1"))


def test_alive_is_true_while_any_pool_can_serve() -> None:
    story = play(RULES).fails("s1")
    assert story.controller.alive()
    story.fails("l1")
    assert not story.controller.alive()
    story.recovers("l1")
    assert story.controller.alive()


def test_queued_request_of_a_dead_pool_moves_to_a_living_one() -> None:
    rules = policy(pool("short", "s1", slots=1), pool("long", "l1", slots=1))
    story = play(rules).arrives("a").arrives("b").arrives("c").expect(dispatch("s1", of="a"))
    story.first_token("a").whatever().fails("s1", times=2).expect().fails("s1", times=1).expect(dispatch("l1", of="b"))


def test_queued_request_of_a_dead_pool_stays_without_another_pool() -> None:
    rules = policy(pool("only", "s1", slots=1))
    story = play(rules).arrives("a").arrives("b").expect(dispatch("s1", of="a"))
    story.first_token("a").whatever().fails("s1").expect()
