"""Rates of events: arrivals, the drain rate of a queue, and the rate at which one tier of it is served."""

from __future__ import annotations

import math
from typing import Final

DRAIN_TAU_S: Final = 5.0
DRAIN_WINDOW_S: Final = 1.0
ENOUGH_S: Final = 2.0
ENOUGH_ENDS: Final = 20.0
"""Once this many requests have ended lately while slots were short, the drain rate counts only ends of requests."""

TURN_TAU_S: Final = 20.0
FEW_TURNS: Final = 4.0
FEW_TURN_S: Final = 2.0
"""The rate of a tier counts as unknown unless more than `FEW_TURNS` requests, sent in more than `FEW_TURN_S`, are
remembered.
"""


class Rate:
    """Events or amounts per second, forgotten exponentially with time constant `tau_s`."""

    __slots__ = ("_at", "_tau_s", "count")

    def __init__(self, tau_s: float) -> None:
        self._tau_s = tau_s
        self.count = 0.0
        """Sum of the amounts, each forgotten up to the latest one."""
        self._at = 0.0

    def add(self, now: float, amount: float = 1.0) -> None:
        """Count an event of size `amount` at `now`."""
        self.count = self.count * math.exp((self._at - now) / self._tau_s) + amount
        self._at = now

    def take_back(self, at: float, now: float, amount: float = 1.0) -> None:
        """Take back what is left at `now` of an event of size `amount` that was counted at `at`."""
        left = self.count * math.exp((self._at - now) / self._tau_s) - amount * math.exp((at - now) / self._tau_s)
        self.count, self._at = max(0.0, left), now  # rounding must not leave a rate below 0

    def per_s(self, now: float) -> float:
        """The rate at `now`."""
        return self.count * math.exp((self._at - now) / self._tau_s) / self._tau_s if self.count else 0.0


class OpeningRate:
    """Events per second of saturated time. Time is saturated while a new request would have to wait.

    At other times the rate would equal the rate of arrivals. Time is saturated even if no request waits: most new
    requests may be shed. Counts and saturated time are forgotten exponentially with time constant `DRAIN_TAU_S`. A few
    events in a short saturated time are mostly chance. So a time shorter than `DRAIN_WINDOW_S` is filled up to it with
    events at a typical rate. Below `ENOUGH_S` of saturated time, the rate over all time is a lower bound.
    """

    __slots__ = ("_all", "_all_at", "_last_at", "_seconds", "count")

    def __init__(self) -> None:
        self.count = 0.0
        """Number of events in saturated time, forgotten exponentially."""
        self._seconds = 0.0
        self._last_at: float | None = None
        self._all = 0.0
        self._all_at = 0.0

    def per_s(self, typical_per_s: float) -> float | None:
        """The rate; None before any saturated time."""
        if not self.count:
            return None
        missing_s = max(0.0, DRAIN_WINDOW_S - self._seconds)
        rate = (self.count + missing_s * typical_per_s) / (self._seconds + missing_s)
        return rate if self._seconds > ENOUGH_S else max(rate, (self._all - 0.5) / DRAIN_TAU_S)

    def add(self, saturated: bool, now: float) -> None:
        """Count an event at `now`. `saturated`: whether a new request would have had to wait just before the event."""
        self._all = self._all * math.exp((self._all_at - now) / DRAIN_TAU_S) + 1.0
        self._all_at = now
        last, self._last_at = self._last_at, now if saturated else None
        if last is None or not saturated:
            return
        gap_s = now - last
        kept = math.exp(-gap_s / DRAIN_TAU_S)
        self.count = self.count * kept + 1.0
        self._seconds = self._seconds * kept + gap_s

    def take_back(self, at: float) -> None:
        """Take back an event that was counted at `at` in saturated time. The time stays: it was saturated."""
        self.count = max(0.0, self.count - math.exp((at - (self._last_at or at)) / DRAIN_TAU_S))
        self._all = max(0.0, self._all - math.exp((at - self._all_at) / DRAIN_TAU_S))


class DrainRate:
    """Rate at which a pool gets room for one more request.

    If slots are short, requests that end make room, at a steady rate. While slots fill up, no request ends, but each
    prompt that is read makes room. So before `ENOUGH_ENDS`, every event that makes room counts.
    """

    __slots__ = ("_ends", "_openings")

    def __init__(self) -> None:
        self._ends = OpeningRate()
        self._openings = OpeningRate()

    def per_s(self, typical_per_s: float = 0.0) -> float | None:
        """Requests per second for which the pool gets room; None before there was any backlog. `typical_per_s`: rate
        that is assumed for the missing part of a short backlog.
        """
        return (self._ends if self._ends.count >= ENOUGH_ENDS else self._openings).per_s(typical_per_s)

    def ended(self, full: bool, now: float) -> None:
        """Count a request that ended. `full`: whether no slot was free just before."""
        self._ends.add(full, now)

    def opened(self, saturated: bool, now: float) -> None:
        """Count an event that made room for one more request. `saturated`: whether there was no room just before."""
        self._openings.add(saturated, now)

    def take_back(self, at: float) -> None:
        """Take back the room that a queued request took at `at`: no engine worked on it, so the room was there before
        it.
        """
        self._openings.take_back(at)


class TurnRate:
    """Requests per second that one tier sends from its queue, over the time in which some of its requests waited.

    Counts and waiting time are forgotten exponentially with time constant `TURN_TAU_S`.
    """

    __slots__ = ("_at", "_count", "_seconds", "_waits")

    def __init__(self) -> None:
        self._count = self._seconds = self._at = 0.0
        """As of `_at`: requests sent, and seconds in which some waited."""
        self._waits = False

    def began(self, now: float) -> None:
        """The first request waits."""
        self._settle(now)
        self._waits = True

    def sent(self, now: float) -> None:
        """A queued request is sent."""
        self._settle(now)
        self._count += 1.0

    def take_back(self, at: float) -> None:
        """Take back a request that was sent at `at`, because no engine worked on it."""
        self._count = max(0.0, self._count - math.exp((at - self._at) / TURN_TAU_S))

    def stopped(self, now: float) -> None:
        """The last queued request left, sent or refused."""
        self._settle(now)
        self._waits = False

    def _settle(self, now: float) -> None:
        kept = math.exp((self._at - now) / TURN_TAU_S)
        self._count *= kept
        self._seconds = self._waited_s(kept)
        self._at = now

    def _waited_s(self, kept: float) -> float:
        """The waiting time at the time at which the share `kept` (0-1) of the counts is not forgotten."""
        return self._seconds * kept + (TURN_TAU_S * (1.0 - kept) if self._waits else 0.0)

    def per_s(self, now: float) -> float | None:
        """The rate; None if too little of it is remembered."""
        kept = math.exp((self._at - now) / TURN_TAU_S)
        count, seconds = self._count * kept, self._waited_s(kept)
        return count / seconds if count > FEW_TURNS and seconds > FEW_TURN_S else None
