"""Quantiles of times of which some were cut short: Kaplan and Meier's estimate over buckets.

A first attempt that lost to its duplicate would have taken longer than it was let; how much longer nobody knows. Left
out, or taken for what was seen of it, it makes the tail look shorter than it is, and the next threshold comes too soon.
The product-limit estimate (Kaplan and Meier, JASA 1958) counts it among those at risk for as long as it was seen:

    S(t) = product over buckets i up to t of (1 - events_i / at_risk_i)

    at_risk_i = all whose time, cut short or not, lies in bucket i or later
"""

from __future__ import annotations

import math
from typing import Final

RATIO: Final = 1.02
"""Of the upper edges of two buckets that are neighbours: their middles are within 1%."""
_STEP: Final = math.log(RATIO)
MIN_S: Final = 1e-4


class Survival:
    """Times by bucket: those that came to their end, and those that were cut short."""

    __slots__ = ("counts", "events", "total")

    def __init__(self) -> None:
        self.counts: dict[int, list[int]] = {}
        """[came to their end, cut short] by bucket."""
        self.events = 0
        self.total = 0

    def add(self, elapsed_s: float, censored: bool) -> None:
        """Count a time (seconds, >= 0); `censored`: it would have been longer."""
        bucket = math.ceil(math.log(elapsed_s / MIN_S) / _STEP) if elapsed_s > MIN_S else 0
        cell = self.counts.get(bucket)
        if cell is None:
            cell = self.counts[bucket] = [0, 0]
        cell[1 if censored else 0] += 1
        self.total += 1
        self.events += not censored

    def merged(self, other: Survival) -> Survival:
        """Both together."""
        out = Survival()
        for of in (self, other):
            for bucket, (ended, cut) in of.counts.items():
                cell = out.counts.setdefault(bucket, [0, 0])
                cell[0] += ended
                cell[1] += cut
            out.events += of.events
            out.total += of.total
        return out

    def quantile(self, q: float) -> float | None:
        """The time (seconds) by which a share `q` (0-1) comes to its end; None where so few were let take that long.

        Within a bucket ends are spread evenly over its logarithm.
        """
        at_risk, survives = self.total, 1.0
        for bucket in sorted(self.counts):
            ended, cut = self.counts[bucket]
            after = survives * (1.0 - ended / at_risk)
            if after <= 1.0 - q:
                part = (survives - (1.0 - q)) / (survives - after)
                return MIN_S * math.exp(_STEP * (bucket - 1 + part))
            survives = after
            at_risk -= ended + cut
        return None
