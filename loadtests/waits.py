"""Quantiles of waits on an event loop, from buckets of gateway.observe.metrics.lag."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gateway.core.estimators.histograms import bucket_of
from gateway.observe.metrics.lag import EDGES


def edge_of(counts: Sequence[float], share: float) -> float:
    """The upper edge of the bucket with the quantile `share`; inf above the last edge."""
    return (*EDGES, math.inf)[bucket_of(counts, share) or 0]


def above(counts: Sequence[float], share: float) -> float:
    """The lower edge of the bucket with the quantile `share`: a lower bound on the wait. 0 for the first bucket."""
    return (0.0, *EDGES)[bucket_of(counts, share) or 0]
