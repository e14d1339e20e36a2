"""Search for the best static cap in hindsight: from coarse to fine in slots, then over waits."""

from __future__ import annotations

from abc import ABC, abstractmethod

WAITS = (0.05, 0.2, 0.5, 0.9)
FIRST_WAIT = 0.5
HALVINGS = 5
NEAR = (1.4, 1.2)
AS_GOOD_AS_ALL = 0.9995
"""Goodput at which the search stops: more candidates would gain nothing."""

Key = tuple[int, float]
"""Slots, and the share of the objective that a request may wait."""


class CapSearch(ABC):
    """Tries caps of at most `seats` slots. A subclass runs a cap, and keeps the goodput by which caps are compared."""

    def __init__(self, seats: int) -> None:
        self._seats = seats
        self._tried: set[Key] = set()

    @abstractmethod
    def run(self, key: Key) -> None:
        """Try one cap."""

    def try_cap(self, slots: int, wait: float) -> None:
        """Try the cap that is nearest to this one, unless it was tried before."""
        key = min(max(slots, 1), self._seats), wait
        if key not in self._tried:
            self._tried.add(key)
            self.run(key)

    def begin(self) -> None:
        """Try all seats, half of them, a quarter, and so on."""
        for power in range(HALVINGS + 1):
            self.try_cap(self._seats >> power, FIRST_WAIT)

    def refine(self, found: dict[Key, float]) -> None:
        """Try caps near the best of `found`, in slots and then in waits. `found` has the goodput of caps, and grows."""
        for step in NEAR:
            if found and max(found.values()) < AS_GOOD_AS_ALL:
                slots, wait = best_of(found)
                for near in (round(slots / step), round(slots * step)):
                    self.try_cap(near, wait)
        if found and max(found.values()) < AS_GOOD_AS_ALL:
            slots, _ = best_of(found)
            for wait in WAITS:
                self.try_cap(slots, wait)


def best_of(found: dict[Key, float]) -> Key:
    """The cap with the highest goodput."""
    return max(found, key=found.__getitem__)
