"""Numbers from outside: accepted ones, and that nothing raises."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.numbers import MAX_COUNT, count, finite

ANYTHING = st.integers() | st.integers(-(10**400), 10**400) | st.floats() | st.text() | st.none() | st.booleans()


@pytest.mark.parametrize(("value", "n"), [(0, 0), (5, 5), (5.0, 5), (5e2, 500), (-0.0, 0), (MAX_COUNT, MAX_COUNT)])
def test_whole_number_in_json_is_a_count_however_it_is_written(value: object, n: int) -> None:
    assert (count(value), type(count(value))) == (n, int)


@pytest.mark.parametrize(
    "value", [True, -1, 2.5, math.nan, math.inf, -math.inf, 1e300, MAX_COUNT + 1, 2.0**63, 10**400, "5", None, b"5", []]
)
def test_json_value_that_is_no_count_is_read_as_none(value: object) -> None:
    assert count(value) is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400, True, "1.0", None])
def test_json_value_that_is_no_finite_number_is_read_as_none(value: object) -> None:
    assert finite(value) is None


def test_finite_numbers_of_json_are_read_as_floats() -> None:
    assert [finite(value) for value in (3, -2.5, 1e300)] == [3.0, -2.5, 1e300]


@given(ANYTHING)
def test_count_has_64_bits_and_float_is_finite_for_any_value(value: Any) -> None:
    n, number = count(value), finite(value)
    assert n is None or (0 <= n <= MAX_COUNT and n == value)
    assert number is None or (math.isfinite(number) and number == float(value))
