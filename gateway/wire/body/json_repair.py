"""Repairs harmless faults in JSON: a byte order mark, or half of a surrogate pair.

Clients that cut text by UTF-16 units (JavaScript, Java, C#) send halves of pairs. Some clients on Windows send a byte
order mark.
"""

from __future__ import annotations

import re
from typing import Final

MAX_ESCAPES: Final = 500_000
"""A body with more backslashes is not searched for halves. The search takes about a tenth of a second for this many."""
MAX_HALVES: Final = 1000
"""Halves of each kind that are replaced. A client that cuts texts leaves one or two in each; each costs 300 ns."""
MARK: Final = b"\xef\xbb\xbf"
MARK_NAME: Final = "byte_order_mark"
HALVES_NAME: Final = "lone_surrogates"
"""Name of the repair of halves, for the header x-tailgate-changed."""

_LOW: Final = rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_HIGH: Final = rb"\\u[dD][89abAB][0-9a-fA-F]{2}"
_ANY: Final = re.compile(rb"\\u[dD][89a-fA-F]")
# There are two patterns, because each begins with a literal, which is found quickly.
_HIGH_ALONE: Final = re.compile(rb"%b(?!%b)" % (_HIGH, _LOW))
_LOW_ALONE: Final = re.compile(rb"%b(?<!%b%b)" % (_LOW, _HIGH, _LOW))
_REPLACEMENT: Final = rb"\\ufffd"


def without_halves(document: bytes) -> bytes:
    """`document` with U+FFFD in place of lone halves of surrogate pairs; the same object if there is none."""
    # First, escaped backslashes are rewritten as \u005c. After that, every backslash begins an escape.
    plain = document.replace(rb"\\", rb"\u005c")
    plain, highs = _HIGH_ALONE.subn(_REPLACEMENT, plain, MAX_HALVES)
    plain, lows = _LOW_ALONE.subn(_REPLACEMENT, plain, MAX_HALVES)
    return plain if highs or lows else document


def repaired(body: bytes, names: list[str]) -> bytes:
    """The body with its harmless faults repaired. The names of repairs are added to `names`."""
    plain = body.removeprefix(MARK)
    if plain != body:
        names.append(MARK_NAME)
    if _ANY.search(plain) and plain.count(b"\\") <= MAX_ESCAPES:
        whole = without_halves(plain)
        if whole is not plain:
            plain = whole
            names.append(HALVES_NAME)
    return plain
