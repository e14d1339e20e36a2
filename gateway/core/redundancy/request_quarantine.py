"""Quarantine: a request that was at two replicas when their connections broke is not sent to a third.

Without quarantine, a request that kills its replica would kill the fleet: one replica for each retry by us, by its
client or by its user. Nobody can tell which request at a dead replica killed it, so all of them are suspects. A suspect
that another replica serves is cleared. A broken connection need not mean that the replica died. It counts as a death
until health checks would have noticed a death. After that, it counts only if the replica is down.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gateway.core.pool_spec import Health

REPLICAS: Final = 2
KEEP_S: Final = 300.0
MAX: Final = 1024
TELL_EVERY_S: Final = 60.0
"""Refusals of one request are reported at most once in this time."""


@dataclass(frozen=True, slots=True)
class News:
    """Report on one request in quarantine: what happened to it since its last report."""

    request: int
    replicas: tuple[str, ...]
    """Replicas whose connection broke while they had the request."""
    caught: bool
    """Whether the request was put into quarantine since the last report."""
    refused: int


@dataclass(slots=True)
class _Break:
    at: float
    until: float
    """Time until which the broken connection counts as a death."""


@dataclass(slots=True)
class _Suspect:
    breaks: dict[str, _Break]
    """The latest broken connection, by replica."""
    caught: bool = False
    refused: int = 0
    tell_at: float = 0.0

    def deaths(self, now: float) -> int:
        return sum(one.until > now for one in self.breaks.values())


def doubt_s(health: Health) -> float:
    """Seconds after which health checks must have noticed a dead replica, even if each check hangs. The check under way
    when it dies may still pass.
    """
    return (health.failures + 1) * (health.interval_s + health.timeout_s)


class Quarantine:
    """Suspects, by the hash of the request body, kept for `KEEP_S` seconds. Beyond `most` suspects the oldest is
    forgotten.
    """

    def __init__(self, most: int = MAX) -> None:
        self._most = most
        self._broke: dict[int, _Suspect] = {}
        """Suspects by hash; the latest is the last."""
        self._until = 0.0
        """Time from which no suspect counts any more."""

    def __len__(self) -> int:
        return len(self._broke)

    def is_empty(self, now: float) -> bool:
        """Whether there is no suspect, so that bodies need not be hashed."""
        return not self._broke or self._until <= now

    def broke(self, request: int, replica: str, is_down: bool, doubt_s: float, now: float) -> None:
        """Record that the connection to `replica` broke before any part of its answer to this request was forwarded.

        `request`: hash of the body. `doubt_s`: seconds until health checks must have noticed that the replica is down.
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
        """Record that `replica` is down. So its recent broken connections count as a death for `KEEP_S`."""
        for suspect in self._broke.values():
            one = suspect.breaks.get(replica)
            if one is not None and one.until > now:
                one.until = one.at + KEEP_S
                self._until = max(self._until, one.until)

    def served(self, request: int) -> None:
        """Clear a request that a replica survived."""
        self._broke.pop(request, None)

    def knows(self, request: int, now: float) -> bool:
        """Whether the connection of any replica broke lately while it had this request."""
        suspect = self._broke.get(request)
        return suspect is not None and suspect.deaths(now) > 0

    def bars(self, request: int, now: float) -> bool:
        """Whether this request must not be sent to any replica."""
        suspect = self._broke.get(request)
        return suspect is not None and suspect.deaths(now) >= REPLICAS

    def refuses(self, request: int, now: float) -> bool:
        """Whether a new request must not be sent to any replica. If so, it is counted as refused."""
        if not self.bars(request, now):
            return False
        self._broke[request].refused += 1
        return True

    def news(self, now: float) -> list[News]:
        """New reports on requests in quarantine; each is returned once. The caller logs them, since the core writes no
        log.
        """
        found = []
        for request, suspect in self._broke.items():
            refused = suspect.refused if now >= suspect.tell_at else 0
            if suspect.caught or refused:
                found.append(News(request, tuple(suspect.breaks), suspect.caught, refused))
                suspect.caught = False
            if refused:
                suspect.refused, suspect.tell_at = 0, now + TELL_EVERY_S
        return found
