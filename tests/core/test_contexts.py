"""Prompts that no replica has the context for are refused at once; others go to the replicas that have it."""

from __future__ import annotations

import pytest

from gateway.core.commands import Refuse
from gateway.core.estimators.prompt_length import PromptEstimator
from gateway.core.request import Endpoint
from gateway.core.results import AttemptOutcome, Outcome, Reason
from gateway.core.sample import Sample

from .made import policy, pool, tier
from .playbook import Story, dispatch, ended, play, refuse

RULES = policy(pool("p", "r1", "r2", slots=1), tier("std"))
SHORT, LONG = Sample(context_tokens=4096, longest_tokens=4096), Sample(context_tokens=32_768, longest_tokens=32_768)
REFUSED = (refuse(Reason.CONTEXT_LENGTH), ended(Outcome.INVALID, attempts=0))


def told(*samples: Sample) -> Story:
    story = play(RULES)
    for name, sample in zip(("r1", "r2"), samples, strict=False):
        story.observes(name, sample)
    return story


def test_prompt_beyond_the_context_of_every_replica_is_refused_without_a_slot_or_a_queue() -> None:
    story = told(SHORT, SHORT).arrives("a", prompt=6000)
    (command,) = [command for command in story.commands if isinstance(command, Refuse)]
    assert command.detail == "the maximum context length of this model is 4096 tokens, and the prompt has 6000 tokens"
    story.expect(*REFUSED)


def test_prompt_is_sent_if_the_context_of_any_replica_is_unknown_and_goes_there() -> None:
    told(SHORT).arrives("a", prompt=6000, max_tokens=None).expect(dispatch("r2"))


@pytest.mark.parametrize(
    "how",
    [{"prompt": 4096}, {"prompt": 6000, "truncates": True}, {"prompt": 6000, "endpoint": Endpoint.EMBEDDINGS}],
    ids=["fits", "is cut by the engine", "has no answer"],
)
def test_engine_decides_on_a_prompt_that_it_may_take(how: dict[str, object]) -> None:
    told(SHORT, SHORT).arrives("a", **how).expect(dispatch("r1"))


def test_replica_whose_models_differ_in_context_decides_by_itself() -> None:
    several = Sample(context_tokens=4096, longest_tokens=None)
    told(several, several).arrives("a", prompt=6000).expect(dispatch("r1"))


def refusals(story: Story, prompt_bytes: int, tokens: int, count: int) -> Story:
    """The engine refuses this many prompts, and says how many tokens they have."""
    for _ in range(count):
        name = f"refused {len(story.ids)}"
        story.arrives(name, prompt=None, prompt_bytes=prompt_bytes).sent(name)
        story.finishes(name, AttemptOutcome.REJECTED, status=400, prompt_tokens=tokens, context_tokens=4096)
    return story.whatever()


def test_estimated_prompt_is_refused_only_if_it_is_certainly_too_long() -> None:
    story = told(SHORT, SHORT).arrives("a", prompt=None, prompt_bytes=40_000).expect(dispatch("r1"))
    refusals(story, 40_000, 10_000, 3)
    story.arrives("b", prompt=None, prompt_bytes=40_000).expect(*REFUSED)
    story.arrives("c", prompt=None, prompt_bytes=60_000).expect(*REFUSED)
    story.arrives("d", prompt=None, prompt_bytes=20_000).expect(dispatch("r2"))  # no prompt of this length was counted


def test_at_least_keeps_half_of_the_prior_deviation_however_alike_prompts_are() -> None:
    prompts = PromptEstimator()
    assert prompts.at_least("m", 10_000) == 0
    for _ in range(10_000):
        prompts.learn("m", 10_000, 2500)
    assert 0.5 * 2500 < prompts.at_least("m", 10_000) < 0.55 * 2500
    assert prompts.at_least("m", 40_000) == 0


def test_at_least_falls_with_the_spread_of_prompts() -> None:
    alike, unlike = PromptEstimator(), PromptEstimator()
    for i in range(1000):
        alike.learn("m", 10_000, 2500)
        unlike.learn("m", 10_000, (1000, 6250)[i % 2])
    assert unlike.at_least("m", 10_000) < 0.2 * alike.at_least("m", 10_000)


def test_context_is_learned_from_refusals_where_no_list_tells() -> None:
    story = play(RULES)
    for name, replica in (("a", "r1"), ("b", "r2")):
        story.arrives(name, prompt=6000).expect(dispatch(replica)).sent(name)
    for name in ("a", "b"):
        story.finishes(name, AttemptOutcome.REJECTED, status=400, context_tokens=4096).whatever()
    story.arrives("c", prompt=6000).expect(*REFUSED)
    story.arrives("d", prompt=3000).expect(dispatch("r1"))


def test_list_of_models_is_believed_rather_than_refusals() -> None:
    story = refusals(told(LONG, LONG), 40_000, 10_000, 2)
    story.arrives("a", prompt=10_000).expect(dispatch("r1"))


def test_longer_answer_refutes_the_context_that_a_list_or_a_refusal_told() -> None:
    story = told(SHORT, SHORT).arrives("a", prompt=None, prompt_bytes=20_000).sent("a").first_token("a")
    story.finishes("a", prompt_tokens=5000, output_tokens=10).whatever()
    story.arrives("b", prompt=6000, max_tokens=None).expect(dispatch("r1")).sent("b")
    story.finishes("b", AttemptOutcome.REJECTED, status=400, context_tokens=10).whatever()
    story.arrives("c", prompt=6000, max_tokens=None).expect(dispatch("r1"))


def test_replica_that_comes_back_may_have_another_context() -> None:
    story = refusals(play(policy(pool("p", "r1"))), 40_000, 10_000, 1)
    story.arrives("a", prompt=6000).expect(*REFUSED)
    story.fails("r1").recovers("r1").whatever()
    story.arrives("b", prompt=6000).expect(dispatch("r1"))


def test_long_prompt_goes_to_the_replica_with_the_longer_context_and_waits_for_it() -> None:
    story = told(SHORT, LONG).arrives("a", prompt=6000).expect(dispatch("r2"))
    story.arrives("b", prompt=6000).expect()
    story.arrives("c", prompt=1000).expect(dispatch("r1"))
    story.sent("a").first_token("a").finishes("a").whatever()
    assert story.attempts["b"], "it got the free slot of r2"


def test_answer_counts_in_the_context_that_a_request_needs() -> None:
    told(SHORT, LONG).arrives("a", prompt=3000, max_tokens=2000).expect(dispatch("r2"))
    told(LONG, SHORT).arrives("a", prompt=3000, max_tokens=1000).expect(dispatch("r1"))


def test_prompt_that_may_fit_nowhere_goes_to_the_longest_context() -> None:
    told(SHORT, LONG).arrives("a", prompt=None, prompt_bytes=100_000).expect(dispatch("r2"))


def test_long_prompt_is_not_retried_where_the_context_is_too_short() -> None:
    story = told(SHORT, LONG).arrives("a", prompt=6000).expect(dispatch("r2"))
    story.finishes("a", AttemptOutcome.UNREACHABLE)
    story.expect(refuse(Reason.UPSTREAM_UNREACHABLE), ended(Outcome.ERROR))
