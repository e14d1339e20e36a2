"""Maps values to places on an axis, and chooses its ticks."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps the values from `low` to `high` to places from 0 to 1."""

    low: float
    high: float
    log: bool = False
    nines: bool = False

    def at(self, value: float) -> float:
        """The place of a value; outside of 0-1 if the value is outside the scale."""
        if self.nines:
            return nine(value) / nine(self.high)
        if self.log:
            value = max(value, self.low)
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, about: int = 5) -> list[float]:
        """Round values within the scale."""
        if self.nines:
            return nine_ticks(self.high)
        if self.log:
            return _log_ticks(self.low, self.high)
        step = _round_step((self.high - self.low) / about)
        first = math.ceil(self.low / step - 1e-9)
        return [n * step for n in range(first, math.floor(self.high / step + 1e-9) + 1)]


def nine(share: float) -> float:
    """The place of a share by its number of nines. 0% is at 0, 90% at 1, 99% at 2, 99.9% at 3; 100% has no place."""
    return -math.log10(max(1e-9, 1.0 - share))


def nine_ticks(highest: float) -> list[float]:
    """Ticks at 0%, 50%, 90%, 99% and so on, up to the highest."""
    nines = [1.0 - 10.0**-n for n in range(1, 9)]
    return [share for share in (0.0, 0.5, *nines) if share <= highest + 1e-12]


def linear(high: float, low: float = 0.0) -> Scale:
    """A linear scale from `low` to a round value at or above `high`."""
    if not high > low:
        return Scale(low, low + 1.0)
    step = _round_step((high - low) / 5)
    return Scale(low, low + step * math.ceil((high - low) / step - 1e-9))


def logarithmic(low: float, high: float) -> Scale:
    """A logarithmic scale between round values: 1, 2 or 5 times a power of ten."""
    low = low if low > 0 else high / 1000 if high > 0 else 1e-3
    high = max(high, 2 * low)
    ticks = _log_ticks(low / 5, high * 5, every=True)
    return Scale(
        max(tick for tick in ticks if tick <= low * 1.0001), min(tick for tick in ticks if tick >= high * 0.9999), True
    )


def _round_step(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return next(times * power for times in (1.0, 2.0, 2.5, 5.0, 10.0) if times * power >= step * 0.9999)


def _log_ticks(low: float, high: float, every: bool = False) -> list[float]:
    """Ticks at 1, 2, 5, 10 and so on; only powers of ten if those are too many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    of = (1.0, 2.0, 5.0) if every or math.log10(high / low) <= 3.0 else (1.0,)
    return [t for p in powers for times in of if low * 0.9999 <= (t := times * 10.0**p) <= high * 1.0001]
