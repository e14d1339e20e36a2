"""The number of requests that the server has in a pool, and its integral over time: the L of Little's law.

Only client connections report here: from the first dispatch to the last byte of the answer, or until the client leaves.
The controller takes no part, so that its figures can be checked against these.
"""

from __future__ import annotations


class Occupancy:
    """Requests of one pool. Times in seconds of the monotonic clock."""

    def __init__(self) -> None:
        self.open = 0
        self._held_s = 0.0
        self._at = 0.0

    def begin(self, since: float, now: float) -> None:
        """A request entered at `since`."""
        self._held_s += self.open * (now - self._at) + (now - since)
        self._at = now
        self.open += 1

    def end(self, now: float) -> None:
        """A request has left now."""
        self._held_s += self.open * (now - self._at)
        self._at = now
        self.open -= 1

    def undo(self, since: float, now: float) -> None:
        """A request counted since `since` belongs to another pool."""
        self.end(now)
        self._held_s -= now - since

    def held_s(self, now: float) -> float:
        """The integral of `open` over time, up to `now`."""
        return self._held_s + self.open * (now - self._at)
