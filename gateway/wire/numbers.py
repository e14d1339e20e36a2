"""Numbers that come from outside: each is read here, in the one place that knows which are possible.

Engines write counts in every way that JSON has: `5`, `5.0`, `5e0`. A number outside the range of a 64-bit count, or
one that is not finite, overflows in arithmetic that nobody expects to fail. It is None here, and its reader says so.
"""

from __future__ import annotations

import re
from typing import Final

MAX_COUNT: Final = 2**63 - 1
MAX_DIGITS: Final = 18
"""Every integer of so many digits is a count."""
MAX_WRITTEN: Final = 64
"""Bytes of a number worth reading: longer ones are no count, and take long to convert."""

_NUMBER: Final = re.compile(rb"-?\d+(\.\d+)?([eE][-+]?\d+)?")


def count(value: object) -> int | None:
    """`value` as a whole number from 0 to 2**63 - 1; None if it is not one. A boolean is no number."""
    if type(value) is int:
        return value if 0 <= value <= MAX_COUNT else None
    if type(value) is float and value.is_integer() and 0.0 <= value < MAX_COUNT:
        return int(value)
    return None


def finite(value: object) -> float | None:
    """`value` as a finite float; None if it is not one, or is too large for a float."""
    if type(value) is int:
        return float(value) if -MAX_COUNT <= value <= MAX_COUNT else None
    # The difference of infinity, and of what is no number, to itself is no number.
    return value if type(value) is float and value - value == 0.0 else None


def written_count(raw: bytes) -> int | None:
    """The count that `raw`, one JSON value, states; None if it states none. "-0" states none."""
    if len(raw) <= MAX_DIGITS and raw.isdigit():
        return int(raw)
    if len(raw) > MAX_WRITTEN or _NUMBER.fullmatch(raw) is None:
        return None
    # Integers are not read as floats, which have 53 bits of them.
    return count(int(raw)) if raw.isdigit() else count(float(raw))
