"""Reads numbers from outside, and checks their range.

Engines write counts in all forms of JSON: `5`, `5.0`, `5e0`. A number that exceeds 64 bits or is not finite would
overflow in later arithmetic. So it is read as None, and the caller reports it.
"""

from __future__ import annotations

from typing import Final

MAX_COUNT: Final = 2**63 - 1
_USUAL_COUNT: Final = 2**31
"""Compiled code compares smaller numbers much faster than `MAX_COUNT`."""


def count(value: object) -> int | None:
    """`value` as an integer from 0 to `MAX_COUNT`; None if it is no such integer. A boolean is not a number."""
    if type(value) is int:
        return value if 0 <= value < _USUAL_COUNT or 0 <= value <= MAX_COUNT else None
    if type(value) is float and value.is_integer() and 0.0 <= value < MAX_COUNT:
        return int(value)
    return None


def finite(value: object) -> float | None:
    """`value` as a finite float; None if it is not a finite number, or is an integer of more than 64 bits."""
    if type(value) is int:
        return float(value) if -MAX_COUNT <= value <= MAX_COUNT else None
    # Infinity and NaN minus themselves are NaN, not 0.
    return value if type(value) is float and value - value == 0.0 else None
