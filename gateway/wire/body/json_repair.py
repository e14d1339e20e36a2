"""Repairs JSON that is refused for harmless faults: a byte order mark, half a surrogate.

Clients that cut text by UTF-16 units (JavaScript, Java, C#) send halves; some on Windows send the mark.
"""

from __future__ import annotations

import re
from typing import Any, Final

import orjson

MAX_ESCAPES: Final = 500_000
"""Limit on backslashes in a body that is searched for halves: about a tenth of a second."""
MARK: Final = b"\xef\xbb\xbf"
MARK_NAME: Final = "byte_order_mark"
HALVES_NAME: Final = "lone_surrogates"
"""Names of the repairs in x-tailgate-changed."""

_LOW: Final = rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_HIGH: Final = rb"\\u[dD][89abAB][0-9a-fA-F]{2}"
_ANY: Final = re.compile(rb"\\u[dD][89a-fA-F]")
# Two patterns: each begins with a literal, which is searched quickly.
_HIGH_ALONE: Final = re.compile(rb"%b(?!%b)" % (_HIGH, _LOW))
_LOW_ALONE: Final = re.compile(rb"%b(?<!%b%b)" % (_LOW, _HIGH, _LOW))
_REPLACEMENT: Final = rb"\\ufffd"


def without_halves(document: bytes) -> bytes:
    """JSON with U+FFFD in the place of each half of a surrogate pair; the same object if there is none."""
    # Escaped backslashes are rewritten as \u005c, so that every backslash begins an escape.
    plain = document.replace(rb"\\", rb"\u005c")
    plain, highs = _HIGH_ALONE.subn(_REPLACEMENT, plain)
    plain, lows = _LOW_ALONE.subn(_REPLACEMENT, plain)
    return plain if highs or lows else document


def load_mended(body: bytes, changed: list[str]) -> Any:
    """The document, with its repairs added to `changed`; None if it has another fault."""
    mended = body.removeprefix(MARK)
    names = [] if mended == body else [MARK_NAME]
    if _ANY.search(mended):
        if mended.count(b"\\") > MAX_ESCAPES:
            return None
        whole = without_halves(mended)
        if whole is not mended:
            mended = whole
            names.append(HALVES_NAME)
    if not names:
        return None
    try:
        document = orjson.loads(mended)
    except orjson.JSONDecodeError:
        return None
    changed += names
    return document
