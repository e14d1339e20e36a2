"""Puts a function's own name, and its namespace, back into an answer of the Responses API.

Codex needs both: a call of the joined name `mcp__disk__list_files` is unsupported there (openai/codex#23186). Bytes are
enough: JSON escapes quotes inside texts, so a model's output never looks like a field. A name counts only in an object
whose type is a function or a call: metadata, which the answer repeats, may have the same words.
"""

from __future__ import annotations

import re
from typing import Final

import orjson

from gateway.wire.body.tools import Renamed

_STRING: Final = rb'"(?:[^"\\]++|\\.)*"?'
"""A string, even an unfinished one, so that no byte is read twice.

No group is possessive: before 3.11.5 Python matches less with those than it should (python/cpython#106052).
"""
_OF_FUNCTION: Final = rb'type"\s*:\s*"function(?:_call)?"'
_OTHER: Final = rb'[^"{}]++|(?!"name"\s*:\s*"|"%b)%b' % (_OF_FUNCTION, _STRING)
# A name, the type of a function, a brace, or the end. Everything before it is skipped by the same match.
_TOKEN: Final = re.compile(rb'(?:%b)*(?:("name"\s*:\s*(%b))|("%b)|([{}])|\Z)' % (_OTHER, _STRING, _OF_FUNCTION), re.S)


def put_back(pieces: list[bytes], renamed: Renamed) -> list[bytes]:
    """The same pieces of an answer, under the names that the client knows."""
    return [_put_back(piece, renamed) if piece.find(b'"name"') >= 0 else piece for piece in pieces]


class _Object:
    """One object that is open."""

    __slots__ = ("is_function", "names")

    def __init__(self) -> None:
        self.is_function = False
        """Whether its type says that it is a function, or a call of one."""
        self.names: list[tuple[int, int, bytes]] = []
        """The place of a name that the client does not know, and the fields to put there."""

    def add(self, token: re.Match[bytes], renamed: Renamed) -> None:
        """Note a name in it, or its type."""
        if token[3] is not None:
            self.is_function = True
            return
        known = renamed.get(_text(token[2]))
        if known is not None:
            fields = orjson.dumps({"name": known[1], "namespace": known[0]})[1:-1]
            self.names.append((token.start(1), token.end(1), fields))


def _put_back(piece: bytes, renamed: Renamed) -> bytes:
    """In one pass: an answer may repeat a thousand tools, and other requests wait for it."""
    found: list[tuple[int, int, bytes]] = []
    objects: list[_Object | None] = [None]
    """The open objects; None before the first such field."""
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
