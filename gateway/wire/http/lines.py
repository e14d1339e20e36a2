"""Header lines: which ones are read, their values, and how our own are written.

Nothing here calls a method of `bytes` for every line: that takes compiled code longer than all the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

COLON: Final = 0x3A
SPACE: Final = 0x20
TAB: Final = 0x09
CR: Final = 0x0D
LF: Final = 0x0A
ZERO: Final = 0x30
NINE: Final = 0x39
MAX_DIGITS: Final = 18


class Names:
    """Names of headers that are looked for. Most lines are told to be others by first letter and length of the name."""

    __slots__ = ("_lengths", "_names")

    def __init__(self, names: Iterable[bytes]) -> None:
        self._lengths: list[list[int]] = [[] for _ in range(256)]
        """Of the names that begin with this letter, each length once."""
        self._names: dict[bytes, bytes] = {}
        """In lower case, by how they are usually written."""
        for name in sorted(names, key=len):  # the first colon of a line ends its name
            for form in (name, name.title()):
                self._names[form] = name
                lengths = self._lengths[form[0]]
                if len(form) not in lengths:
                    lengths.append(len(form))

    def find(self, line: bytes) -> bytes | None:
        """The name of this header in lower case; None if it is not looked for. The line is not empty."""
        end = len(line)
        for length in self._lengths[line[0]]:
            if length < end and line[length] == COLON:
                given = line[:length]
                name = self._names.get(given)
                return self._names.get(given.lower()) if name is None else name
        return None


def trimmed(line: bytes, start: int) -> bytes:
    """The line from `start` on, without blanks around it."""
    end = len(line)
    while start < end and (line[start] == SPACE or line[start] == TAB):
        start += 1
    while start < end and (line[end - 1] == SPACE or line[end - 1] == TAB):
        end -= 1
    return line[start:end]


def number(digits: bytes) -> int:
    """The value of these digits; -1 if they are too many, none, or not digits alone."""
    if not 0 < len(digits) <= MAX_DIGITS:
        return -1
    value = 0
    for digit in digits:
        if not ZERO <= digit <= NINE:
            return -1
        value = 10 * value + digit - ZERO
    return value


def written(value: int) -> bytes:
    """A number in digits."""
    return str(value).encode()


def milliseconds(seconds: float) -> str:
    """`1.50` for .0015 s."""
    hundredths = int(seconds * 100_000.0 + 0.5)
    rest = hundredths % 100
    return f"{hundredths // 100}.{rest}" if rest > 9 else f"{hundredths // 100}.0{rest}"
