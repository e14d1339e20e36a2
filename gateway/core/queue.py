"""Where requests wait for a slot, in which order, and how fast they leave."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from gateway.core.ledger import Live

DRAIN_TAU_S = 5.0


class WaitingRoom:
    """Bands by tier priority, lowest number first; inside a band first come, first served.

    A tier has one queue timeout, so first come is also earliest deadline. Bounded by its caller, in requests and
    in bytes of held bodies.
    """

    def __init__(self) -> None:
        self._bands: dict[int, deque[Live]] = {}
        self._count = 0
        self.bytes = 0

    def __len__(self) -> int:
        return self._count

    def push(self, live: Live) -> None:
        """Let `live` wait."""
        priority = live.ask.tier.priority
        band = self._bands.get(priority)
        if band is None:
            self._bands[priority] = band = deque()
            self._bands = dict(sorted(self._bands.items()))
        band.append(live)
        self._count += 1
        self.bytes += live.ask.body_bytes

    def remove(self, live: Live) -> None:
        """Take `live` out, wherever it stands: it left, or its deadline passed."""
        self._bands[live.ask.tier.priority].remove(live)
        self._took(live)

    def ahead_of(self, priority: int) -> int:
        """How many would be served before a newcomer of `priority`."""
        return sum(len(band) for p, band in self._bands.items() if p <= priority)

    def heads(self) -> Iterator[Live]:
        """The first of every band, most urgent band first."""
        return (band[0] for band in list(self._bands.values()) if band)

    def last_below(self, priority: int) -> Live | None:
        """The newest request of the least urgent band, if that band yields to `priority`."""
        for p in reversed(self._bands):
            if p <= priority:
                return None
            if self._bands[p]:
                return self._bands[p][-1]
        return None

    def _took(self, live: Live) -> None:
        self._count -= 1
        self.bytes -= live.ask.body_bytes


class DrainRate:
    """Departures per second from a pool, measured only while its waiting room is not empty.

    Measured at any other time it would be the arrival rate. Exponentially weighted over `DRAIN_TAU_S`.
    """

    def __init__(self) -> None:
        self.per_s: float | None = None
        self._last_at: float | None = None

    def departed(self, backlogged: bool, now: float) -> None:
        """A slot was freed at `now`, while requests were waiting or not."""
        last, self._last_at = self._last_at, now if backlogged else None
        if last is None or not backlogged:
            return
        gap_s = max(now - last, 1e-6)
        # Each gap weighs by its length, so that bursts of departures do not drown the pauses between them.
        weight = gap_s / (gap_s + DRAIN_TAU_S)
        rate = 1.0 / gap_s
        self.per_s = rate if self.per_s is None else self.per_s + weight * (rate - self.per_s)
