"""Header lines that let a web page read an answer (CORS, in the Fetch standard)."""

from __future__ import annotations

import re
from typing import Final

MAX_ASKED_BYTES: Final = 1024
PREFLIGHT_AGE_S: Final = 600
"""Seconds for which a browser may reuse the answer to a preflight. It is short, so that pages that are no longer listed
lose access soon.
"""

_ASKED: Final = re.compile(rb"\r\naccess-control-request-headers:[ \t]*([^\r]*)", re.IGNORECASE)
_LIST_OF_NAMES: Final = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, -]+")
# Headers that pages may send. They are listed, because `*` does not include authorization.
_USUAL: Final = b"authorization, content-type, x-api-key, anthropic-version"


def cors_lines(origin: bytes) -> bytes:
    """Header lines that let pages of `origin` read an answer and its headers. `*` stands for every origin."""
    return b"access-control-allow-origin: %b\r\naccess-control-expose-headers: *\r\nvary: origin\r\n" % origin.strip()


def preflight_lines(raw: bytes) -> bytes:
    """Further header lines of the answer to a preflight request with the head `raw`. All headers that the preflight
    asks for are allowed.

    Allowing them all is safe: clients without a browser can send any header anyway.
    """
    found = _ASKED.search(raw)
    asked = found[1].strip() if found is not None else b""
    if len(asked) > MAX_ASKED_BYTES or not _LIST_OF_NAMES.fullmatch(asked):
        asked = _USUAL
    return (
        b"access-control-allow-methods: GET, POST\r\naccess-control-allow-headers: %b\r\naccess-control-max-age: %d\r\n"
        % (asked, PREFLIGHT_AGE_S)
    )
