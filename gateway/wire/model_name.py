"""The name of the model in an answer: the one that the client asked for, whatever the engine calls it."""

from __future__ import annotations

import re
from typing import Final

import orjson

_FIELD: Final = rb'"model"\s*:\s*'
_AT_START: Final = re.compile(rb'\s*\{[^\[\]{}]{0,1024}?"model"\s*:\s*("(?:[^"\\]|\\.){0,512}")')


def model_at_start(beginning: bytes) -> bytes:
    """The engine's name for the model, as JSON, in the first fields of an answer; empty if it is not among them.

    vLLM and SGLang write it before whatever is long. A field of anything inside is never taken for it.
    """
    found = _AT_START.match(beginning)
    return b"" if found is None else found[1]


class ModelName:
    """Writes the asked name in place of the engine's. Works on bytes: within a JSON string quotes are escaped."""

    __slots__ = ("_asked", "_new", "_old", "changes")

    def __init__(self, asked: str) -> None:
        self._asked = orjson.dumps(asked)
        self._old = b""
        self._new = b""
        self.changes = False
        """Whether the engine uses another name, so that `apply` changes something."""

    def learn(self, reported: bytes, where: bytes) -> None:
        """The engine's name, as the JSON string that stands in `where`; from now on it is replaced."""
        if reported == self._asked or reported[:1] != b'"':
            return
        found = re.search(_FIELD + re.escape(reported), where)
        if found is not None:
            self._old = found[0]
            self._new = found[0][: -len(reported)] + self._asked
            self.changes = True

    def apply(self, piece: bytes) -> bytes:
        """`piece` with the asked name in it."""
        return piece.replace(self._old, self._new) if self.changes else piece
