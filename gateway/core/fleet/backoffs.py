"""Backoffs of a pool's replicas: one that refused requests as busy gets none for a while, unless all rest."""

from __future__ import annotations

import math
from typing import Final, Generic, TypeVar

from gateway.core.fleet.replica import BaseReplica

R = TypeVar("R", bound=BaseReplica)

TRIED_NEXT: Final = 0.0  # stands for the end of a backoff that is over, until the replica has accepted a request


class Backoffs(Generic[R]):
    """End of the backoff of each replica that has one. When it is over, one request tries the replica before others."""

    __slots__ = ("until",)

    def __init__(self) -> None:
        self.until: dict[R, float] = {}
        """Empty if no replica has a backoff."""

    def holds(self, replica: R) -> bool:
        """Whether `replica` rests, or is being tried after its rest."""
        until = self.until.get(replica)
        return until is not None and (until > TRIED_NEXT or replica.in_flight > 0)

    def left_s(self, replica: R, now: float) -> float:
        """Seconds of backoff left; 0 if there is none."""
        return max(0.0, self.until.get(replica, now) - now)

    def end_due(self, now: float) -> float:
        """End the backoffs that are over. Returns the time when the next one ends; inf if there is none."""
        for replica, until in self.until.items():
            if until <= now:
                self.until[replica] = TRIED_NEXT
        return min((until for until in self.until.values() if until > TRIED_NEXT), default=math.inf)

    def accepted(self, replica: R) -> None:
        """End the backoff of a replica that has accepted a request."""
        replica.refusals = 0
        self.until.pop(replica, None)
