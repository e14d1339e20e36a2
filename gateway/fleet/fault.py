"""The reason why a replica could not be read: an enum, and the value that carries it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class ReadFault(StrEnum):
    """The kind of fault of a reading, from connect to parse. A metric label."""

    UNREACHABLE = "unreachable"
    """No connection."""
    TIMEOUT = "timeout"
    """No complete answer in time."""
    BROKEN = "broken"
    """The connection broke, or the bytes were not HTTP."""
    STATUS = "status"
    """The answer was not a 2xx. Redirects are not followed: the operator gave the address."""
    TOO_LARGE = "too-large"
    """The body is too large for such a page."""
    ENCODED = "encoded"
    """A compressed body although none was requested; its decoded size has no bound."""
    GARBAGE = "garbage"
    """The body has another form, or states something impossible."""
    EMPTY = "empty"
    """The page is well-formed, but has none of the wanted values."""


@dataclass(frozen=True, slots=True)
class Failed:
    """One failed reading. `detail` is our own text: it never quotes headers, keys or bodies."""

    fault: ReadFault
    detail: str
    status: int = field(default=0, compare=False)
    """HTTP status of the answer; 0 if there was none."""

    def __str__(self) -> str:
        return f"{self.fault}: {self.detail}"
