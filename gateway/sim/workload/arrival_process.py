"""Times of arrivals: a renewal process whose rate changes over time.

Gaps are independent Gamma variables of mean 1. `cv` is their coefficient of variation: 1 is Poisson, 0 constant.
`ArrivalProcess` maps the sum of gaps to a time in seconds. So the same seed gives the same gaps at every rate, and a
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
"""(duration in seconds, rate as a multiple >= 0 of the nominal rate)."""


class ArrivalProcess(Protocol):
    """The rate over time, as multiples of the nominal rate."""

    def pieces(self, draw: Random) -> Iterator[Piece]:
        """Pieces of constant rate, one after the other, without end."""


@dataclass(frozen=True, slots=True)
class Constant:
    """Always the nominal rate."""

    def pieces(self, draw: Random) -> Iterator[Piece]:
        """A single piece that never ends."""
        yield math.inf, 1.0


@dataclass(frozen=True, slots=True)
class OnOff:
    """Bursts of `burst` times the rate. Durations are exponential, with means `on_s` and `off_s`. The mean rate is the
    nominal rate.
    """

    on_s: float
    off_s: float
    burst: float

    def __post_init__(self) -> None:
        if not 0 < self.burst <= self.most:
            raise ValueError(f"a burst of {self.burst:g} is too much: with these times it is at most {self.most:.3g}")

    @property
    def most(self) -> float:
        """The largest possible `burst`. With it, no request arrives between bursts."""
        return (self.on_s + self.off_s) / self.on_s

    def pieces(self, draw: Random) -> Iterator[Piece]:
        """Random pieces. The first is a burst with the probability of a burst at any time."""
        quiet = (self.on_s + self.off_s - self.burst * self.on_s) / self.off_s
        on = draw.random() < self.on_s / (self.on_s + self.off_s)
        while True:
            yield draw.expovariate(1 / (self.on_s if on else self.off_s)), self.burst if on else quiet
            on = not on


@dataclass(frozen=True, slots=True)
class Steps:
    """Fixed pieces, which are repeated without end. Their multiples need not have mean 1."""

    steps: tuple[Piece, ...]

    def __post_init__(self) -> None:
        if not any(for_s > 0 and times > 0 for for_s, times in self.steps):
            raise ValueError("every step has rate 0: give one a rate above 0")

    def pieces(self, draw: Random) -> Iterator[Piece]:
        """Pieces, which are the same for every seed."""
        return cycle(self.steps)


@dataclass(frozen=True, slots=True)
class Diurnal:
    """A sine with period `period_s`, between (1 - depth) and (1 + depth) times the rate. It starts at its lowest
    point.
    """

    period_s: float
    depth: float
    PARTS = 288
    """Number of pieces in a period. With a period of a day, each lasts five minutes."""

    def pieces(self, draw: Random) -> Iterator[Piece]:
        """Pieces, which are the same for every seed."""
        angles = (2 * math.pi * (part + 0.5) / self.PARTS for part in cycle(range(self.PARTS)))
        return ((self.period_s / self.PARTS, 1.0 - self.depth * math.cos(angle)) for angle in angles)


def times(rate_per_s: float, cv: float, shape: ArrivalProcess, draw: Random) -> Iterator[float]:
    """Arrival times in seconds, without end. `rate_per_s`: nominal rate. `cv` (>= 0): coefficient of variation of the
    gaps.
    """
    # Gaps and shape have separate random streams, so that a burst comes at the same time at any rate.
    gap_draw, shape_draw = Random(draw.getrandbits(64)), Random(draw.getrandbits(64))
    now = 0.0
    left_s, times_rate = 0.0, 0.0
    pieces = shape.pieces(shape_draw)
    while True:
        work = _gap(cv, gap_draw)
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
    """A random gap of mean 1. All gaps are equal with `cv` 0, and exponential with `cv` 1."""
    if cv == 0.0:
        return 1.0
    return draw.expovariate(1.0) if cv == 1.0 else draw.gammavariate(1 / (cv * cv), cv * cv)


def _product(time_s: float, rate_per_s: float) -> float:
    """Mean number of arrivals in a piece. It is 0 at rate 0, even if the piece never ends."""
    return time_s * rate_per_s if rate_per_s else 0.0
