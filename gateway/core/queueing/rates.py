"""How often something happens: what arrives, and how fast those that wait are served."""

from __future__ import annotations

import math
from typing import Final

DRAIN_TAU_S: Final = 5.0
DRAIN_WINDOW_S: Final = 1.0
ENOUGH_S: Final = 2.0
ENOUGH_ENDS: Final = 20.0
"""Until so many ends were seen of late, while slots were short, whatever makes room counts."""


class Rate:
    """Events, or what comes with them, per second; forgotten exponentially over `tau_s`."""

    __slots__ = ("_at", "_count", "_tau_s")

    def __init__(self, tau_s: float) -> None:
        self._tau_s = tau_s
        self._count = 0.0
        self._at = 0.0

    def add(self, now: float, amount: float = 1.0) -> None:
        """One happened, or brought so much."""
        self._count = self._count * math.exp((self._at - now) / self._tau_s) + amount
        self._at = now

    def per_s(self, now: float) -> float:
        """The rate at `now`."""
        return self._count * math.exp((self._at - now) / self._tau_s) / self._tau_s if self._count else 0.0


class OpeningRate:
    """How often something happens, per second in which a newcomer would have to wait.

    Measured at any other time it would be the arrival rate; measured only while somebody does wait, it would hardly
    ever be measured where most of those who would are shed. Counts and the time they took are forgotten alike,
    exponentially over `DRAIN_TAU_S`. Where that was hardly ever so, the rate at all times is a better lower bound: a
    few that came in a short moment say little.
    """

    __slots__ = ("_all", "_all_at", "_last_at", "_seconds", "count")

    def __init__(self) -> None:
        self.count = 0.0
        """While it was so, less what is forgotten."""
        self._seconds = 0.0
        self._last_at: float | None = None
        self._all = 0.0
        self._all_at = 0.0

    @property
    def per_s(self) -> float | None:
        """The rate; None before there was a backlog. What was seen for less than `DRAIN_WINDOW_S` is spread over it."""
        if not self.count:
            return None
        rate = self.count / max(self._seconds, DRAIN_WINDOW_S)
        return rate if self._seconds > ENOUGH_S else max(rate, (self._all - 0.5) / DRAIN_TAU_S)

    def add(self, saturated: bool, now: float) -> None:
        """It happened at `now`; `saturated`: until then a newcomer would have had to wait."""
        self._all = self._all * math.exp((self._all_at - now) / DRAIN_TAU_S) + 1.0
        self._all_at = now
        last, self._last_at = self._last_at, now if saturated else None
        if last is None or not saturated:
            return
        gap_s = now - last
        kept = math.exp(-gap_s / DRAIN_TAU_S)
        self.count = self.count * kept + 1.0
        self._seconds = self._seconds * kept + gap_s


class DrainRate:
    """How often a pool has room for one more.

    Where slots are what is short, room is made by requests that end, and their rate is the steadier one. But while
    slots fill up nothing ends, and yet nobody waits for long, since room is made by each prompt that was read: until
    `ENOUGH_ENDS` were seen, whatever makes room counts.
    """

    __slots__ = ("_ends", "_openings")

    def __init__(self) -> None:
        self._ends = OpeningRate()
        self._openings = OpeningRate()

    @property
    def per_s(self) -> float | None:
        """Requests per second for which there is room; None before there was a backlog."""
        return self._ends.per_s if self._ends.count >= ENOUGH_ENDS else self._openings.per_s

    def ended(self, full: bool, now: float) -> None:
        """A request has ended; `full`: until then no slot was free."""
        self._ends.add(full, now)

    def opened(self, saturated: bool, now: float) -> None:
        """There is room for one more, who may be one that waited; `saturated`: until then there was none."""
        self._openings.add(saturated, now)
