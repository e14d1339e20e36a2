"""Durations, rates, shares and sizes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policy.sections import units


@pytest.mark.parametrize(
    ("written", "expected_s"),
    [("250ms", 0.25), ("2s", 2), ("1m30s", 90), ("1.5s", 1.5), ("2h", 7200), ("1h1m1s1ms", 3661.001), ("5m", 300)],
)
def test_duration_is_read_in_seconds(written: str, expected_s: float) -> None:
    assert units.seconds(written) == pytest.approx(expected_s)


@pytest.mark.parametrize(
    "written", ["", "s", "2", "2 s", "-2s", "1s1m", "2S", "1e3s", "٣s", "2s\n", ".5s", "9" * 400 + "s", None, [], True]
)
def test_bad_duration_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        units.seconds(written)


def test_timeout_field_may_be_none_and_other_durations_may_not() -> None:
    assert units.deadline("none") == math.inf
    with pytest.raises(ValueError, match="is not a duration"):
        units.seconds("none")


@pytest.mark.parametrize(
    ("written", "expected"), [("60/min", 60), ("1/s", 60), ("90/h", 1.5), ("40k/min", 40_000), ("1.5M/h", 25_000)]
)
def test_rates_of_a_policy_are_read_per_minute(written: str, expected: float) -> None:
    assert units.per_minute(written) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("60/min", (("min", 60.0),)),
        ("10M/day", (("day", 1e7),)),
        (["40k/min", "1000/month"], (("min", 4e4), ("month", 1000.0))),
    ],
)
def test_limits_are_read_as_rates_and_quotas(written: object, expected: object) -> None:
    assert units.allowances(written) == expected


@pytest.mark.parametrize(
    ("written", "error"),
    [
        ("10M/week", "{value} is not a rate"),
        ("0/day", "{value} lets nothing through"),
        (["60/min", "1/s"], "{value} has two limits per min: write one"),
        (["60/min", "10/year"], "'10/year' is not a rate"),
        (10, "{value} has no unit"),
    ],
)
def test_bad_limit_is_refused_by_its_text(written: object, error: str) -> None:
    with pytest.raises(ValueError, match=re.escape(error)):
        units.allowances(written)


@pytest.mark.parametrize("written", ["60", "60/d", "k/min", "-1/s", "60 / min", None, False])
def test_bad_rate_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match="is not a rate"):
        units.per_minute(written)


@pytest.mark.parametrize(("written", "expected"), [("25%", 0.25), (0.25, 0.25), (0, 0), (1, 1), ("0.5%", 0.005)])
def test_share_is_read_as_a_fraction(written: object, expected: float) -> None:
    assert units.share(written) == pytest.approx(expected)


@pytest.mark.parametrize("written", ["25", "-1%", 1.01, -0.1, math.nan, True, None, "101%"])
def test_bad_share_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match="is not a share"):
        units.share(written)


@pytest.mark.parametrize(
    ("written", "expected"), [("1B", 1), ("64MiB", 64 * 2**20), ("1.5kB", 1500), ("1 GiB", 2**30), ("2MB", 2_000_000)]
)
def test_sizes_of_a_policy_are_read_in_bytes(written: str, expected: int) -> None:
    assert units.byte_count(written) == expected


@pytest.mark.parametrize("reader", [units.seconds, units.per_minute, units.byte_count])
def test_a_number_without_a_unit_is_refused_where_a_policy_needs_one(reader: Callable[[object], float]) -> None:
    with pytest.raises(ValueError, match="has no unit"):
        reader(60)


@pytest.mark.parametrize(
    ("reader", "nothing"), [(units.seconds, "0s"), (units.per_minute, "0/s"), (units.byte_count, "0MiB")]
)
def test_empty_quantity_is_refused(reader: Callable[[object], float], nothing: str) -> None:
    with pytest.raises(ValueError, match="write a"):
        reader(nothing)


@given(st.one_of(st.integers(1, 10**6).map(lambda ms: ms / 1000), st.integers(1, 10**6).map(float), st.just(math.inf)))
def test_written_duration_is_read_back_equal(duration_s: float) -> None:
    assert units.deadline(units.write_seconds(duration_s)) == pytest.approx(duration_s, rel=1e-5)


@given(st.integers(1, 10**11))
def test_a_size_of_a_policy_is_read_back_as_it_was_written(size: int) -> None:
    assert units.byte_count(units.write_size(size)) == size


@given(st.one_of(st.text(), st.integers(), st.floats(), st.booleans(), st.none()))
def test_readers_raise_nothing_but_value_errors(value: object) -> None:
    for reader in (units.seconds, units.deadline, units.per_minute, units.share, units.byte_count):
        try:
            assert reader(value) >= 0
        except ValueError:
            continue
