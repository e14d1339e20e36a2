"""Quantiles of censored times: Kaplan and Meier's estimate over buckets.

The time of a first attempt that lost to its duplicate is censored: it would have been longer, by an unknown amount. If
it were left out, or counted as if it had ended, the tail would look too short, and the next hedge threshold would be
too small. In the product-limit estimate (Kaplan and Meier, JASA 1958), a censored attempt counts as at risk for as long
as it ran:

    S(t) = product over buckets i up to t of (1 - events_i / at_risk_i)

    at_risk_i = number of times, censored or not, in bucket i or later
"""

from __future__ import annotations

import math
from typing import Final

RATIO: Final = 1.02
"""Ratio of the upper edges of neighbouring buckets. With it, the middle of a bucket is within 1% of its values."""
_STEP: Final = math.log(RATIO)
MIN_S: Final = 1e-4


class Survival:
    """Counts of ended and of censored times, by bucket."""

    __slots__ = ("counts", "events", "total")

    def __init__(self) -> None:
        self.counts: dict[int, list[int]] = {}
        """[ended, censored] by bucket."""
        self.events = 0
        self.total = 0

    def add(self, elapsed_s: float, censored: bool) -> None:
        """Count a time (seconds, >= 0). `censored`: whether the true time would have been longer."""
        bucket = math.ceil(math.log(elapsed_s / MIN_S) / _STEP) if elapsed_s > MIN_S else 0
        cell = self.counts.get(bucket)
        if cell is None:
            cell = self.counts[bucket] = [0, 0]
        cell[1 if censored else 0] += 1
        self.total += 1
        self.events += not censored

    def merged(self, other: Survival) -> Survival:
        """The sum of both counts."""
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
        """The time (seconds) by which a share `q` (0-1) has ended. None if too many times are censored earlier to know
        it.

        Within a bucket, the logarithms of times are assumed to be spread evenly.
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
