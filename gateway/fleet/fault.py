"""Why a reading from a replica failed: the enum of causes, and the value that a failed reading returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class ReadFault(StrEnum):
    """Kind of failure of a reading, in the order from connecting to parsing. A metric label."""

    UNREACHABLE = "unreachable"
    """No connection could be made."""
    TIMEOUT = "timeout"
    """The answer was not complete in time."""
    BROKEN = "broken"
    """The connection broke, or the bytes were not HTTP."""
    STATUS = "status"
    """The answer was not a 2xx. Redirects are not followed: the operator gave the address."""
    TOO_LARGE = "too-large"
    """The body is larger than the limit for this page."""
    ENCODED = "encoded"
    """The body is compressed, which was not requested. It is not decoded, because its size could be unlimited."""
    GARBAGE = "garbage"
    """The body is malformed, or states something impossible."""
    EMPTY = "empty"
    """The page is well-formed, but has none of the values that are needed."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A failed reading. `detail` is the gateway's own text: it never quotes headers, keys or bodies."""

    fault: ReadFault
    detail: str
    status: int = field(default=0, compare=False)
    """HTTP status of the answer; 0 without an answer."""

    def __str__(self) -> str:
        return f"{self.fault}: {self.detail}"
