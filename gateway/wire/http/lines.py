"""Header lines: which of them are wanted, what they say, and how our own are written.

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

    __slots__ = ("_forms", "_names")

    def __init__(self, names: Iterable[bytes]) -> None:
        self._forms: list[list[bytes]] = [[] for _ in range(256)]
        """How they are usually written, by first letter."""
        self._names: list[list[bytes]] = [[] for _ in range(256)]
        """The same in lower case."""
        for name in sorted(names):
            for form in (name, name.title()):
                self._forms[form[0]].append(form)
                self._names[form[0]].append(name)

    def find(self, line: bytes) -> bytes | None:
        """The name of this header in lower case; None if it is not looked for. The line is not empty."""
        end = len(line)
        forms, names = self._forms[line[0]], self._names[line[0]]
        for index in range(len(forms)):
            length = len(forms[index])
            if length < end and line[length] == COLON:
                given, name = line[:length], names[index]
                if given == forms[index] or given.lower() == name:
                    return name
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
