"""Puts a function's own name, and its namespace, back into an answer of the Responses API.

Codex runs a call only under both: `mcp__disk__list_files` in one piece is an unsupported call to it, whoever joined
the names (openai/codex#23186). In JSON a quote inside a text is escaped, so bytes are enough: what a model wrote
never looks like a field. A name is a function's only in an object whose type says so: a client's metadata, which the
answer repeats, may have the same words.
"""

from __future__ import annotations

import re
from typing import Final

import orjson

from gateway.wire.body.tools import Renamed

_CALL: Final = re.compile(rb'"type"\s*:\s*"function(?:_call)?"')
_SPECIAL: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}]')
_NAME: Final = re.compile(rb'"name"\s*:\s*("(?:[^"\\]|\\.)*")')


def put_back(pieces: list[bytes], renamed: Renamed) -> list[bytes]:
    """The same pieces of an answer, under the names that the client knows."""
    return [_put_back(piece, renamed) if piece.find(b'"name"') >= 0 else piece for piece in pieces]


def _put_back(piece: bytes, renamed: Renamed) -> bytes:
    out: list[bytes] = []
    end = 0
    for match in _NAME.finditer(piece):
        known = renamed.get(_text(match[1]))
        if known is not None and _is_of_call(piece, match.start()):
            named = orjson.dumps({"name": known[1], "namespace": known[0]})
            out += (piece[end : match.start()], named[1:-1])
            end = match.end()
    return b"".join((*out, piece[end:])) if out else piece


def _is_of_call(piece: bytes, at: int) -> bool:
    """Whether the field at `at` stands in an object that is a function or a call of one, as its type says."""
    levels: list[list[bytes]] = [[]]
    """The bytes of each object that is open, without the objects inside it."""
    depth = last = 0
    for token in _SPECIAL.finditer(piece):
        if not depth and token.start() >= at:
            depth = len(levels)
        if token[0] == b"{":
            levels[-1].append(piece[last : token.start()])
            levels.append([])
        elif token[0] == b"}" and len(levels) > 1:
            inner = levels.pop()
            if len(levels) + 1 == depth:
                return _CALL.search(b"".join((*inner, piece[last : token.start()]))) is not None
        else:
            continue
        last = token.end()
    return False


def _text(quoted: bytes) -> str:
    try:
        text = orjson.loads(quoted)
    except orjson.JSONDecodeError:
        return ""
    return text if type(text) is str else ""
