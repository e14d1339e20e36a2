"""Answers that the gateway cuts: when it may, and how they are counted."""

from __future__ import annotations

from gateway.core.commands import Cut
from gateway.core.policy import Caps, Policy
from gateway.core.results import Outcome, Reason

from .made import policy, pool, tier
from .playbook import Story, cancel, commit, cut, ended, play

RULES = policy(pool("p", "r1", "r2"), tier("std"))


def streaming(**how: object) -> Story:
    return play(RULES).arrives("a", **how).sent("a").at(1.0).first_token("a").whatever()


# ---- answers that repeat themselves


def test_answer_that_repeats_itself_is_cut() -> None:
    story = (
        streaming().at(5.0).progress("a", 50).repeats("a").expect(cut(Reason.REPETITION, prompt_tokens=100), cancel())
    )
    story.cancelled("a").expect(
        ended(
            Outcome.CUT, why=Reason.REPETITION, good=False, output_tokens=50, tokens_exact=False, ttft_s=1.0, e2e_s=5.0
        )
    )
    assert story.replica("r1").in_flight == 0


def test_repeating_answer_is_cut_only_once() -> None:
    streaming().repeats("a").whatever().repeats("a").expect()


def test_answer_is_not_cut_after_its_client_has_left() -> None:
    streaming().leaves("a").whatever().repeats("a").expect()


def test_answer_is_not_cut_before_the_client_has_any_of_it() -> None:
    play(RULES).arrives("a").sent("a").whatever().repeats("a").expect()


def test_repetition_in_a_losing_attempt_does_not_cut_the_committed_one() -> None:
    story = play(RULES).arrives("a").sent("a").hedges("a", "r2").sent("a").whatever()
    story.first_token("a", attempt=2).expect(commit(attempt=2), cancel(attempt=1))
    story.repeats("a", attempt=1).expect()


# ---- answers of unusual length


WATCHED = policy(pool("p", "r1", slots=2), tier("std", caps=Caps(watch=True)))


def after_many(rules: Policy = WATCHED, n: int = 600) -> Story:
    """This many answers have ended: one in fifty with 80 tokens, the others with 50."""
    story = play(rules)
    for number in range(n):
        name = f"before {number}"
        story.arrives(name).sent(name).after(0.1).first_token(name).after(0.1)
        story.finishes(name, output_tokens=80 if number % 50 == 0 else 50).whatever()
    return story


def begun(story: Story, *names: str) -> Story:
    for name in names:
        story.arrives(name, max_tokens=4000).sent(name).after(0.1).first_token(name).whatever()
    return story


def test_unusually_long_answer_is_cut_while_requests_wait() -> None:
    story = begun(after_many(), "a", "b").arrives("c").whatever()
    story.progress("a", 70).expect().progress("a", 100).expect(cut(Reason.OUTPUT_LENGTH), cancel())
    story.cancelled("a").whatever()
    assert story.records["a"].outcome is Outcome.CUT
    assert story.records["a"].good is False
    assert story.pool("p").queued == 0


def test_unusually_long_answer_is_not_cut_in_an_idle_pool() -> None:
    begun(after_many(), "a").progress("a", 3000).expect()


def test_unusually_long_answer_is_not_cut_where_the_tier_does_not_watch() -> None:
    rules = policy(pool("p", "r1", slots=2), tier("std"))
    begun(after_many(rules), "a", "b").progress("a", 3000).expect()


def test_answer_is_not_cut_before_enough_lengths_are_known() -> None:
    begun(after_many(n=400), "a", "b").progress("a", 3000).expect()


def test_cut_answers_do_not_lower_the_length_that_counts_as_unusual() -> None:
    story = begun(after_many(), "stays")
    cut_at = []
    for number in range(100):
        name = f"a {number}"
        begun(story, name)
        tokens = 60
        while name not in story.records:
            tokens += 1
            story.progress(name, tokens)
            if any(isinstance(command, Cut) for command in story.commands):
                story.cancelled(name)
            story.whatever()
        cut_at.append(tokens)
        for other in range(49):
            short = f"{name} {other}"
            story.arrives(short).sent(short).after(0.1).first_token(short).after(0.1)
            story.finishes(short, output_tokens=50).whatever()
    assert min(cut_at) >= 0.9 * cut_at[0]
