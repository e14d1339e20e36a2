"""Requests that were with a replica when it broke off: one that was with two is not sent to a third.

A request that kills its replica would otherwise kill the fleet, one replica for each time that it is tried again, by
us, by its client or by the person behind it. Which request did it cannot be known, so each that was there is
remembered; the innocent are served by the next replica, and forgotten. A connection that breaks off is no death yet: it
counts as one until it could be known whether the replica is down, and from then on only if it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gateway.core.policy import Health

REPLICAS: Final = 2
KEEP_S: Final = 300.0
MAX: Final = 1024
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
class _Break:
    at: float
    until: float
    """Then it counts no more."""


@dataclass(slots=True)
class _Suspect:
    breaks: dict[str, _Break]
    """By replica."""
    caught: bool = False
    refused: int = 0
    tell_at: float = 0.0

    def deaths(self, now: float) -> int:
        return sum(one.until > now for one in self.breaks.values())


def doubt_s(health: Health) -> float:
    """After so long it would be known of a replica that it is down, even if each check hangs."""
    return health.failures * (health.interval_s + health.timeout_s)


class Quarantine:
    """Known by a hash of what they ask, for `KEEP_S` seconds; of more than `most` the oldest are forgotten."""

    def __init__(self, most: int = MAX) -> None:
        self._most = most
        self._broke: dict[int, _Suspect] = {}
        """The latest are the last."""
        self._until = 0.0
        """When all of them count no more."""

    def __len__(self) -> int:
        return len(self._broke)

    def is_empty(self, now: float) -> bool:
        """Whether nothing is remembered, so that no request needs to be looked at."""
        return not self._broke or self._until <= now

    def broke(self, request: int, replica: str, is_down: bool, doubt_s: float, now: float) -> None:
        """The connection to `replica` broke off before any of its answer to this request was passed on.

        `doubt_s`: how long it may take until it is known to be down, if it is not yet.
        """
        suspect = self._broke.pop(request, None) or _Suspect({})
        suspect.breaks = {name: one for name, one in suspect.breaks.items() if one.until > now}
        before, last = len(suspect.breaks), suspect.breaks.get(replica)
        until = max(0.0 if last is None else last.until, now + (KEEP_S if is_down else doubt_s))
        suspect.breaks[replica] = _Break(now, until)
        self._until = max(self._until, until)
        suspect.caught = suspect.caught or before < REPLICAS <= len(suspect.breaks)
        self._broke[request] = suspect
        if len(self._broke) > self._most:
            del self._broke[next(iter(self._broke))]

    def died(self, replica: str, now: float) -> None:
        """It is known to be down: what broke off there of late was its death."""
        for suspect in self._broke.values():
            one = suspect.breaks.get(replica)
            if one is not None and one.until > now:
                one.until = one.at + KEEP_S
                self._until = max(self._until, one.until)

    def served(self, request: int) -> None:
        """A replica survived this request."""
        self._broke.pop(request, None)

    def knows(self, request: int, now: float) -> bool:
        """Whether any replica broke off with this request lately."""
        suspect = self._broke.get(request)
        return suspect is not None and suspect.deaths(now) > 0

    def bars(self, request: int, now: float) -> bool:
        """Whether this request must not be sent to any replica."""
        suspect = self._broke.get(request)
        return suspect is not None and suspect.deaths(now) >= REPLICAS

    def refuses(self, request: int, now: float) -> bool:
        """The same of one that has come anew; if so, it is counted as refused."""
        if not self.bars(request, now):
            return False
        self._broke[request].refused += 1
        return True

    def news(self, now: float) -> list[News]:
        """What is to be told of requests in quarantine, once: the core itself writes no log."""
        found = []
        for request, suspect in self._broke.items():
            refused = suspect.refused if now >= suspect.tell_at else 0
            if suspect.caught or refused:
                found.append(News(request, tuple(suspect.breaks), suspect.caught, refused))
                suspect.caught = False
            if refused:
                suspect.refused, suspect.tell_at = 0, now + TELL_EVERY_S
        return found
