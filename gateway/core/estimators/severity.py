"""Severity: how much slower a replica is than the latency model expects, as a mean of log(seen / expected)."""

from __future__ import annotations

from typing import Final

MEMORY: Final = 0.1
"""Weight of a new sample."""
CLIP: Final = 2.0
"""Log-ratios are clamped to this (a factor of 7.4), because a single sample proves nothing."""
WINDOW_S: Final = 1.9
"""Shortest window in seconds. The outlier detection checks about twice in this time."""
MIN_SAMPLES: Final = 5.0
"""Samples that end a window, unless the excess is large."""
FEWEST_SAMPLES: Final = 2.0
"""Fewest samples that end a window, however large the excess is."""
MAX_Z: Final = 3.0
"""A replica stands out if its excess is above this many spreads of its pool."""
TYPICAL: Final = 0.35
"""Largest excess (log-ratio) of a replica that still counts as typical.

The pool learns only from typical replicas: otherwise a slow speed would become the expected speed. A probe with at most
this excess is good.
"""


class Severity:
    """Running mean of log(seen / expected); recent samples count most."""

    __slots__ = ("began_at", "excess", "least", "mean", "memory", "seen", "strikes", "window", "z")

    def __init__(self, memory: float = MEMORY, least: float = 0.0) -> None:
        self.memory = memory
        """Weight of a new sample."""
        self.least = least
        """Overdue samples below this log-excess are ignored."""
        self.mean = 0.0
        self.seen = 0.0
        """Total weight of all samples."""
        self.window = 0.0
        """Total weight of the samples in the present window."""
        self.began_at = 0.0
        """Start of the present window."""
        self.strikes = 0
        self.excess = 0.0
        """`mean` minus the median of the pool, at the last check of the outlier detection."""
        self.z = 0.0

    def add(self, error: float, weight: float = 1.0) -> None:
        """Add a sample: `error` is log(seen / expected), `weight` is in (0-1]."""
        seen = self.seen = self.seen + weight
        self.window += weight
        rate = self.memory
        if seen * rate < 1.0:
            rate = 1.0 / seen
        clipped = CLIP if error > CLIP else -CLIP if error < -CLIP else error
        self.mean += weight * rate * (clipped - self.mean)

    def add_overdue(self, error: float) -> None:
        """Add an attempt that was cancelled when overdue. Its log-ratio is a lower bound, so the sample never lowers
        the mean.

        An attempt below the mean still counts as a sample, unless it was hardly late. Otherwise a slow replica whose
        requests are all rescued by duplicates would never be judged.
        """
        if error > self.least and (error > self.mean or error > TYPICAL):
            self.add(max(error, self.mean))

    @property
    def stands_out(self) -> bool:
        """Whether the replica was clearly slower than the others of its pool at the last outlier check."""
        return self.excess > TYPICAL and self.z > MAX_Z

    def ends(self, samples: float, bound: float, now: float) -> bool:
        """Whether the present window ends now. If it ends, the next window begins.

        `samples`: number of its samples, including overdue ones. `bound` (> 0): largest tolerated excess. For an excess
        of n bounds, an n-th of the samples is enough: a much slower replica gets few requests, and each of its answers
        shows more.
        """
        needed = MIN_SAMPLES
        if self.excess > bound:
            needed = max(FEWEST_SAMPLES, MIN_SAMPLES * bound / self.excess)
        if samples < needed or now - self.began_at < WINDOW_S:
            return False
        self.window, self.began_at = 0.0, now
        return True
