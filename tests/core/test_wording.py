"""Numbers in error texts do not contradict each other, however they are rounded."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.core.admission.wording import above_bound, above_limit, probability

PROBABILITIES = st.floats(0.0, 1.0)
TIMES = st.floats(1e-6, 1e6)


def value(text: str) -> float:
    """The number in a text."""
    return float(text.rpartition(" ")[2])


@given(p=PROBABILITIES, decimals=st.integers(2, 6))
def test_probability_is_never_rounded_to_0_or_1(p: float, decimals: int) -> None:
    text = probability(p, decimals)
    assert 0.0 < value(text) < 1.0
    if text.startswith("more than"):
        assert p >= value(text)
    elif text.startswith("less than"):
        assert p <= value(text)
    else:
        assert value(text) == pytest.approx(p, abs=0.51 * 10.0**-decimals)


@given(p=PROBABILITIES, limit=PROBABILITIES)
def test_probability_above_a_limit_is_shown_above_it(p: float, limit: float) -> None:
    assume(p > limit)
    shown, bound = above_limit(p, limit)
    assert value(shown) > value(bound) or (shown.startswith("more than") and value(shown) == value(bound))
    assert p >= value(shown) - 0.005
    assert limit == pytest.approx(value(bound), rel=0.051)


@given(p=PROBABILITIES, ulps=st.integers(1, 5))
def test_probability_barely_above_a_limit_is_shown_above_it(p: float, ulps: int) -> None:
    limit = p
    for _ in range(ulps):
        limit = math.nextafter(limit, 0.0)
    assume(0.0 < limit < p)
    shown, bound = above_limit(p, limit)
    assert value(shown) >= value(bound)


@given(time_s=TIMES, bound_s=TIMES)
def test_time_above_a_bound_is_shown_above_it(time_s: float, bound_s: float) -> None:
    assume(time_s > bound_s)
    shown, bound = above_bound(time_s, bound_s)
    assert value(shown) > value(bound)
    assert value(shown) == pytest.approx(time_s, rel=0.01)


@pytest.mark.parametrize(
    ("p", "limit", "texts"),
    [
        (0.62, 0.5, ("0.62", "0.50")),
        (0.5004, 0.5, ("0.5004", "0.5000")),
        (1.0, 0.5, ("more than 0.99", "0.50")),
        (0.9991, 0.99, ("more than 0.99", "0.99")),
        (0.02, 0.01, ("0.02", "0.01")),
        (0.07, 0.9 * (1 - 0.99), ("0.070", "0.009")),
        (0.001, 0.0, ("0.001", "0")),
    ],
)
def test_probability_and_limit_have_as_few_decimals_as_tell_them_apart(
    p: float, limit: float, texts: tuple[str, str]
) -> None:
    assert above_limit(p, limit) == texts


def test_time_and_bound_have_as_few_digits_as_tell_them_apart() -> None:
    assert above_bound(0.41, 0.3) == ("0.41", "0.3")
    assert above_bound(0.30004, 0.3) == ("0.30004", "0.3")
    assert re.fullmatch(r"1\.\d+", above_bound(math.nextafter(1.0, 2.0), 1.0)[0])
