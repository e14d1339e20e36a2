"""Waits on an event loop, by bucket of gateway.observe.lag."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gateway.observe.lag import EDGES


def edge_of(counts: Sequence[float], share: float) -> float:
    """The upper edge of the bucket where so large a share of the waits is reached; inf above the last edge."""
    return (*EDGES, math.inf)[_bucket(counts, share)]


def above(counts: Sequence[float], share: float) -> float:
    """The lower edge of that bucket: the wait is longer; 0 where there is none."""
    return (0.0, *EDGES)[_bucket(counts, share)]


def _bucket(counts: Sequence[float], share: float) -> int:
    if not sum(counts):
        return 0
    wanted, reached = share * sum(counts), 0.0
    for bucket, count in enumerate(counts):
        reached += count
        if reached >= wanted:
            return bucket
    return len(counts) - 1
