"""Finds header lines by name, and reads and writes their values.

No method of `bytes` is called per line, because in compiled code that would take longer than everything else.
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
LETTER: Final = 0x1F
"""Mask for the bits that are the same in both cases of a letter."""
MAX_DIGITS: Final = 18


class _Lengths:
    """Names of one length that begin with one letter, in their usual spelling."""

    __slots__ = ("ends", "forms", "length")

    def __init__(self, length: int) -> None:
        self.length = length
        self.forms: list[_Form] = []
        self.ends = 0
        """A bit mask of the last letters of the names."""


class _Form:
    __slots__ = ("name", "written")

    def __init__(self, name: bytes, form: bytes) -> None:
        self.name = name
        self.written = form


class Names:
    """A set of header names. Most lines are ruled out by the first letter and the length of their name."""

    __slots__ = ("_names", "_starts")

    def __init__(self, names: Iterable[bytes]) -> None:
        self._names = {name: name for name in names}
        self._starts: list[list[_Lengths]] = [[] for _ in range(256)]
        """Names by first letter (in either case), the shortest first."""
        for name in sorted(self._names, key=len):  # shortest first, because the first colon of a line ends its name
            for form in (name, name.title()):
                known = self._starts[form[0]]
                if not known or known[-1].length != len(form):
                    known.append(_Lengths(len(form)))
                known[-1].forms.append(_Form(name, form))
                known[-1].ends |= 1 << (name[-1] & LETTER)

    def find(self, line: bytes) -> bytes | None:
        """The name of a header line in lower case; None if it is not in the set. The line must not be empty."""
        end = len(line)
        for names in self._starts[line[0]]:
            length = names.length
            if length < end and line[length] == COLON:
                if not names.ends >> (line[length - 1] & LETTER) & 1:
                    return None
                given = line[:length]
                for form in names.forms:
                    if given == form.written:
                        return form.name
                return self._names.get(given.lower())
        return None


def trimmed(line: bytes, start: int) -> bytes:
    """The part of a line from `start` on, without blanks around it."""
    end = len(line)
    while start < end and (line[start] == SPACE or line[start] == TAB):
        start += 1
    while start < end and (line[end - 1] == SPACE or line[end - 1] == TAB):
        end -= 1
    return line[start:end]


def can_be_token(text: str) -> bool:
    """Whether a header can carry `text` as a bearer token: printable ASCII without spaces."""
    return text.isascii() and text.isprintable() and " " not in text


def number(digits: bytes) -> int:
    """The number that `digits` give; -1 if there are none, too many, or other characters."""
    if not 0 < len(digits) <= MAX_DIGITS:
        return -1
    value = 0
    for digit in digits:
        if not ZERO <= digit <= NINE:
            return -1
        value = 10 * value + digit - ZERO
    return value


def written(value: int) -> bytes:
    """A number as decimal digits."""
    return str(value).encode()


_HUNDREDTHS: Final = [f".{rest:02}" for rest in range(100)]


def milliseconds(seconds: float) -> str:
    """Seconds as text in milliseconds: `1.50` for .0015 s."""
    hundredths = int(seconds * 100_000.0 + 0.5)
    return str(hundredths // 100) + _HUNDREDTHS[hundredths % 100]
