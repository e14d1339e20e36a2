"""Inter-token latencies (ITL). Only a histogram of them is kept, in buckets 2% wide."""

from __future__ import annotations

import math

LOW_S = 1e-5
RATIO = 1.02
BUCKETS = 900
"""The last bucket begins at some 9 minutes."""
_PER_LOG = 1.0 / math.log(RATIO)


class Gaps:
    """`counts[i]` counts gaps from LOW_S * RATIO^i to RATIO times that. The first bucket also counts shorter gaps, the
    last also longer ones.
    """

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS

    def add(self, gap_s: float, count: int = 1) -> None:
        """Count `count` pieces of content that arrived together, `gap_s` after the ones before. Only the first had to
        wait."""
        if gap_s > LOW_S:
            self.counts[min(BUCKETS - 1, int(math.log(gap_s / LOW_S) * _PER_LOG))] += 1
            count -= 1
        self.counts[0] += count


def middle_s(bucket: int) -> float:
    """The value of a bucket: its geometric middle; 0 for the first, which has tokens that arrived together."""
    return LOW_S * RATIO ** (bucket + 0.5) if bucket else 0.0
