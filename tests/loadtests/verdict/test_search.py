"""The search finds a known knee, also if the verdicts near it are noisy."""

from __future__ import annotations

import math
from functools import partial
from random import Random

import pytest

from loadtests.verdict.promises import Judgement, Promise, Verdict
from loadtests.verdict.search import Found, search
from loadtests.verdict.step import Step, is_on_time

PROMISE = Promise("standard", 0.99)


def made(rate_per_s: float, kept: bool, verdict: Verdict, *, on_time: bool = True) -> Step:
    broken = 1 if verdict is Verdict.UNDECIDED else 25  # near the knee few are missed
    stretches = ((50, 0 if kept else broken),) * 20
    judged = Judgement(PROMISE, verdict, None, 1000, sum(misses for _, misses in stretches), stretches)
    return Step(rate_per_s, 30.0, 1000, [judged], on_time, False)


async def found(knee: float, noise: float = 0.0, seed: int = 1, most_steps: int = 40, up_to: float = 1000.0) -> Found:
    """A search whose verdicts are undecided, and noisy, within `noise` (a share) of the knee."""
    draw, steps = Random(seed), 0

    async def ask(rate: float, _: int) -> Step:
        nonlocal steps
        steps += 1
        if abs(rate / knee - 1.0) <= noise:
            return made(rate, draw.random() < 0.5, Verdict.UNDECIDED)
        return made(rate, rate < knee, Verdict.PASS if rate < knee else Verdict.FAIL)

    return await search(ask, 1.0, up_to, lambda: steps < most_steps)


async def test_search_is_within_five_percent_of_a_known_knee_in_19_of_20_fleets() -> None:
    off = []
    for seed in range(20):
        knee = 10.0 ** Random(seed).uniform(-0.5, 2.5)
        off.append(abs((await found(knee, 0.02, seed)).rate_per_s / knee - 1.0))
    assert sum(one <= 0.05 for one in off) >= 19


async def test_search_needs_few_steps() -> None:
    result = await found(37.0)
    assert len(result.steps) <= 12
    assert result.is_narrow
    assert result.knee.low_per_s <= 37.0 <= result.knee.high_per_s
    assert result.broke == "standard: goodput ≥ 99%"


async def test_search_ends_at_the_highest_allowed_rate() -> None:
    result = await found(500.0, up_to=20.0)
    assert (result.kept_per_s, result.rate_per_s, result.is_narrow) == (20.0, 20.0, False)
    assert math.isinf(result.knee.high_per_s)


async def test_target_that_keeps_nothing_is_asked_lower_rates_and_given_up() -> None:
    result = await found(0.0001)
    assert result.kept_per_s == result.rate_per_s == 0.0
    assert 5 < len(result.steps) < 40


async def test_budget_ends_the_search() -> None:
    assert len((await found(37.0, most_steps=3)).steps) == 3


async def test_few_misses_in_bursts_are_told_with_an_interval_that_holds_the_knee() -> None:
    """A hundredth of some 400 requests a step, which miss together: no single step knows on which side it is."""
    held = 0
    for seed in range(12):
        draw = Random(seed)

        async def ask(rate: float, _: int, draw: Random = draw) -> Step:
            share = min(1.0, 0.01 * (rate / 4.0) ** 4)
            stretches = []
            for _ in range(24):
                requests = max(1, round(draw.gauss(5 * rate, 2)))
                late = draw.random() < 3.0 * share
                stretches.append((requests, sum(late and draw.random() < 1 / 3 for _ in range(requests))))
            requests, misses = (sum(column) for column in zip(*stretches, strict=True))
            judged = Judgement(PROMISE, Verdict.UNDECIDED, None, requests, misses, tuple(stretches))
            return Step(rate, 120.0, requests, [judged], True, False)

        found = await search(ask, 1.0, 1000.0, partial(next, iter([True] * 15), False))
        held += found.knee.low_per_s <= 4.0 <= found.knee.high_per_s
    assert held >= 10


async def test_each_step_has_a_number_of_its_own() -> None:
    numbers = []

    async def ask(rate: float, number: int) -> Step:
        numbers.append(number)
        return made(rate, rate < 3.0, Verdict.PASS if rate < 3.0 else Verdict.FAIL)

    await search(ask, 1.0, 1000.0, lambda: True)
    assert numbers == list(range(len(numbers)))


async def test_late_generator_ends_the_search() -> None:
    async def ask(rate: float, _: int) -> Step:
        return made(rate, True, Verdict.PASS, on_time=rate < 8.0)

    result = await search(ask, 1.0, 1000.0, lambda: True)
    assert [one.rate_per_s for one in result.steps] == [1.0, 2.0, 4.0, 8.0]


@pytest.mark.parametrize("kept", [True, False])
def test_undecided_step_counts_by_its_measured_shares(kept: bool) -> None:
    result = Found()
    result.add(made(5.0, kept, Verdict.UNDECIDED))
    assert (result.kept_per_s == 5.0) is kept
    assert (result.broken_per_s == 5.0) is not kept


def test_generator_is_on_time_if_one_request_of_a_few_is_late() -> None:
    assert [is_on_time(late, sent) for late, sent in ((0, 7), (1, 7), (2, 7), (10, 1000), (11, 1000))] == [
        True,
        True,
        False,
        True,
        False,
    ]
