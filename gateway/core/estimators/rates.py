"""Sums that are forgotten exponentially. Rates of events: arrivals, the drain of a queue, and the service of a tier."""

from __future__ import annotations

import math
from typing import Final

from gateway.core.estimators.memory import Remembering

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


class Decay(Remembering):
    """Exponential forgetting of sums that are kept beside it: after `tau_s` seconds, 1 / e of them is left."""

    __slots__ = ("latest_at", "tau_s")

    def __init__(self, tau_s: float) -> None:
        self.tau_s = tau_s
        self.latest_at = 0.0
        """Time up to which the sums are forgotten."""

    def remembered(self) -> tuple[str, ...]:
        return ("latest_at",)

    def kept(self, now: float) -> float:
        """Share (0-1) of the sums that is left at `now`."""
        return math.exp((self.latest_at - now) / self.tau_s)

    def forget(self, now: float) -> float:
        """Go on to `now`. Returns the factor (0-1) for the sums."""
        kept = math.exp((self.latest_at - now) / self.tau_s)
        self.latest_at = now
        return kept

    def left_of(self, at: float) -> float:
        """Share (0-1) left at `latest_at` of an amount added at `at`; 0 if `at` is later: no sum holds that."""
        return math.exp((at - self.latest_at) / self.tau_s) if at <= self.latest_at else 0.0


class Decayed(Decay):
    """A sum of amounts, or a count of events, that is forgotten by this clock."""

    __slots__ = ("sum",)

    def __init__(self, tau_s: float) -> None:
        super().__init__(tau_s)
        self.sum = 0.0
        """Sum as of `latest_at`."""

    def remembered(self) -> tuple[str, ...]:
        return "latest_at", "sum"

    def add(self, now: float, amount: float = 1.0) -> None:
        """Count an event of size `amount` at `now`."""
        self.sum = self.sum * math.exp((self.latest_at - now) / self.tau_s) + amount
        self.latest_at = now

    def take_back(self, at: float, now: float, amount: float = 1.0) -> None:
        """Take back what is left at `now` of an event of size `amount` that was counted at `at`."""
        kept = self.forget(now)
        self.sum = max(0.0, self.sum * kept - amount * self.left_of(at))  # rounding must not leave less than 0

    def at(self, now: float) -> float:
        """The sum at `now`."""
        return self.sum * self.kept(now) if self.sum else 0.0


class Rate(Decayed):
    """Events or amounts per second."""

    __slots__ = ()

    def per_s(self, now: float) -> float:
        """The rate at `now`."""
        return self.at(now) / self.tau_s


class OpeningRate(Remembering):
    """Events per second of saturated time. Time is saturated while a new request would have to wait.

    At other times the rate would equal the rate of arrivals. Time is saturated even if no request waits: most new
    requests may be shed. Counts and saturated time are forgotten exponentially with time constant `DRAIN_TAU_S`. A few
    events in a short saturated time are mostly chance. So a time shorter than `DRAIN_WINDOW_S` is filled up to it with
    events at a typical rate. Below `ENOUGH_S` of saturated time, the rate over all time is a lower bound.
    """

    __slots__ = ("_all", "_decay", "_is_saturated", "_seconds", "count")

    def __init__(self) -> None:
        self.count = 0.0
        """Number of events in saturated time, forgotten exponentially."""
        self._seconds = 0.0
        self._decay = Decay(DRAIN_TAU_S)
        """Forgetting of `count` and `_seconds`. Its time does not pass while it is not saturated."""
        self._is_saturated = False
        """Whether the time since the latest event counts, if it is saturated at the next one too."""
        self._all = Decayed(DRAIN_TAU_S)

    def remembered(self) -> tuple[str, ...]:
        return "count", "_seconds", "_decay", "_all"

    def per_s(self, typical_per_s: float) -> float | None:
        """The rate; None before any saturated time."""
        if not self.count:
            return None
        missing_s = max(0.0, DRAIN_WINDOW_S - self._seconds)
        rate = (self.count + missing_s * typical_per_s) / (self._seconds + missing_s)
        return rate if self._seconds > ENOUGH_S else max(rate, (self._all.sum - 0.5) / DRAIN_TAU_S)

    def add(self, saturated: bool, now: float) -> None:
        """Count an event at `now`. `saturated`: whether a new request would have had to wait just before the event."""
        self._all.add(now)
        decay, was_saturated, self._is_saturated = self._decay, self._is_saturated, saturated
        if was_saturated and saturated:
            gap_s = now - decay.latest_at
            kept = decay.forget(now)
            self.count = self.count * kept + 1.0
            self._seconds = self._seconds * kept + gap_s
        else:
            decay.latest_at = now

    def take_back(self, at: float) -> None:
        """Take back an event that was counted at `at` in saturated time. The time stays: it was saturated."""
        self.count = max(0.0, self.count - (self._decay.left_of(at) if self._is_saturated else 1.0))
        self._all.take_back(at, self._all.latest_at)


class DrainRate(Remembering):
    """Rate at which a pool gets room for one more request.

    If slots are short, requests that end make room, at a steady rate. While slots fill up, no request ends, but each
    prompt that is read makes room. So before `ENOUGH_ENDS`, every event that makes room counts.
    """

    __slots__ = ("_ends", "_openings")

    def __init__(self) -> None:
        self._ends = OpeningRate()
        self._openings = OpeningRate()

    def remembered(self) -> tuple[str, ...]:
        return "_ends", "_openings"

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


class TurnRate(Remembering):
    """Requests per second that one tier sends from its queue, over the time in which some of its requests waited.

    Counts and waiting time are forgotten exponentially with time constant `TURN_TAU_S`.
    """

    __slots__ = ("_count", "_decay", "_seconds", "_waits")

    def __init__(self) -> None:
        self._decay = Decay(TURN_TAU_S)
        self._count = self._seconds = 0.0
        """Requests sent, and seconds in which some waited, both forgotten by `_decay`."""
        self._waits = False

    def remembered(self) -> tuple[str, ...]:
        return "_decay", "_count", "_seconds"

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
        self._count = max(0.0, self._count - self._decay.left_of(at))

    def stopped(self, now: float) -> None:
        """The last queued request left, sent or refused."""
        self._settle(now)
        self._waits = False

    def _settle(self, now: float) -> None:
        kept = self._decay.forget(now)
        self._count *= kept
        self._seconds = self._waited_s(kept)

    def _waited_s(self, kept: float) -> float:
        """The waiting time at the time at which the share `kept` (0-1) of the counts is not forgotten."""
        return self._seconds * kept + (TURN_TAU_S * (1.0 - kept) if self._waits else 0.0)

    def per_s(self, now: float) -> float | None:
        """The rate; None if too little of it is remembered."""
        kept = self._decay.kept(now)
        count, seconds = self._count * kept, self._waited_s(kept)
        return count / seconds if count > FEW_TURNS and seconds > FEW_TURN_S else None
