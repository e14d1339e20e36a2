"""The arithmetic of rounds: ratios paired round by round, and the order of targets."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median over rounds of ours / theirs, both from the same round, so that drift of the machine cancels out."""
    return median(a / b for a, b in zip(ours, theirs, strict=True))


def rotated(names: Sequence[str], turn: int) -> list[str]:
    """The order of a round: each target comes first in turn, so that no position favours one."""
    shift = turn % len(names)
    return [*names[shift:], *names[:shift]]
