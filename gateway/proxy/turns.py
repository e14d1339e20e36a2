"""Shares the event loop between tenants for work on bodies: decoding, parsing and checking.

Most bodies are short, and are worked on at once. A long body waits for its turn, and so does each body of a tenant
that has used more than its share of the loop. Turns go to the tenant that has used least. After each turn the loop is
free for other work, three times as long as the turn took.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Final, TypeAlias

SHARE: Final = 0.25
"""Share of the loop that one tenant may use before its bodies wait, and the share of all waiting bodies together. Other
requests then take a third longer (1 / (1 - SHARE)).
"""
TINY_BYTES: Final = 4 * 1024
"""A body up to this size never waits, and is not charged: it costs less than the rest of its request."""
SHORT_BYTES: Final = 64 * 1024
"""A body up to this size need not wait: reading it takes less than a millisecond, and some 5 ms if it is hostile."""
AHEAD_S: Final = 0.05
"""A tenant may be ahead of its share by as much as the longest single turn."""
ALONE_S: Final = 1.0
"""A tenant has the loop to itself if no other sent a request for this long."""

Part: TypeAlias = Callable[[], None]
"""A function that does one part of a work, charges it, and calls `add` with itself if more is left. It never raises."""


class Turns:
    """Parts of work that wait, by tenant, and the time that each tenant has used."""

    __slots__ = ("_clock", "_free_at", "_is_armed", "_latest", "_parts", "_shared_until", "_used_until")

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._parts: dict[str, deque[Part]] = {}
        self._is_armed = False
        self._free_at = 0.0
        """Time until which no waiting part is run."""
        self._used_until: dict[str, float] = {}
        """By tenant: the time at which its share will have caught up with its use."""
        self._latest = ""
        """Tenant of the latest work. `_shared_until`: until when it counts as not alone."""
        self._shared_until = 0.0

    def may_start(self, tenant: str, size: int) -> bool:
        """Whether work on a body of `size` bytes may start at once. If not, it must wait for its turn."""
        if size <= TINY_BYTES:
            return True
        is_ahead = self._used_until.get(tenant, 0.0) > self._clock() + AHEAD_S
        return size <= SHORT_BYTES and not is_ahead and tenant not in self._parts

    def begin(self) -> float:
        """The time at which a piece of work begins, for `end`."""
        return self._clock()

    def end(self, tenant: str, since: float) -> None:
        """Charge a tenant for work that began at `since` and ends now."""
        now = self._clock()
        took = now - since
        if tenant != self._latest:
            self._latest, self._shared_until = tenant, now + ALONE_S
        before = self._used_until.get(tenant, 0.0)
        charged = took / SHARE if now < self._shared_until else took
        self._used_until[tenant] = (before if before > since else since) + charged

    def add(self, tenant: str, part: Part) -> None:
        """Queue a part of a tenant's work."""
        waiting = self._parts.get(tenant)
        if waiting is None:
            waiting = self._parts[tenant] = deque()
        waiting.append(part)
        if not self._is_armed:
            self._arm()

    def sweep(self) -> None:
        """Forget tenants that are not ahead of their share."""
        now = self._clock()
        self._used_until = {tenant: until for tenant, until in self._used_until.items() if until > now}

    def _arm(self) -> None:
        self._is_armed = True
        delay_s = self._free_at - self._clock()
        loop = asyncio.get_running_loop()
        if delay_s > 0.0:
            loop.call_later(delay_s, self._run)
        else:
            loop.call_soon(self._run)

    def _run(self) -> None:
        tenant = min(self._parts, key=self._used)
        waiting = self._parts[tenant]
        part = waiting.popleft()
        if not waiting:
            del self._parts[tenant]
        since = self._clock()
        part()
        self._free_at = since + (self._clock() - since) / SHARE
        self._is_armed = False
        if self._parts:
            self._arm()

    def _used(self, tenant: str) -> float:
        return self._used_until.get(tenant, 0.0)
