"""The bounds hold at every look, also where requests of one moment miss together."""

from __future__ import annotations

from random import Random

import pytest

from loadtests.verdict.sequential import MIN_STRETCHES, bounds

PER_STRETCH = 20
STRETCHES = 150
ALLOWED = 0.05


def played(seed: int, share: float, *, bursts: bool) -> list[tuple[int, int]]:
    """Requests and misses of each stretch. In bursts all misses fall into a fifth of the stretches."""
    draw = Random(seed)
    found = []
    for _ in range(STRETCHES):
        own = (5.0 * share if draw.random() < 0.2 else 0.0) if bursts else share
        found.append((PER_STRETCH, sum(draw.random() < own for _ in range(PER_STRETCH))))
    return found


def verdict(stretches: list[tuple[int, int]]) -> str:
    """The first decision, after a look at each stretch."""
    for count in range(1, len(stretches) + 1):
        found = bounds(stretches[:count], ALLOWED, 0.01)
        if found is not None and found.high <= ALLOWED:
            return "pass"
        if found is not None and found.low > ALLOWED:
            return "fail"
    return "undecided"


@pytest.mark.parametrize("bursts", [False, True])
@pytest.mark.parametrize(("share", "wrong"), [(ALLOWED * 1.05, "pass"), (ALLOWED * 0.95, "fail")])
def test_verdict_is_wrong_in_at_most_one_of_a_hundred_tests(bursts: bool, share: float, wrong: str) -> None:
    found = [verdict(played(seed, share, bursts=bursts)) for seed in range(100)]
    assert found.count(wrong) <= 1


@pytest.mark.parametrize(("share", "right"), [(0.0, "pass"), (0.005, "pass"), (0.2, "fail")])
def test_clear_case_is_decided(share: float, right: str) -> None:
    found = [verdict(played(seed, share, bursts=False)) for seed in range(50)]
    assert found.count(right) == 50


def test_too_few_stretches_decide_nothing() -> None:
    assert bounds([(20, 20)] * (MIN_STRETCHES - 1), ALLOWED, 0.01) is None
    assert bounds([(0, 0)] * 100, ALLOWED, 0.01) is None


def test_bounds_enclose_the_share_and_narrow_with_time() -> None:
    short, long = (bounds(played(3, 0.05, bursts=False)[:count], ALLOWED, 0.01) for count in (20, 150))
    assert short is not None
    assert long is not None
    assert 0.0 <= short.low <= short.share <= short.high <= 1.0
    assert long.high - long.low < short.high - short.low
