"""Times of arrivals: a renewal process whose clock is sped up and slowed down by a shape.

Gaps are independent Gamma variables of mean 1 (coefficient of variation `cv`; 1 is Poisson, 0 constant).
`ArrivalProcess` maps the sum of gaps to a time in seconds, so the same seed gives the same gaps at every rate. So a
search over rates compares identical traffic.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from random import Random
from typing import Protocol

Piece = tuple[float, float]
"""Duration of a rate (seconds), and its multiple of the nominal rate (>= 0)."""


class ArrivalProcess(Protocol):
    """How the rate changes over time, as multiples of the nominal rate."""

    def pieces(self, draw: Random) -> Iterator[Piece]:
        """The pieces follow each other without end."""


@dataclass(frozen=True, slots=True)
class Constant:
    """Always the nominal rate."""

    def pieces(self, draw: Random) -> Iterator[Piece]:
        """One that never ends."""
        yield math.inf, 1.0


@dataclass(frozen=True, slots=True)
class OnOff:
    """Bursts of `burst` times the rate; exponential durations of mean `on_s` and `off_s`. The mean rate is nominal."""

    on_s: float
    off_s: float
    burst: float

    def __post_init__(self) -> None:
        if not 0 < self.burst <= self.most:
            raise ValueError(f"a burst of {self.burst:g} is too much: with these times it is at most {self.most:.3g}")

    @property
    def most(self) -> float:
        """The burst that leaves no requests for the rest of the time."""
        return (self.on_s + self.off_s) / self.on_s

    def pieces(self, draw: Random) -> Iterator[Piece]:
        """Begins inside a burst with the probability of a burst at any moment."""
        quiet = (self.on_s + self.off_s - self.burst * self.on_s) / self.off_s
        on = draw.random() < self.on_s / (self.on_s + self.off_s)
        while True:
            yield draw.expovariate(1 / (self.on_s if on else self.off_s)), self.burst if on else quiet
            on = not on


@dataclass(frozen=True, slots=True)
class Steps:
    """Fixed steps, repeated from the first after the last. Multiples refer to the rate, and need not have mean 1."""

    steps: tuple[Piece, ...]

    def __post_init__(self) -> None:
        if not any(for_s > 0 and times > 0 for for_s, times in self.steps):
            raise ValueError("every step has rate 0: give one a rate above 0")

    def pieces(self, draw: Random) -> Iterator[Piece]:
        """The same for every seed."""
        return cycle(self.steps)


@dataclass(frozen=True, slots=True)
class Diurnal:
    """A sine of `period_s` between (1 - depth) and (1 + depth) times the rate, from its lowest point on."""

    period_s: float
    depth: float
    PARTS = 288
    """Straight pieces in a period: five minutes of a day."""

    def pieces(self, draw: Random) -> Iterator[Piece]:
        """The same for every seed."""
        turns = (2 * math.pi * (part + 0.5) / self.PARTS for part in cycle(range(self.PARTS)))
        return ((self.period_s / self.PARTS, 1.0 - self.depth * math.cos(turn)) for turn in turns)


def times(rate_per_s: float, cv: float, shape: ArrivalProcess, draw: Random) -> Iterator[float]:
    """Arrival times in seconds, without end. `rate_per_s` is the nominal rate, `cv` (>= 0) that of the gaps."""
    # Gaps and shape have separate random streams, so that bursts stay in place at any rate.
    gaps, turns = Random(draw.getrandbits(64)), Random(draw.getrandbits(64))
    now = 0.0
    left_s, times_rate = 0.0, 0.0
    pieces = shape.pieces(turns)
    while True:
        work = _gap(cv, gaps)
        while work > (room := _product(left_s, times_rate * rate_per_s)):
            work -= room
            now += left_s
            left_s, times_rate = next(pieces)
        if work:
            gap_s = work / (times_rate * rate_per_s)
            now += gap_s
            left_s -= gap_s
        yield now


def _gap(cv: float, draw: Random) -> float:
    """Gaps of mean 1; all equal with `cv` 0, exponential with 1."""
    if cv == 0.0:
        return 1.0
    return draw.expovariate(1.0) if cv == 1.0 else draw.gammavariate(1 / (cv * cv), cv * cv)


def _product(time_s: float, rate_per_s: float) -> float:
    """Mean number of arrivals in a piece: 0 at rate 0, even if it never ends."""
    return time_s * rate_per_s if rate_per_s else 0.0
