"""The output cap of a request that its replica gets."""

import pytest

from gateway.core.policy import Caps, Limits, Policy
from gateway.core.results import AttemptOutcome, Outcome, Reason
from gateway.core.sample import Sample
from gateway.core.slo import Objective, Slo

from .made import policy, pool, tier
from .playbook import dispatch, ended, play, refuse


def capped(default: int, limit: int) -> Policy:
    caps = Caps(max_tokens_default=default, max_tokens_limit=limit)
    return policy(pool("p", "r1", "r2", slots=8), tier("std", caps=caps))


@pytest.mark.parametrize(("asked", "granted"), [(None, 200), (1, 1), (300, 300), (301, 300), (10**9, 300)])
def test_max_tokens_is_the_default_if_unset_and_at_most_the_limit(asked: int | None, granted: int) -> None:
    play(capped(200, 300)).arrives("a", max_tokens=asked).expect(dispatch("r1", max_tokens=granted))


def test_output_limit_caps_the_default_too() -> None:
    play(capped(500, 300)).arrives("a", max_tokens=None).expect(dispatch("r1", max_tokens=300))


@pytest.mark.parametrize(("prompt", "granted"), [(1000, 200), (1900, 100), (1999, 1), (2000, 1), (5000, 1)])
def test_default_max_tokens_is_cut_to_what_the_context_leaves(prompt: int, granted: int) -> None:
    story = play(capped(200, 300)).observes("r1", Sample(context_tokens=2000))
    story.arrives("a", prompt=prompt, max_tokens=None).expect(dispatch("r1", max_tokens=granted))


def test_requested_max_tokens_is_not_lowered_to_the_context_length() -> None:
    story = play(capped(200, 300)).observes("r1", Sample(context_tokens=2000))
    story.arrives("a", prompt=1900, max_tokens=150).expect(dispatch("r1", max_tokens=150))


def test_default_max_tokens_is_cut_by_the_context_of_its_replica_at_each_attempt() -> None:
    story = play(capped(200, 300)).observes("r1", Sample(context_tokens=2000))
    story.observes("r2", Sample(context_tokens=1950))
    story.arrives("a", prompt=1900, max_tokens=None).expect(dispatch("r1", max_tokens=100))
    story.finishes("a", AttemptOutcome.UNREACHABLE).expect(dispatch("r2", max_tokens=50))


def test_default_max_tokens_follows_a_changed_context_length() -> None:
    story = play(capped(200, 300)).observes("r1", Sample(context_tokens=2000)).observes("r1", Sample(waiting=1))
    story.observes("r1", Sample(context_tokens=1950))
    story.arrives("a", prompt=1900, max_tokens=None).expect(dispatch("r1", max_tokens=50))


def test_default_max_tokens_is_cut_by_the_likely_length_of_an_estimated_prompt() -> None:
    # 6,000 bytes are 720 to 2,416 tokens: at the high estimate only an answer of one token would fit.
    story = play(capped(200, 300)).observes("r1", Sample(context_tokens=2000))
    story.arrives("a", prompt=None, prompt_bytes=6000, max_tokens=None).expect(dispatch("r1", max_tokens=200))
    story.arrives("b", prompt=None, prompt_bytes=7000, max_tokens=None).expect(dispatch("r2", max_tokens=172))


def test_each_prompt_of_a_batch_may_use_the_whole_context() -> None:
    story = play(capped(200, 300)).observes("r1", Sample(context_tokens=2000))
    story.arrives("a", prompt=50_000, batch=50, max_tokens=None).expect(dispatch("r1", max_tokens=200))
    story.arrives("b", prompt=95_000, batch=50, max_tokens=None).expect(dispatch("r2", max_tokens=100))


def test_second_attempt_has_the_max_tokens_of_the_first() -> None:
    story = play(capped(200, 300)).observes("r1", Sample(context_tokens=2000))
    story.arrives("a", prompt=1900, max_tokens=None).expect(dispatch("r1", max_tokens=100))
    story.finishes("a", AttemptOutcome.UNREACHABLE).expect(dispatch("r2", max_tokens=100))


def test_tier_without_a_default_sends_no_max_tokens_if_the_client_set_none() -> None:
    story = play(capped(0, 300)).arrives("a", max_tokens=None).expect(dispatch("r1", max_tokens=0)).whatever()
    story.observes("r1", Sample(context_tokens=2000)).arrives("b", max_tokens=None).expect(dispatch("r2", max_tokens=0))
    story.arrives("c", max_tokens=10**9).expect(dispatch("r1", max_tokens=300))


def test_limit_is_the_default_max_tokens_unless_the_context_is_shorter() -> None:
    story = play(capped(300, 300)).observes("r1", Sample(context_tokens=2000))
    story.arrives("a", prompt=1000, max_tokens=None).expect(dispatch("r1", max_tokens=300))
    story.arrives("b", prompt=1800, max_tokens=None).expect(dispatch("r2", max_tokens=0))
    story.arrives("c", prompt=1800, max_tokens=None).expect(dispatch("r1", max_tokens=0))


def test_uncapped_request_reserves_few_tokens_and_is_charged_for_those_used() -> None:
    caps = Caps(max_tokens_default=0, max_tokens_limit=32768)
    limited = tier("std", caps=caps, limits=Limits(tokens_per_min=5000.0))
    story = play(policy(pool("p", "r1", slots=8), limited)).arrives("a", prompt=100, max_tokens=None)
    story.expect(dispatch("r1", max_tokens=0))
    assert story.limits().tokens_left == pytest.approx(5000 - 100 - 1024)
    story.sent("a").first_token("a").finishes("a", prompt_tokens=100, output_tokens=4000).whatever()
    assert story.limits().tokens_left == pytest.approx(5000 - 100 - 4000)
    story.arrives("b", prompt=100, max_tokens=None).expect(refuse(Reason.LIMIT_TOKENS), ended(Outcome.QUOTA))


def test_request_for_no_output_is_charged_for_none_and_answered() -> None:
    rules = policy(
        pool("p", "r1"), tier("std", limits=Limits(tokens_per_min=1000), slo=Slo(e2e=(Objective(0.99, 5.0),)))
    )
    story = play(rules).arrives("a", max_tokens=0, stream=False, prompt=100).expect(dispatch("r1", max_tokens=0))
    story.sent("a").at(1.0).finishes("a", prompt_tokens=100, output_tokens=0).whatever()
    record = story.records["a"]
    assert (record.outcome, record.prompt_tokens, record.output_tokens) == (Outcome.OK, 100, 0)
