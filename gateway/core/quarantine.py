"""Requests that were with a replica when it broke off: one that was with two is not sent to a third.

A request that kills its replica would otherwise kill the fleet, one replica for each time that its client, or the
person behind it, tries again. Which request did it cannot be known, so each that was there is remembered; the innocent
are served by the next replica, and forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

REPLICAS: Final = 2
KEEP_S: Final = 300.0
MOST: Final = 1024
TELL_EVERY_S: Final = 60.0
"""Refusals of one request are told of no more often."""


@dataclass(frozen=True, slots=True)
class News:
    """Of one request in quarantine, since it was last told of."""

    request: int
    replicas: tuple[str, ...]
    """Those that broke off while they had it."""
    caught: bool
    """Whether it is only now in quarantine."""
    refused: int


@dataclass(slots=True)
class _Suspect:
    until: float
    replicas: tuple[str, ...]
    caught: bool = False
    refused: int = 0
    tell_at: float = 0.0


class Quarantine:
    """Known by a hash of what they ask, for `KEEP_S` seconds; of more than `most` the oldest are forgotten."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._broke: dict[int, _Suspect] = {}
        """The latest are the last."""

    def __len__(self) -> int:
        return len(self._broke)

    def is_empty(self, now: float) -> bool:
        """Whether nothing is remembered, so that no request needs to be looked at."""
        return not self._broke or self._broke[next(reversed(self._broke))].until <= now

    def broke(self, request: int, replica: str, now: float) -> None:
        """The connection to `replica` broke off before this request had any answer."""
        suspect = self._broke.pop(request, None)
        if suspect is None or suspect.until <= now:
            suspect = _Suspect(now, ())
        suspect.until = now + KEEP_S
        if replica not in suspect.replicas:
            suspect.replicas = (*suspect.replicas, replica)
            suspect.caught = suspect.caught or len(suspect.replicas) == REPLICAS
        self._broke[request] = suspect
        if len(self._broke) > self._most:
            del self._broke[next(iter(self._broke))]

    def served(self, request: int) -> None:
        """A replica survived this request."""
        self._broke.pop(request, None)

    def knows(self, request: int, now: float) -> bool:
        """Whether any replica broke off with this request lately."""
        suspect = self._broke.get(request)
        return suspect is not None and suspect.until > now

    def holds(self, request: int, now: float) -> bool:
        """Whether this request must not be sent to any replica; one that must not is counted as refused."""
        suspect = self._broke.get(request)
        if suspect is None or len(suspect.replicas) < REPLICAS or suspect.until <= now:
            return False
        suspect.refused += 1
        return True

    def news(self, now: float) -> list[News]:
        """What is to be told of requests in quarantine, once: the core itself writes no log."""
        found = []
        for request, suspect in self._broke.items():
            refused = suspect.refused if now >= suspect.tell_at else 0
            if suspect.caught or refused:
                found.append(News(request, suspect.replicas, suspect.caught, refused))
                suspect.caught = False
            if refused:
                suspect.refused, suspect.tell_at = 0, now + TELL_EVERY_S
        return found
