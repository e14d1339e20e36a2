"""Acceptance by length of prompt under overload."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.admission.fairness import MEMORY_S, LengthFairness, length_of

from .made import STEADY

SHORT, LONG = 100, 5000


def offered(fairness: LengthFairness, prompt: int, doubtful: bool, share: float, now: float = 0.0) -> bool:
    """Whether a request is admitted: it is not doubtful, or its length is owed."""
    admitted = not doubtful or fairness.is_owed(prompt, share, now)
    fairness.decided(prompt, admitted, now)
    return admitted


@STEADY
@given(st.floats(0.0, 0.9), st.floats(0.05, 0.5), st.floats(0.02, 0.5), st.integers(0, 1000))
def test_always_doubtful_prompt_length_is_admitted_nearly_as_often_as_its_tier(
    refused: float, share: float, long: float, seed: int
) -> None:
    random, fairness = Random(seed), LengthFairness()
    count, admitted = {SHORT: 0, LONG: 0}, {SHORT: 0, LONG: 0}
    for number in range(4000):
        prompt = LONG if random.random() < long else SHORT
        count[prompt] += 1
        doubtful = prompt == LONG or random.random() < refused
        admitted[prompt] += offered(fairness, prompt, doubtful, share, number / 10.0)
    of_tier = sum(admitted.values()) / sum(count.values())
    assert admitted[LONG] / count[LONG] >= of_tier - share - 0.02 - 2.0 / count[LONG]


def test_fairness_admits_few_requests_if_bursts_refuse_all_lengths_alike() -> None:
    random, fairness = Random(1), LengthFairness()
    let_in = refused = 0
    for number in range(10_000):
        prompt = LONG if random.random() < 0.2 else SHORT
        doubtful = number // 50 % 2 == 0
        admitted = offered(fairness, prompt, doubtful, 0.25, number / 10.0)
        let_in += admitted and doubtful
        refused += not admitted
    assert let_in < 0.02 * refused


@pytest.mark.parametrize(("share", "owed"), [(0.25, True), (0.999, False), (1.0, False)])
def test_prompt_length_without_admissions_is_owed_one_unless_fairness_allows_none(share: float, owed: bool) -> None:
    fairness = LengthFairness()
    for _ in range(100):
        fairness.decided(SHORT, True, 0.0)
    for _ in range(10):
        fairness.decided(LONG, False, 0.0)
    assert fairness.is_owed(LONG, share, 0.0) is owed
    assert not fairness.is_owed(SHORT, share, 0.0)


def test_tier_that_refuses_nearly_all_requests_owes_no_prompt_length_an_admission() -> None:
    fairness = LengthFairness()
    for number in range(1000):
        fairness.decided(SHORT, number % 10 == 0, 0.0)
    for _ in range(50):
        fairness.decided(LONG, False, 0.0)
    assert not fairness.is_owed(LONG, 0.25, 0.0)


def test_admission_of_a_request_that_is_lost_is_owed_again() -> None:
    fairness = LengthFairness()
    for _ in range(1000):
        fairness.decided(SHORT, True, 0.0)
    for number in range(10):
        fairness.decided(LONG, number < 8, 0.0)
    assert not fairness.is_owed(LONG, 0.25, 0.0)
    fairness.lost(LONG, 0.0)
    assert fairness.is_owed(LONG, 0.25, 0.0)


def test_fairness_forgets_refusals_within_some_minutes() -> None:
    fairness = LengthFairness()
    for number in range(100):
        fairness.decided(LONG if number % 2 else SHORT, number % 2 == 0, 0.0)
    assert fairness.is_owed(LONG, 0.25, 0.0)
    assert not fairness.is_owed(LONG, 0.25, 5 * MEMORY_S)


def test_a_prompt_is_long_if_it_is_longer_than_the_mean() -> None:
    fairness = LengthFairness()
    assert not fairness.is_long(LONG)
    for prompt in (1000, 2000, 3000):
        fairness.decided(prompt, True, 0.0)
    assert fairness.is_long(2001)
    assert not fairness.is_long(2000)


def test_a_lost_request_does_not_change_which_prompts_are_long() -> None:
    fairness = LengthFairness()
    for prompt in (1000, 2000, 3000):
        fairness.decided(prompt, True, 0.0)
    fairness.lost(1000, MEMORY_S)
    assert fairness.is_long(2001)
    assert not fairness.is_long(1999)


def test_prompt_lengths_within_a_third_of_a_doubling_share_a_class() -> None:
    classes = [length_of(prompt) for prompt in (3649, 3650, 4095, 4096, 4597, 4598)]
    assert classes == [35, 36, 36, 36, 36, 37]
    assert 0 == length_of(0) < length_of(2) < length_of(2 * 10**7) == length_of(10**12)


def test_prompts_cut_at_a_power_of_two_are_owed_admissions_though_some_are_estimated_a_token_shorter() -> None:
    random, fairness = Random(1), LengthFairness()
    admitted, cut = 0, 0
    for number in range(8000):
        kind = random.random()
        likely = SHORT if kind < 0.8 else 2100 if kind < 0.88 else 4096 + random.choice((-1, 1))
        doubtful = likely > 4000 or random.random() < 0.1
        now = number / 10.0
        was = offered(fairness, likely, doubtful, 0.25, now)
        if likely > 4000:
            cut, admitted = cut + 1, admitted + was
    assert admitted / cut >= 0.5, "the tier admits about .8"
