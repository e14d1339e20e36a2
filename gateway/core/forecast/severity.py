"""Severity: how much slower a replica is than its latency model expects, as a mean of logarithms."""

from __future__ import annotations

from typing import Final

MEMORY: Final = 0.1
"""Weight of a new sample."""
CLIP: Final = 2.0
"""Largest log-ratio of one sample (7.4 times), since a single sample proves nothing."""
WINDOW_S: Final = 1.9
"""Two looks."""
MIN_SAMPLES: Final = 5.0
MAX_Z: Final = 3.0
"""Excess, in spreads of the pool, beyond which a replica stands out."""
TYPICAL: Final = 0.35
"""Largest excess of a replica that is like the others.

Its pool learns only from such replicas, and a probe within this excess is good. Otherwise a slow pace would become the
expected one.
"""


class Severity:
    """Mean logarithm of seen over expected; recent samples count most."""

    __slots__ = ("began_at", "excess", "least", "mean", "memory", "seen", "strikes", "window", "z")

    def __init__(self, memory: float = MEMORY, least: float = 0.0) -> None:
        self.memory = memory
        """Weight of a new sample."""
        self.least = least
        """Overdue samples below this log-excess are ignored."""
        self.mean = 0.0
        self.seen = 0.0
        """Weight of all samples."""
        self.window = 0.0
        """Weight of the samples in the present window."""
        self.began_at = 0.0
        """Start of that window."""
        self.strikes = 0
        self.excess = 0.0
        """Mean less the median of its pool, as of the last look."""
        self.z = 0.0

    def add(self, error: float, weight: float = 1.0) -> None:
        """One more sample; `weight` (0-1]."""
        seen = self.seen = self.seen + weight
        self.window += weight
        rate = self.memory
        if seen * rate < 1.0:
            rate = 1.0 / seen
        clipped = CLIP if error > CLIP else -CLIP if error < -CLIP else error
        self.mean += weight * rate * (clipped - self.mean)

    def add_overdue(self, error: float) -> None:
        """A sample that was cancelled when overdue, a lower bound. It counts only if it is worse than the mean."""
        if error > max(self.mean, self.least):
            self.add(error)

    @property
    def stands_out(self) -> bool:
        """Whether it is clearly above those of its peers."""
        return self.excess > TYPICAL and self.z > MAX_Z

    def ends(self, samples: float, now: float) -> bool:
        """Whether a window with `samples` (overdue ones included) ends now; if so, the next one begins."""
        if samples < MIN_SAMPLES or now - self.began_at < WINDOW_S:
            return False
        self.window, self.began_at = 0.0, now
        return True
