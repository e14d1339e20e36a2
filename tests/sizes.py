"""Counts what every reader of the gateway pays for: lines, numbers, fields of the policy and metrics."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any

PLAIN = (0, 1, 2, 0.5)
"""Numbers that need no reason."""


def lines(sources: Iterable[str]) -> int:
    """Lines of all files together."""
    return sum(len(source.splitlines()) for source in sources)


def numbers(source: str) -> int:
    """Numbers that are written in a file, also inside expressions, but for `PLAIN` ones."""
    return sum(
        isinstance(node, ast.Constant) and type(node.value) in (int, float) and node.value not in PLAIN
        for node in ast.walk(ast.parse(source))
    )


def fields(schema: dict[str, Any]) -> int:
    """Fields of all sections of a policy, by its JSON schema."""
    sections = [schema, *schema.get("$defs", {}).values()]
    return sum(len(section.get("properties", {})) for section in sections)
