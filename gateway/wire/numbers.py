"""Numbers from outside: all are read here, where their possible ranges are known.

Engines write counts in every way that JSON has: `5`, `5.0`, `5e0`. A number beyond a 64-bit count, or one that is not
finite, would overflow in later arithmetic. Such a number is None here, and its reader reports it.
"""

from __future__ import annotations

from typing import Final

MAX_COUNT: Final = 2**63 - 1


def count(value: object) -> int | None:
    """`value` as a whole number from 0 to `MAX_COUNT`; None if it is not one. A boolean is no number."""
    if type(value) is int:
        return value if 0 <= value <= MAX_COUNT else None
    if type(value) is float and value.is_integer() and 0.0 <= value < MAX_COUNT:
        return int(value)
    return None


def finite(value: object) -> float | None:
    """`value` as a finite float; None if it is not one, or is an integer of more than 64 bits."""
    if type(value) is int:
        return float(value) if -MAX_COUNT <= value <= MAX_COUNT else None
    # Infinity or NaN minus itself is NaN.
    return value if type(value) is float and value - value == 0.0 else None
