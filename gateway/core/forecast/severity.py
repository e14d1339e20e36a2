"""How much slower a replica is than the latency model expects, as a mean of logarithms."""

from __future__ import annotations

from typing import Final

MEMORY: Final = 0.1
"""Weight of a new sample,"""
CLIP: Final = 2.0
"""of which no one counts for more than this (7.4 times): a single one proves nothing."""
WINDOW_S: Final = 1.9
"""Two looks."""
MIN_SAMPLES: Final = 5.0
MAX_Z: Final = 3.0
"""of its excess in the spread of the pool: beyond, it stands out."""
TYPICAL: Final = 0.35
"""Excess up to which a replica is like the others: the pool learns from it, else what is slow becomes what is expected;
and its canaries speak for it."""


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
        """Weight of those of the window under way,"""
        self.began_at = 0.0
        """which began then."""
        self.strikes = 0
        self.excess = 0.0
        """Over the median of its pool, when that was last looked at."""
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
        """One that was called off: it would have been that late at least, which says something if that is worse."""
        if error > max(self.mean, self.least):
            self.add(error)

    @property
    def stands_out(self) -> bool:
        """Whether it is above those of its peers, which are alike."""
        return self.excess > TYPICAL and self.z > MAX_Z

    def ends(self, samples: float, now: float) -> bool:
        """Whether a window ends now, `samples` with what is overdue; then the next one begins."""
        if samples < MIN_SAMPLES or now - self.began_at < WINDOW_S:
            return False
        self.window, self.began_at = 0.0, now
        return True
