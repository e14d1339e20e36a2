"""Token counts of engines are used if the request and the received bytes allow them. Otherwise an estimate is used."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.policy import Caps, Limits
from gateway.core.request import Endpoint
from gateway.core.results import Outcome

from .made import policy, pool, tier
from .playbook import Story, play

LIE = 10**12
LIMITED = policy(pool("p", "r1", slots=4), tier("std", limits=Limits(tokens_per_min=100_000.0)))
UNCAPPED = policy(pool("p", "r1", slots=4), tier("std", caps=Caps(max_tokens_default=0, max_tokens_limit=1000)))


def served(story: Story, name: str, how: dict[str, Any], **usage: Any) -> Story:
    """Eight tokens of the answer were seen."""
    story.arrives(name, **how).sent(name).first_token(name).progress(name, 8)
    return story.finishes(name, tokens_seen=8, **usage).whatever()


@pytest.mark.parametrize("tokens", [117, 1000, LIE, 2**63 - 1])
def test_usage_above_the_granted_output_is_disbelieved_and_reported_once(tokens: int) -> None:
    story = served(play(LIMITED), "a", {"max_tokens": 100}, output_tokens=tokens, prompt_tokens=100)
    record = story.records["a"]
    assert (record.output_tokens, record.tokens_exact, record.prompt_tokens) == (8, False, 100)
    assert story.controller.disbelieved() == {("p", "r1"): 1}
    assert story.controller.disbelieved() == {}


@pytest.mark.parametrize(("how", "tokens"), [({"max_tokens": 100}, 101), ({"max_tokens": 100, "choices": 4}, 400)])
def test_usage_up_to_the_granted_output_of_all_choices_is_believed(how: dict[str, Any], tokens: int) -> None:
    story = served(play(LIMITED), "a", how, output_tokens=tokens)
    assert (story.records["a"].output_tokens, story.records["a"].tokens_exact) == (tokens, True)
    assert story.controller.disbelieved() == {}


def test_false_token_counts_do_not_use_up_the_limit_of_the_tenant() -> None:
    story = served(play(LIMITED), "a", {"max_tokens": 100}, output_tokens=LIE, prompt_tokens=LIE)
    _, tokens = story.controller.left("acme", "std", story.now)
    assert tokens is not None
    assert tokens[1] > 90_000
    served(story, "b", {"max_tokens": 100}, output_tokens=8)
    assert story.records["b"].outcome is Outcome.OK


def test_uncapped_usage_is_believed_up_to_the_tokens_seen_or_reserved() -> None:
    how = {"policy": UNCAPPED, "max_tokens": None}
    story = play(UNCAPPED)
    for name, tokens, believed in (("a", 1000, True), ("b", 1016, True), ("c", 1017, False), ("d", LIE, False)):
        served(story, name, how, output_tokens=tokens)
        assert story.records[name].tokens_exact is believed, name
    story.arrives("e", **how).sent("e").first_token("e").finishes("e", tokens_seen=500, output_tokens=32_000).whatever()
    assert story.records["e"].tokens_exact


@pytest.mark.parametrize(("tokens", "believed"), [(18_384, True), (18_385, False), (LIE, False)])
def test_prompt_usage_above_two_tokens_per_byte_plus_template_is_disbelieved(tokens: int, believed: bool) -> None:
    how = {"body_bytes": 1000, "prompt_bytes": 400, "prompt": None}
    story = served(play(LIMITED), "a", how, prompt_tokens=tokens, output_tokens=8)
    assert (story.records["a"].prompt_tokens == tokens) is believed
    assert story.controller.disbelieved() == ({} if believed else {("p", "r1"): 1})


def test_usage_of_an_embedding_is_checked_by_its_prompt_alone() -> None:
    story = play(LIMITED).arrives("a", endpoint=Endpoint.EMBEDDINGS, stream=False, batch=3).sent("a")
    story.finishes("a", prompt_tokens=300).whatever()
    assert story.records["a"].prompt_tokens == 300
    assert story.controller.disbelieved() == {}


def test_disbelieved_token_counts_are_not_learned() -> None:
    story, honest = play(LIMITED), play(LIMITED)
    how = {"prompt": None, "prompt_bytes": 400}
    for number in range(20):
        served(story, f"q{number}", how, prompt_tokens=LIE, output_tokens=LIE)
        served(honest, f"q{number}", how)
    assert story.controller.prompts.estimate("m", 400) == honest.controller.prompts.estimate("m", 400)
    views = [played.controller.snapshot(played.now).forecast for played in (story, honest)]
    assert views[0] == views[1]


def test_usage_without_a_prompt_token_is_disbelieved_for_a_prompt_that_is_not_empty() -> None:
    story = served(play(LIMITED), "a", {"prompt": 100}, prompt_tokens=0, output_tokens=8)
    assert story.records["a"].prompt_tokens > 0
    assert story.controller.disbelieved() == {("p", "r1"): 1}
