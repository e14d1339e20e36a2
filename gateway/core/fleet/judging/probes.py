"""Probes of a pool's ejected replicas: requests that show whether one is still an outlier.

A request that could be served elsewhere pays for it, so probes are few, and of the least urgent tier if one comes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter
from typing import Final, Generic, TypeVar

from gateway.core.fleet.health.evidence import EjectionReason
from gateway.core.fleet.replica import BaseReplica
from gateway.core.pool_spec import Ejection
from gateway.core.request import Request
from gateway.core.serving import sent_name

R = TypeVar("R", bound=BaseReplica)

PROBE_EVERY: Final = 200  # at most one request in this many is a probe, so that probes do not decide a pool's p99
PROBE_LATEST_S: Final = 60.0  # after this time a probe may be sent although fewer requests than `PROBE_EVERY` came
MAX_URGENT: Final = -(2**31)
_tried_at: Final = attrgetter("health.tried_at")


class Probes(Generic[R]):
    """Ejected replicas that are due for a probe, and the requests that may be used."""

    __slots__ = ("_acquired", "_sent_at", "due", "least_urgent", "priority")

    def __init__(self) -> None:
        self.due: list[R] = []
        """First the replica whose last probe is the oldest."""
        self.priority = 0
        """Only requests of tiers with this priority, or less urgent ones, are used."""
        self.least_urgent = 0
        """Priority of the least urgent tier that may use the pool."""
        self._acquired, self._sent_at = -PROBE_EVERY, -math.inf
        """Number of slots acquired in the pool, and the time, when the last probe was sent."""

    def find(self, meant: Sequence[R], every_s: float, now: float) -> None:
        """Find the replicas that are due, among those in use. `every_s`: seconds between two probes of a replica."""
        self.due = []
        self.priority = self.least_urgent
        for replica in meant:
            health = replica.health
            is_in_there = any(prompt.opened_at >= health.tried_at for prompt in replica.reading.values())
            if not is_in_there and health.may_be_tried(replica.in_flight, now):
                self.due.append(replica)
                if now - health.probe_at >= every_s:
                    self.priority = MAX_URGENT  # no request of the least urgent tier came, so any tier may probe
        self.due.sort(key=_tried_at)

    def take(self, request: Request, ejection: Ejection, acquired: int, now: float) -> R | None:
        """The ejected replica that `request` is sent to; None if it is no probe. `acquired`: slots acquired so far in
        the pool.
        """
        if request.tier.priority < self.priority:
            return None
        name = sent_name(request)
        is_due = acquired - self._acquired >= PROBE_EVERY or now - self._sent_at >= PROBE_LATEST_S
        for replica in self.due:
            is_wanted = is_due or replica.health.proven > 0.0 or replica.health.out is EjectionReason.FAILING
            if is_wanted and replica.takes_name(name):
                if not replica.health.proven:
                    self._acquired, self._sent_at = acquired, now
                self.due.remove(replica)
                replica.health.try_it(ejection, now)
                return replica
        return None
