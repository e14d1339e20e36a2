"""Waits on an event loop, by bucket of gateway.observe.lag."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.observe.lag import EDGES


def edge_of(counts: Sequence[float], share: float) -> float:
    """The upper edge of the bucket where so large a share of the waits is reached; inf above the last edge."""
    wanted, reached = share * sum(counts), 0.0
    for edge, count in zip((*EDGES, float("inf")), counts, strict=True):
        reached += count
        if reached >= wanted:
            return edge
    return float("inf")
