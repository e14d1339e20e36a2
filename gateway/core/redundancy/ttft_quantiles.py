"""TTFT quantiles of one pool. Requests are grouped by unread tokens: prompt tokens that the replica has to read.

TTFT counts from sent. Only first attempts count; cancelled attempts count as censored (`core.redundancy.survival`). If
a bucket of unread tokens has few samples, its quantile is shrunk towards that of the whole pool. A pool with few
samples has no quantiles.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from gateway.core.estimators.survival import Survival
from gateway.core.snapshot import HedgeThresholdView

MIN_SAMPLES: Final = 50
"""A pool has no quantiles before this many samples. A bucket with this many no longer depends on the whole pool."""
REFRESH_S: Final = 3.0
HALF_S: Final = 30.0
HALF_SAMPLES: Final = 200
MAX_HALF_S: Final = 300.0
"""Longest duration (seconds) of one half of the sliding window, which has two halves.

A half ends as soon as it has lasted 30 s and has 200 samples, or after 5 min in any case.
"""


def bucket_of(unread_tokens: int) -> int:
    """Index b of the bucket for 2**(b-1) (exclusive) to 2**b unread tokens."""
    return max(0, unread_tokens - 1).bit_length()


class TtftQuantiles:
    """A sliding window of one pool's TTFTs, with quantiles that are updated every few seconds."""

    def __init__(self) -> None:
        self._old: dict[int, Survival] = {}
        self._new: dict[int, Survival] = {}
        self._began: float | None = None
        self._samples = 0
        self._now: dict[int, Survival] = {}
        """Samples of both halves together, by bucket, at the last refresh."""
        self._quantiles: dict[tuple[int, float], float | None] = {}
        self.refresh_at = -math.inf
        """Time from which the quantiles are outdated."""

    def add(self, bucket: int, elapsed_s: float, censored: bool, now: float) -> None:
        """Add a first attempt. `elapsed_s`: time from sent to its first token, or to its cancellation if `censored`."""
        if self._began is None:
            self._began = now
        age_s = now - self._began
        if age_s >= HALF_S and (self._samples >= HALF_SAMPLES or age_s >= MAX_HALF_S):
            self._old, self._new = self._new, {}
            self._began, self._samples = now, 0
        self._samples += 1
        survival = self._new.get(bucket)
        if survival is None:
            survival = self._new[bucket] = Survival()
        survival.add(elapsed_s, censored)

    def quantile(self, bucket: int, quantile: float, now: float) -> float | None:
        """A quantile of TTFT for one bucket, in seconds since sent; None before enough samples."""
        if now >= self.refresh_at:
            self._refresh(now)
        key = bucket, quantile
        if key not in self._quantiles:
            self._quantiles[key] = _estimate(self._now, bucket, quantile)
        return self._quantiles[key]

    def views(self, quantiles: Iterable[float]) -> tuple[HedgeThresholdView, ...]:
        """These quantiles of all buckets with samples. Changes nothing: a read must not change a hedge threshold."""
        merged = self._merged()
        return tuple(
            HedgeThresholdView(2**bucket, own.total, own.total - own.events, q, _estimate(merged, bucket, q))
            for bucket, own in merged.items()
            for q in quantiles
            if bucket >= 0
        )

    def _refresh(self, now: float) -> None:
        self.refresh_at = now + REFRESH_S
        self._quantiles.clear()
        self._now = self._merged()

    def _merged(self) -> dict[int, Survival]:
        """Samples of both halves together, by bucket. The key -1 has the samples of all buckets."""
        merged: dict[int, Survival] = {}
        nothing = everything = Survival()
        for bucket in sorted({*self._old, *self._new}):
            both = merged[bucket] = self._old.get(bucket, nothing).merged(self._new.get(bucket, nothing))
            everything = everything.merged(both)
        merged[-1] = everything
        return merged


def _estimate(merged: dict[int, Survival], bucket: int, quantile: float) -> float | None:
    everything, own = merged[-1], merged.get(bucket)
    if everything.total < MIN_SAMPLES:
        return None
    all_s = everything.quantile(quantile)
    own_s = None if own is None else own.quantile(quantile)
    if own is None or own_s is None or all_s is None:
        return all_s
    weight = min(1.0, own.total / MIN_SAMPLES)
    return math.exp(weight * math.log(own_s) + (1.0 - weight) * math.log(all_s))
