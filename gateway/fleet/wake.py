"""Calls a URL when requests wait for a pool without a replica, so that something starts one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from gateway.core.policy import Policy
from gateway.core.pool_spec import ReplicaAccess
from gateway.fleet.fault import Failed
from gateway.fleet.fetch import Fetcher

log = logging.getLogger("tailgate.fleet")

POLL_S: Final = 0.25
TIMEOUT_S: Final = 10.0
FIRST_PAUSE_S: Final = 10.0
MAX_PAUSE_S: Final = 120.0
LIMIT_BYTES: Final = 64 * 1024


class Waker:
    """Calls the URLs of pools with requests on hold: at once, and then with pauses that double."""

    def __init__(self, on_hold: Callable[[], Mapping[str, int]], clock: Callable[[], float]) -> None:
        """`on_hold`: returns the number of requests on hold by pool; pools without any may be left out."""
        self._on_hold = on_hold
        self._clock = clock
        self._urls: dict[str, str] = {}
        self._next: dict[str, tuple[float, float]] = {}
        """By pool with requests on hold: time of the next call, and the pause after it."""

    def configure(self, policy: Policy) -> None:
        """Apply a policy."""
        self._urls = {
            name: spec.hold.wake_url for name, spec in policy.pools.items() if spec.hold and spec.hold.wake_url
        }

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await asyncio.sleep(POLL_S)
            if self._urls:
                await asyncio.gather(*[self._call(pool) for pool in self.due(self._clock())])

    def due(self, now: float) -> list[str]:
        """Pools whose URL is called now."""
        held = self._on_hold()
        for pool in [pool for pool in self._next if not held.get(pool)]:
            del self._next[pool]
        found = []
        for pool in self._urls:
            at, pause_s = self._next.get(pool, (now, FIRST_PAUSE_S))
            if held.get(pool) and at <= now:
                found.append(pool)
                self._next[pool] = now + pause_s, min(2 * pause_s, MAX_PAUSE_S)
        return found

    async def _call(self, pool: str) -> None:
        fetcher = Fetcher(
            self._urls[pool], access=ReplicaAccess(), timeout_s=TIMEOUT_S, limit_bytes=LIMIT_BYTES, body=b"{}"
        )
        try:
            answer = await fetcher.get()
        finally:
            await fetcher.aclose()
        if isinstance(answer, Failed):
            log.warning("pool %s has requests on hold, and its wake.url failed: %s; it is called again", pool, answer)
        else:
            log.info("pool %s has requests on hold: its wake.url was called", pool)
