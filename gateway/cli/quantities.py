"""Reads options that are times or rates: a number, or a number with a unit as in a policy."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Annotated

import typer

from gateway.policy.sections import units


def seconds(least: float | None = None) -> Callable[[str], float]:
    """A parser for `90`, `1m30s` or `250ms`. It raises typer.BadParameter for other texts, and for less than `least`
    seconds.
    """
    return partial(
        _read, _seconds, "duration", "seconds, such as 90, or a time with its unit, such as 250ms or 1m30s", least
    )


def per_s(least: float | None = None) -> Callable[[str], float]:
    """A parser for `40`, `40/s` or `2400/min`. It raises typer.BadParameter for other texts, and for less than `least`
    per second.
    """
    return partial(
        _read, _rate, "rate", "a number per second, such as 40, or a rate with its unit, such as 2400/min", least
    )


def finite(value: float | None) -> float | None:
    """A callback for numbers that refuses nan and infinity, which typer's `min` and `max` do not.

    Raises typer.BadParameter.
    """
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number")
    return value


def _read(with_unit: Callable[[str], float], what: str, such_as: str, least: float | None, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        try:
            value = with_unit(text.strip())
        except ValueError:
            raise typer.BadParameter(f"{text!r} is not a {what}: write {such_as}") from None
    if not math.isfinite(value):
        raise typer.BadParameter(f"{text} is not a finite {what}: write {such_as}")
    if least is not None and value < least:
        raise typer.BadParameter(f"{text} is too small, the minimum is {least:g}: write {such_as}")
    return value


def _seconds(text: str) -> float:
    """Read a duration as in policies. Zero is refused."""
    return 0.0 if re.fullmatch(r"0+(\.0+)?(ms|[smh])", text, re.ASCII) else units.seconds(text)


def _rate(text: str) -> float:
    return units.per_minute(text) / 60.0


RateOption = Annotated[
    float | None,
    typer.Option(
        parser=per_s(1e-6),
        metavar="PER_S",
        show_default=False,
        help="Mean requests per second; steps are multiples of it.",
    ),
]
WarmupOption = Annotated[float, typer.Option(parser=seconds(0.0), metavar="S", help="Uncounted seconds at the start.")]
