"""With `limits.count: uncached`, only prompt tokens that are not in a prefix cache count against a tenant's limit."""

import pytest

from gateway.core.policy import CountedTokens, Limits, Policy
from gateway.core.results import AttemptOutcome, Outcome, Reason

from .made import policy, pool, tier
from .playbook import Story, ended, play, refuse
from .test_affinity import BLOCK_TOKENS, asks

PROMPT = 4 * BLOCK_TOKENS + 100
MAX_TOKENS = 100


def rules(count: CountedTokens, tokens: int = 10_000) -> Policy:
    limits = Limits(tokens_per_min=tokens, count=count)
    return policy(pool("p", "r1", slots=8), tier("std", limits=limits))


def left(story: Story) -> float:
    """Tokens that the tenant has left."""
    (view,) = story.controller.snapshot(story.now).tenants
    assert view.tokens_left is not None
    return view.tokens_left


def turn(story: Story, name: str, cached: int | None) -> Story:
    asks(story, name, 1, 2, 3, 4).sent(name).first_token(name)
    return story.finishes(name, prompt_tokens=PROMPT, output_tokens=5, cached_tokens=cached).whatever()


@pytest.mark.parametrize(
    ("cached", "charged"),
    [(4 * BLOCK_TOKENS, 105), (3 * BLOCK_TOKENS, 105 + BLOCK_TOKENS), (0, PROMPT + 5), (None, 105)],
)
def test_uncached_limit_deducts_cached_tokens_as_reported_or_else_as_predicted(
    cached: int | None, charged: int
) -> None:
    story = turn(play(rules(CountedTokens.UNCACHED), 0.0), "first", 0)
    assert left(story) == 10_000 - PROMPT - 5
    before = left(story)
    turn(story, "second", cached)
    assert before - left(story) == charged


def test_uncached_limit_reserves_the_prompt_tokens_predicted_to_be_uncached() -> None:
    story = turn(play(rules(CountedTokens.UNCACHED), 0.0), "first", 0)
    before = left(story)
    asks(story, "second", 1, 2, 3, 4).whatever()
    assert before - left(story) == 100 + MAX_TOKENS


def test_conversation_fits_an_uncached_limit_that_its_whole_prompts_would_exceed() -> None:
    for count, outcome in ((CountedTokens.UNCACHED, None), (CountedTokens.ALL, Reason.LIMIT_TOKENS)):
        story = turn(play(rules(count, 3000), 0.0), "first", 0)
        asks(story, "second", 1, 2, 3, 4)
        if outcome is None:
            story.whatever()
            assert len(story.controller.state.attempts) == 1
        else:
            story.expect(refuse(outcome), ended(Outcome.QUOTA))


def test_a_cached_prompt_is_charged_in_full_where_all_tokens_count() -> None:
    story = turn(play(rules(CountedTokens.ALL), 0.0), "first", 0)
    before = left(story)
    turn(story, "second", 4 * BLOCK_TOKENS)
    assert before - left(story) == PROMPT + 5


def test_uncached_limit_returns_all_tokens_of_a_request_that_no_engine_worked_on() -> None:
    story = turn(play(rules(CountedTokens.UNCACHED), 0.0), "first", 0)
    before = left(story)
    asks(story, "second", 1, 2, 3, 4).sent("second").finishes("second", AttemptOutcome.REJECTED, status=400).whatever()
    assert left(story) == before
