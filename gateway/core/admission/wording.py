"""Numbers of error texts, rounded so that what the text says of them stays true."""

from __future__ import annotations

from typing import Final

DECIMALS: Final = 2
DIGITS: Final = 3
MAX_ROUNDED: Final = 0.05
"""A limit is shown with so many decimals that rounding changes it by at most this share: .009 is not shown as .01."""
MAX_DECIMALS: Final = 17
"""Any two different floats below 1 differ in so many decimals, or are shown as "more than" the smaller one."""


def probability(p: float, decimals: int = DECIMALS) -> str:
    """A probability (0-1). It is never rounded to 0 or 1: no forecast is certain."""
    least = 10.0**-decimals
    text = f"{p:.{decimals}f}"
    if float(text) >= 1.0:
        return f"more than {1.0 - least:.{decimals}f}"
    return text if float(text) > 0.0 else f"less than {least:.{decimals}f}"


def above_limit(p: float, limit: float) -> tuple[str, str]:
    """A probability and a limit below it, with as many decimals as show the limit, and that it is above."""
    enough = (d for d in range(DECIMALS, MAX_DECIMALS) if abs(round(limit, d) - limit) <= MAX_ROUNDED * limit)
    for decimals in range(next(enough, DECIMALS), MAX_DECIMALS):
        shown, bound = probability(p, decimals), f"{limit:.{decimals}f}"
        number = float(shown.rpartition(" ")[2])
        if not shown.startswith("less") and (number > float(bound) or (number == float(bound) and " " in shown)):
            return shown, bound if float(bound) > 0.0 else f"{limit:g}"
    return repr(p), repr(limit)


def above_bound(time_s: float, bound_s: float) -> tuple[str, str]:
    """A time and a bound below it (seconds), with as many digits as show that it is longer."""
    for digits in range(DIGITS, MAX_DECIMALS):
        shown = f"{time_s:.{digits}g}"
        if float(shown) > bound_s:
            return shown, f"{bound_s:g}" if float(f"{bound_s:g}") < float(shown) else repr(bound_s)
    return repr(time_s), repr(bound_s)
