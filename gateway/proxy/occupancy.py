"""Counts the requests of the server in a pool, and the integral of this number over time: the L of Little's law.

Only client connections report here, not the controller. So its figures can be checked against these. A request counts
from its dispatch to the last byte of its answer, or until its client leaves. If its replica cannot be reached, it
counts from its next dispatch.
"""

from __future__ import annotations


class Occupancy:
    """Counter of one pool's requests. Times are seconds of the monotonic clock."""

    def __init__(self) -> None:
        self.open = 0
        self._held_s = 0.0
        self._at = 0.0

    def begin(self, since: float, now: float) -> None:
        """Count a request that entered the pool at `since`."""
        self._held_s += self.open * (now - self._at) + (now - since)
        self._at = now
        self.open += 1

    def end(self, now: float) -> None:
        """Count a request that leaves the pool at `now`."""
        self._held_s += self.open * (now - self._at)
        self._at = now
        self.open -= 1

    def undo(self, since: float, now: float) -> None:
        """Take back a request that was counted from `since` on, because it is in another pool or in none."""
        self.end(now)
        self._held_s -= now - since

    def held_s(self, now: float) -> float:
        """The integral of `open` over time, up to `now`."""
        return self._held_s + self.open * (now - self._at)
