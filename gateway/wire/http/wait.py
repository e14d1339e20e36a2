"""Reads how long a replica asks for time: `Retry-After` in seconds or as a date, and `retry-after-ms`."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

from gateway.wire.numbers import finite

MAX_CHARS: Final = 40
"""No date or number is longer."""


def told_wait_s(retry_after: bytes | None, milliseconds: bytes | None, date: bytes) -> float | None:
    """Seconds until a retry makes sense; None if no value can be read.

    Milliseconds are more exact, so they come first (OpenAI's SDKs read them likewise). `date`: the replica's own time,
    from which a date counts, because its clock may be wrong; empty if it tells none.
    """
    wait_s = _number(milliseconds)
    if wait_s is not None:
        return wait_s / 1000.0
    wait_s = _number(retry_after)
    return _until(retry_after, date) if wait_s is None else wait_s


def _number(value: bytes | None) -> float | None:
    """A number from 0 on, perhaps with a point."""
    if value is None or len(value) > MAX_CHARS or not value.replace(b".", b"", 1).isdigit():
        return None
    return finite(float(value))


def _until(value: bytes | None, date: bytes) -> float | None:
    if value is None or max(len(value), len(date)) > MAX_CHARS:
        return None
    try:
        then = parsedate_to_datetime(value.decode("latin-1"))
        now = parsedate_to_datetime(date.decode("latin-1")) if date else datetime.now(UTC)
        return max(0.0, (then - now).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return None  # no date, or one without a zone
