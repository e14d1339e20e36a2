"""Header lines that let a web page read an answer (CORS, in the Fetch standard)."""

from __future__ import annotations

import re
from typing import Final

MAX_ASKED_BYTES: Final = 1024
PREFLIGHT_AGE_S: Final = 600
"""How long a browser may reuse an answer; with more, a page that is no longer listed would still be admitted."""

_ASKED: Final = re.compile(rb"\r\naccess-control-request-headers:[ \t]*([^\r]*)", re.IGNORECASE)
_LIST_OF_NAMES: Final = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, -]+")
# `*` would leave out authorization.
_USUAL: Final = b"authorization, content-type, x-api-key, anthropic-version"


def cors_lines(origin: bytes) -> bytes:
    """The lines of an answer that a page of this origin may read, its headers too; `*` is every origin."""
    return b"access-control-allow-origin: %b\r\naccess-control-expose-headers: *\r\nvary: origin\r\n" % origin.strip()


def preflight_lines(raw: bytes) -> bytes:
    """More lines of the answer to a preflight request, whose head is `raw`. The headers that it asks for are allowed.

    None of them allows more than any client without a browser can do.
    """
    found = _ASKED.search(raw)
    asked = found[1].strip() if found is not None else b""
    if len(asked) > MAX_ASKED_BYTES or not _LIST_OF_NAMES.fullmatch(asked):
        asked = _USUAL
    return (
        b"access-control-allow-methods: GET, POST\r\naccess-control-allow-headers: %b\r\naccess-control-max-age: %d\r\n"
        % (asked, PREFLIGHT_AGE_S)
    )
