"""Requests that were with a replica when it broke off: one that was with two is not sent to a third.

A request that kills its replica would otherwise kill the fleet, one replica for each time that its client, or the
person behind it, tries again. Which request did it cannot be known, so each that was there is remembered; the innocent
are served by the next replica, and forgotten.
"""

from __future__ import annotations

REPLICAS = 2
KEEP_S = 300.0
MOST = 1024


class Quarantine:
    """Known by a hash of what they ask, for `KEEP_S` seconds; of more than `most` the oldest are forgotten."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._broke: dict[int, tuple[float, frozenset[str]]] = {}
        """Until when, and with whom it was; the latest are the last."""

    def __len__(self) -> int:
        return len(self._broke)

    def is_empty(self, now: float) -> bool:
        """Whether nothing is remembered, so that no request needs to be looked at."""
        return not self._broke or self._broke[next(reversed(self._broke))][0] <= now

    def broke(self, request: int, replica: str, now: float) -> None:
        """The connection to `replica` broke off before this request had any answer."""
        until, replicas = self._broke.pop(request, (0.0, frozenset[str]()))
        self._broke[request] = now + KEEP_S, (replicas if until > now else frozenset()) | {replica}
        if len(self._broke) > self._most:
            del self._broke[next(iter(self._broke))]

    def served(self, request: int) -> None:
        """A replica survived this request."""
        self._broke.pop(request, None)

    def holds(self, request: int, now: float) -> bool:
        """Whether this request must not be sent to any replica."""
        until, replicas = self._broke.get(request, (0.0, frozenset[str]()))
        return len(replicas) >= REPLICAS and until > now
