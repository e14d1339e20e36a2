"""Texts that are read in pairs: the work of /rerank and /score for an engine."""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from loadtests.emulator import errors, text

NAMES = (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"))
SEPARATORS = 2
"""Separator tokens of a pair."""


def prompts(path: str, fields: Mapping[str, object]) -> list[tuple[int, bytes]]:
    """(tokens, identity) of every pair. Raises Rejected with vLLM's error."""
    names = (("query", "documents"),) if path.endswith("/rerank") else NAMES
    found = next((pair for pair in names if all(name in fields for name in pair)), None)
    if found is None:
        raise errors.missing(next(name for name in names[0] if name not in fields), len(fields))
    left, right = (_several(name, fields[name]) for name in found)
    if len(left) == 1:
        left *= len(right)
    if len(left) != len(right):
        raise errors.Rejected(400, "Input lengths must be either 1:1, 1:N or N:N")
    return [
        (text.count_content([one, other]) + SEPARATORS, orjson.dumps((one, other)))
        for one, other in zip(left, right, strict=True)
    ]


def _several(name: str, value: object) -> list[object]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value and all(isinstance(one, str | dict) for one in value):
        return value
    raise errors.invalid("string_type", name, "Input should be a valid string", repr(value)[:80])
