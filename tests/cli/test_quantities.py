"""Times and rates on the command line."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import typer

from gateway.cli.quantities import per_s, seconds


@pytest.mark.parametrize(
    ("text", "value"),
    [("90", 90.0), ("0.5", 0.5), ("1m30s", 90.0), ("250ms", 0.25), ("2h", 7200.0), (" 3s ", 3.0), ("0s", 0.0)],
)
def test_option_value_for_a_time_is_read_in_seconds(text: str, value: float) -> None:
    assert seconds()(text) == pytest.approx(value)


@pytest.mark.parametrize(("text", "value"), [("40", 40.0), ("40/s", 40.0), ("2400/min", 40.0), ("2k/s", 2000.0)])
def test_option_value_for_a_rate_is_read_per_second(text: str, value: float) -> None:
    assert per_s()(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "soon", "3 s", "5/s", "-1s"])
def test_option_value_that_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(
        typer.BadParameter, match="is not a duration: write seconds, such as 90, or a time with its unit"
    ):
        seconds()(text)


@pytest.mark.parametrize("text", ["", "fast", "3s", "5/d"])
def test_option_value_that_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a rate: write a number per second, such as 40, or a rate"):
        per_s()(text)


@pytest.mark.parametrize("text", ["0.05", "50ms", "-3", "0s"])
def test_quantity_below_its_minimum_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match=r"is too small, the minimum is 0\.1"):
        seconds(0.1)(text)


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e400"])
@pytest.mark.parametrize("reads", [seconds(0.1), seconds(), per_s(1e-6)], ids=["seconds", "any seconds", "rate"])
def test_infinite_quantity_is_refused(reads: Callable[[str], float], text: str) -> None:
    with pytest.raises(typer.BadParameter, match=f"{text} is not a finite (duration|rate): write "):
        reads(text)
