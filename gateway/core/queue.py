"""Where requests wait for a slot, in which order, and how fast they leave."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from itertools import chain

from gateway.core.ledger import Live
from gateway.core.rules import AdmissionMode, Tier

DRAIN_TAU_S = 5.0
DRAIN_WINDOW_S = 1.0


class WaitingRoom:
    """A band for each tier. The most urgent band is served first, bands alike in the order of their heads' arrival.

    A tier has one queue timeout, so first come is also earliest deadline. Bounded by its caller, in requests and
    in bytes of held bodies.
    """

    def __init__(self) -> None:
        self._bands: dict[tuple[int, str], deque[Live]] = {}
        self._count = 0
        self.bytes = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Live]:
        """All who wait, in the order in which they would be served."""
        return iter(sorted(chain.from_iterable(self._bands.values()), key=_turn))

    def push(self, live: Live) -> None:
        """Let `live` wait."""
        self._bands.setdefault(_band(live.ask.tier), deque()).append(live)
        self._count += 1
        self.bytes += live.ask.body_bytes

    def remove(self, live: Live) -> None:
        """Take `live` out, wherever it stands: it is served, it left, or its deadline passed."""
        key = _band(live.ask.tier)
        self._bands[key].remove(live)
        if not self._bands[key]:
            del self._bands[key]
        self._count -= 1
        self.bytes -= live.ask.body_bytes

    def holds(self, tier: Tier) -> bool:
        """Whether any request of `tier` waits."""
        return _band(tier) in self._bands

    def ahead_of(self, priority: int) -> int:
        """How many would be served before a newcomer of `priority`."""
        return sum(len(band) for (p, _), band in self._bands.items() if p <= priority)

    def heads(self) -> list[Live]:
        """The first of every band, in the order in which they are served."""
        return sorted((band[0] for band in self._bands.values()), key=_turn)

    def last_below(self, priority: int) -> Live | None:
        """The one to be served last of those that may be shed and are less urgent than `priority`."""
        lasts = (band[-1] for (p, _), band in self._bands.items() if p > priority)
        return max((last for last in lasts if _may_be_shed(last.ask.tier)), key=_turn, default=None)


def _band(tier: Tier) -> tuple[int, str]:
    return tier.priority, tier.name


def _turn(live: Live) -> tuple[int, float, int]:
    return live.ask.tier.priority, live.ask.body_at, live.ask.id


def _may_be_shed(tier: Tier) -> bool:
    return tier.admission.mode is AdmissionMode.ENFORCE


class DrainRate:
    """Departures per second from a pool, measured only while its waiting room is not empty.

    Measured at any other time it would be the arrival rate. Departures and the time they took are forgotten alike,
    exponentially over `DRAIN_TAU_S`.
    """

    def __init__(self) -> None:
        self._departures = 0.0
        self._seconds = 0.0
        self._last_at: float | None = None

    @property
    def per_s(self) -> float | None:
        """The rate; None before there was a backlog. What was seen for less than `DRAIN_WINDOW_S` is spread over it."""
        return self._departures / max(self._seconds, DRAIN_WINDOW_S) if self._departures else None

    def departed(self, backlogged: bool, now: float) -> None:
        """A slot was freed at `now`, while requests were waiting or not."""
        last, self._last_at = self._last_at, now if backlogged else None
        if last is None or not backlogged:
            return
        gap_s = now - last
        kept = math.exp(-gap_s / DRAIN_TAU_S)
        self._departures = self._departures * kept + 1.0
        self._seconds = self._seconds * kept + gap_s
