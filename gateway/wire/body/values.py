"""Bounds the number of JSON values in a body before it is parsed. A value of two bytes takes up to 100 bytes of memory
when it is parsed.
"""

from __future__ import annotations

from typing import Final

_SLICE_BYTES: Final = 64 * 1024
_SIGNS: Final = b",:[{"
_UNREAD: Final = bytes(set(range(256)) - set(_SIGNS + b'"'))
"""Bytes that neither begin a value nor delimit a string."""


def has_more_values(body: bytes, most: int) -> bool:
    """Whether a JSON document has more than `most` values, names of fields included.

    Every value but the first comes after a comma, a colon or a bracket. So the number of these signs outside of strings
    is an upper bound. The count runs in C, and ends once it is decided.
    """
    if len(body) <= most or sum(map(body.count, (b",", b":", b"[", b"{"))) < most:
        return False  # most bodies end here: a text has few such signs
    count = at = inside = 0
    while at < len(body) and count < most:
        piece = body[at : at + _SLICE_BYTES]
        if (len(piece) - len(piece.rstrip(b"\\"))) & 1 and len(piece) > 1:
            piece = piece[:-1]  # an escape is not cut in two
        at += len(piece)
        if piece.find(b"\\") >= 0:
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        texts = piece.translate(None, _UNREAD).split(b'"')
        count += sum(map(len, texts[inside::2]))
        inside ^= (len(texts) - 1) & 1
    return count >= most
