"""Replaces joined function names in an answer of the Responses API by the function's own name and its namespace.

Codex needs both names. It does not support a call of the joined name, e.g. `mcp__disk__list_files`
(openai/codex#23186). The replacement works on bytes: JSON escapes quotes inside texts, so a model's output never looks
like a field. A name is replaced only in an object whose type is a function or a call. Metadata may have the same words,
and the answer repeats metadata.
"""

from __future__ import annotations

import re
from typing import Final

import orjson

from gateway.wire.body.tools import Renamed

_STRING: Final = rb'"(?:[^"\\]++|\\.)*"?'
"""Matches a string, even an unfinished one, so that no byte is read twice.

No group is possessive, because Python before 3.11.5 matches too little with possessive groups (python/cpython#106052).
"""
_OF_FUNCTION: Final = rb'type"\s*:\s*"function(?:_call)?"'
_OTHER: Final = rb'[^"{}]++|(?!"name"\s*:\s*"|"%b)%b' % (_OF_FUNCTION, _STRING)
# Matches a name, the type of a function, a brace, or the end, together with everything before it.
_TOKEN: Final = re.compile(rb'(?:%b)*(?:("name"\s*:\s*(%b))|("%b)|([{}])|\Z)' % (_OTHER, _STRING, _OF_FUNCTION), re.S)


def put_back(pieces: list[bytes], renamed: Renamed) -> list[bytes]:
    """The pieces of an answer, with the function names that the client knows."""
    return [_put_back(piece, renamed) if piece.find(b'"name"') >= 0 else piece for piece in pieces]


class _Object:
    """A JSON object whose end has not come yet."""

    __slots__ = ("is_function", "names")

    def __init__(self) -> None:
        self.is_function = False
        """Whether the type of the object says that it is a function or a function call."""
        self.names: list[tuple[int, int, bytes]] = []
        """(start, end, replacement) of each name in the object that the client does not know."""

    def add(self, token: re.Match[bytes], renamed: Renamed) -> None:
        """Record a name in the object, or its type."""
        if token[3] is not None:
            self.is_function = True
            return
        known = renamed.get(_text(token[2]))
        if known is not None:
            fields = orjson.dumps({"name": known[1], "namespace": known[0]})[1:-1]
            self.names.append((token.start(1), token.end(1), fields))


def _put_back(piece: bytes, renamed: Renamed) -> bytes:
    """Replace the names in one pass. An answer may repeat a thousand tools, and other requests wait for this call."""
    found: list[tuple[int, int, bytes]] = []
    objects: list[_Object | None] = [None]
    """The objects that have not ended. None stands for an object without a relevant field so far."""
    for token in _TOKEN.finditer(piece):
        if token[4] == b"{":
            objects.append(None)
        elif token[4] == b"}":
            if len(objects) > 1:
                closed = objects.pop()
                if closed is not None and closed.is_function:
                    found += closed.names
        elif token[1] is not None or token[3] is not None:
            holder = objects[-1]
            if holder is None:
                holder = objects[-1] = _Object()
            holder.add(token, renamed)
    found.sort()
    out: list[bytes] = []
    at = 0
    for start, end, fields in found:
        out += (piece[at:start], fields)
        at = end
    return b"".join((*out, piece[at:])) if out else piece


def _text(quoted: bytes) -> str:
    try:
        text = orjson.loads(quoted)
    except orjson.JSONDecodeError:
        return ""
    return text if type(text) is str else ""
