"""Recognises repeated requests by a hash of everything that affects the engine's work."""

from __future__ import annotations

import hashlib
from typing import Final

import orjson

from gateway.wire.body.form import File
from gateway.wire.parsed import Parsed

# Fields that only affect how the answer is delivered.
_DELIVERY: Final = ("stream", "stream_options", "stream_include_usage")


def fingerprint(parsed: Parsed) -> int:
    """A 64-bit hash, the same in every process. Requests for the same work have the same hash.

    The order of fields, white space, and whether the answer is streamed make no difference.
    """
    fields = {name: value for name, value in (parsed.read_fields() | parsed.tied).items() if name not in _DELIVERY}
    asked = (parsed.endpoint.value, parsed.model, parsed.max_tokens)
    # The brackets of the list are written by hand: inside a list, the deepest accepted body would be too deep for
    # orjson.
    written = orjson.dumps(asked)[:-1] + b"," + orjson.dumps(fields, default=_told, option=orjson.OPT_SORT_KEYS) + b"]"
    return int.from_bytes(hashlib.blake2b(written, digest_size=8).digest(), "big")


def _told(value: object) -> str:
    """Returns a hash of a file's content. orjson calls this for values that it cannot write."""
    if not isinstance(value, File):
        raise TypeError(f"there is no way to write a {type(value).__name__}")
    return value.digest()
