"""A table of figures, and its form in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Grid:
    """A table. Cells are text, so that each has its own precision."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def grid_as_markdown(grid: Grid) -> str:
    """A table."""
    head = f"| {' | '.join(grid.columns)} |\n|{'---|' * len(grid.columns)}"
    return "\n".join([head, *(f"| {' | '.join(row)} |" for row in grid.rows)])
