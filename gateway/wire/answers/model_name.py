"""Replaces the model name in an answer by the name that the client asked for."""

from __future__ import annotations

import re
from typing import Final

import orjson

OPEN: Final = 0x7B
CLOSE: Final = 0x7D
NEWLINE: Final = 0x0A
_TOKEN: Final = re.compile(rb'"(?:[^"\\\n]++|\\.)*"?|[{}]|\n\r?\n')
"""Matches strings, braces, and ends of events. The count of braces starts again after each event. A string may lack its
end.
"""
_FIELD: Final = rb'"model"\s*:\s*'
_AT_START: Final = re.compile(rb'\s*\{[^\[\]{}]{0,1024}?"model"\s*:\s*("(?:[^"\\]|\\.){0,512}")')


def model_at_start(beginning: bytes) -> bytes:
    """The engine's name for the model, as JSON, from the first fields of an answer; empty if the name is not there.

    vLLM and SGLang write it before any long field. Fields of nested objects are ignored.
    """
    found = _AT_START.match(beginning)
    return b"" if found is None else found[1]


class ModelName:
    """Replaces the engine's model name by the requested one. Works on bytes, and leaves deeper levels of JSON
    unchanged.

    Deeper levels, such as a tool's input or metadata, may have their own `model` field.
    """

    __slots__ = ("_asked", "_depth", "_head", "_new", "_new_head", "_old", "changes")

    def __init__(self, asked: str) -> None:
        self._asked = orjson.dumps(asked)
        self._old = b""
        self._new = b""
        self._depth = 0
        """Depth of the field with the name, in JSON objects."""
        self._head = b""
        """The bytes of an event before the name.

        These bytes are the same in every event of a stream, and occur only once in each.
        """
        self._new_head = b""
        self.changes = False
        """Whether the engine uses another name, so that `apply` changes something."""

    def learn(self, reported: bytes, where: bytes) -> None:
        """Learn the engine's name `reported`, a JSON string found in `where`. From now on, `apply` replaces it."""
        if reported == self._asked or reported[:1] != b'"':
            return
        field = re.compile(_FIELD + re.escape(reported))
        found = field.search(where)
        if found is None:
            return
        before = found.start()
        if where.count(b"{", 0, before) != 1 or where.find(b"}", 0, before) >= 0:
            depth, self._depth = 0, len(where)
            for token in _TOKEN.finditer(where):
                at = token.start()
                depth = _depth_after(where[at], depth)
                match = field.match(where, at) if depth < self._depth else None
                if match is not None:
                    found, self._depth = match, depth
        else:
            self._depth = 1
        self._old = found[0]
        self._new = found[0][: -len(reported)] + self._asked
        if where.startswith(b"data:"):
            self._head = where[: found.end()]
            self._new_head = where[: found.start()] + self._new
        self.changes = True

    def apply(self, piece: bytes) -> bytes:
        """`piece` with the requested name."""
        if not self.changes:
            return piece
        if self._head:
            piece = piece.replace(self._head, self._new_head)
        at = piece.find(self._old)
        if at < 0:
            return piece
        end = at + len(self._old)
        if piece.count(b"{", 0, at) <= self._depth and piece.find(b"}", 0, at) < 0 and piece.find(self._old, end) < 0:
            return b"".join((piece[:at], self._new, piece[end:]))
        return self._apply_at_depth(piece)

    def apply_to_one(self, event: bytes) -> bytes:
        """`event`, which must be exactly one event, with the requested name."""
        if self._head and event.startswith(self._head):
            return self._new_head + event[len(self._head) :]
        return self.apply(event)

    def _apply_at_depth(self, piece: bytes) -> bytes:
        out: list[bytes] = []
        depth = end = 0
        for token in _TOKEN.finditer(piece):
            at = token.start()
            depth = _depth_after(piece[at], depth)
            # `at` must not be inside the previous match: in compiled code, a slice that ends before it begins raises
            # SystemError.
            if at >= end and depth <= self._depth and piece.startswith(self._old, at):
                out += (piece[end:at], self._new)
                end = at + len(self._old)
        return b"".join((*out, piece[end:]))


def _depth_after(first: int, depth: int) -> int:
    """The depth after a token whose first byte is `first`."""
    if first == OPEN:
        return depth + 1
    if first == CLOSE:
        return depth - 1
    return 0 if first == NEWLINE else depth
