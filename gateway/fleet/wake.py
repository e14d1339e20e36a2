"""Starts or wakes replicas when requests wait for a pool without one: calls a URL, or vLLM's /wake_up."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from gateway.core.policy import Policy
from gateway.core.pool_spec import Hold, ReplicaAccess
from gateway.fleet.fault import Failed
from gateway.fleet.fetch import Fetcher
from gateway.fleet.target import Target

log = logging.getLogger("tailgate.fleet")

POLL_S: Final = 0.25
TIMEOUT_S: Final = 10.0
WAKE_UP_S: Final = 60.0
"""Timeout of /wake_up, which answers once the weights are back on the GPU."""
FIRST_PAUSE_S: Final = 10.0
MAX_PAUSE_S: Final = 120.0
LIMIT_BYTES: Final = 64 * 1024


class Waker:
    """Calls for replicas of pools with requests on hold: at once, and then with pauses that double.

    The pauses begin anew once nobody is on hold, but no pool's replicas are called for twice within the first pause.
    """

    def __init__(
        self,
        on_hold: Callable[[], Mapping[str, int]],
        asleep: Callable[[str], Sequence[Target]],
        clock: Callable[[], float],
    ) -> None:
        """`on_hold`: returns the number of requests on hold by pool; pools without any may be left out. `asleep`: the
        servers of a pool that sleep.
        """
        self._on_hold = on_hold
        self._asleep = asleep
        self._clock = clock
        self._holds: dict[str, Hold] = {}
        self._calls: dict[str, tuple[float, float]] = {}
        """By pool: time of the latest call, and the pause after it."""

    def configure(self, policy: Policy) -> None:
        """Apply a policy."""
        before = self._holds
        self._holds = {
            name: spec.hold
            for name, spec in policy.pools.items()
            if spec.hold is not None and (spec.hold.wake_url or spec.hold.wakes_sleeping)
        }
        for pool in [pool for pool in self._calls if self._holds.get(pool) != before.get(pool)]:
            del self._calls[pool]  # the new URL may be the right one

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as calls:
            while True:
                await asyncio.sleep(POLL_S)
                for pool in self.due(self._clock()) if self._holds else ():
                    hold = self._holds[pool]
                    if hold.wake_url:
                        calls.create_task(self._call(pool, hold.wake_url, ReplicaAccess(), TIMEOUT_S))
                    for target in self._asleep(pool) if hold.wakes_sleeping else ():
                        calls.create_task(self._call(pool, f"{target.url}/wake_up", target.access, WAKE_UP_S))

    def due(self, now: float) -> list[str]:
        """Pools whose replicas are called for now."""
        held = self._on_hold()
        found = []
        for pool in self._holds:
            called_at, pause_s = self._calls.get(pool, (-math.inf, 0.0))
            if not held.get(pool):
                self._calls[pool] = called_at, FIRST_PAUSE_S if called_at + FIRST_PAUSE_S > now else 0.0
            elif called_at + pause_s <= now:
                found.append(pool)
                self._calls[pool] = now, min(2 * pause_s, MAX_PAUSE_S) or FIRST_PAUSE_S
        return found

    async def _call(self, pool: str, url: str, access: ReplicaAccess, timeout_s: float) -> None:
        fetcher = Fetcher(url, access=access, timeout_s=timeout_s, limit_bytes=LIMIT_BYTES, body=b"{}")
        try:
            answer = await fetcher.get()
        finally:
            fetcher.close()
        what = "/wake_up of a replica that sleeps" if timeout_s == WAKE_UP_S else "wake.url"
        if isinstance(answer, Failed):
            log.warning("pool %s has requests on hold, and its %s failed: %s; it is called again", pool, what, answer)
        else:
            log.info("pool %s has requests on hold: its %s was called", pool, what)
