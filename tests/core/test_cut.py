"""Answers that the gateway ends: when that may be, and what becomes of them in the books."""

from __future__ import annotations

from gateway.core.model import Outcome, Why

from .made import policy, pool, tier
from .playbook import Story, cancel, commit, cut, ended, play

RULES = policy(pool("p", "r1", "r2"), tier("std"))


def streaming(**how: object) -> Story:
    return play(RULES).arrives("a", **how).sent("a").at(1.0).first_token("a").whatever()


# ---- that go round in circles


def test_an_answer_that_repeats_itself_is_cut() -> None:
    story = streaming().at(5.0).progress("a", 50).repeats("a").expect(cut(Why.REPETITION, prompt_tokens=100), cancel())
    story.cancelled("a").expect(
        ended(Outcome.CUT, why=Why.REPETITION, good=False, output_tokens=50, tokens_exact=False, ttft_s=1.0, e2e_s=5.0)
    )
    assert story.replica("r1").in_flight == 0


def test_it_is_cut_once() -> None:
    streaming().repeats("a").whatever().repeats("a").expect()


def test_nothing_is_cut_for_a_client_that_has_left() -> None:
    streaming().leaves("a").whatever().repeats("a").expect()


def test_nothing_is_cut_of_which_the_client_has_nothing() -> None:
    play(RULES).arrives("a").sent("a").whatever().repeats("a").expect()


def test_what_another_attempt_says_does_not_cut_the_one_that_is_shown() -> None:
    story = play(RULES).arrives("a").sent("a").hedges("a", "r2").sent("a").whatever()
    story.first_token("a", attempt=2).expect(commit(attempt=2), cancel(attempt=1))
    story.repeats("a", attempt=1).expect()
