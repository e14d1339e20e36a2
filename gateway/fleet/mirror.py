"""Sends copies of requests to shadow pools. Their answers are discarded; only their results are counted."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from gateway.core.policy import Mirror, Model, Policy
from gateway.core.pool_spec import PoolSpec, ReplicaSpec
from gateway.core.request import Endpoint
from gateway.core.results import MirrorResult
from gateway.fleet.fault import Failed, ReadFault
from gateway.fleet.fetch import Fetcher

MAX_BYTES: Final = 32 * 1024 * 1024
"""Limit on the total bytes of the bodies of copies under way."""
SHEDDING_S: Final = 5.0
"""After the gateway has refused a request for lack of capacity, no copies are sent for this long."""


class Mirrors:
    """Decides which requests are copied, and sends the copies. A copy that fails is counted and forgotten."""

    def __init__(
        self,
        policy: Policy,
        clock: Callable[[], float],
        is_out: Callable[[str], bool],
        takes: Callable[[str, str], bool],
        told: Callable[[str, str, MirrorResult], None],
        on_bug: Callable[[Exception], None],
    ) -> None:
        """`is_out`: whether the replica of a name gets no requests. `takes`: takes a replica and a model, and
        returns whether the replica may serve it. `told`: called with model, pool and result of each copy.
        """
        self._clock = clock
        self._is_out = is_out
        self._takes = takes
        self._told = told
        self._on_bug = on_bug
        self._due: dict[str, float] = {}
        """By model: the sum of shares since the last copy, 0-1. At 1 the next copy is due."""
        self._under_way: Counter[str] = Counter()
        """Number of copies under way, by replica."""
        self._bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._shed_at = -SHEDDING_S
        self.configure(policy)

    def configure(self, policy: Policy) -> None:
        """Apply a policy. Copies under way go on."""
        self._pools = policy.pools

    @property
    def under_way(self) -> int:
        """Number of copies under way."""
        return len(self._tasks)

    def busy(self) -> Mapping[str, int]:
        """Number of copies under way, by replica."""
        return dict(self._under_way)

    def shed(self) -> None:
        """Send no copies for `SHEDDING_S`, because the gateway has refused a request for lack of capacity."""
        self._shed_at = self._clock()

    def admits(self, model: Model, size: int) -> bool:
        """Whether this request of a mirrored model is copied. `size`: bytes of its body.

        A copy is due at every 1/share-th request. If there is no room for it, it is skipped and counted.
        """
        mirror = model.mirror
        if mirror is None:
            return False
        due = self._due.get(model.name, 0.0) + mirror.share
        self._due[model.name] = due % 1.0 if due >= 1.0 else due
        if due < 1.0:
            return False
        result = MirrorResult.OK
        if self._clock() - self._shed_at < SHEDDING_S:
            result = MirrorResult.SHEDDING
        elif not self._has_room(mirror, size):
            result = MirrorResult.FULL
        if result is not MirrorResult.OK:
            self._told(model.name, mirror.to, result)
        return result is MirrorResult.OK

    def send(self, model: Model, name: str, endpoint: Endpoint, body: bytes, rid: bytes, total_s: float) -> None:
        """Send a copy that `admits` accepted. `name`: of the model in `body`. `total_s`: its timeout in seconds."""
        mirror = model.mirror
        assert mirror is not None
        pool = self._pools.get(mirror.to)
        replica = None if pool is None else self._least_busy(pool, name)
        if pool is None or replica is None:
            self._told(model.name, mirror.to, MirrorResult.FAILED)
            return
        fetcher = Fetcher(
            replica.url + endpoint.value,
            access=pool.access,
            timeout_s=total_s,
            limit_bytes=None,
            body=body,
            request_id=rid,
            dp_rank=replica.dp_rank,
        )
        task = asyncio.get_running_loop().create_task(self._copy(model.name, pool.name, fetcher))
        self._tasks.add(task)
        self._under_way[replica.name] += 1
        self._bytes += len(body)
        task.add_done_callback(lambda done: self._over(done, replica.name, len(body)))

    async def ended(self) -> None:
        """Wait until the copies under way have ended."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def aclose(self) -> None:
        """Cancel all copies under way."""
        for task in self._tasks:
            task.cancel()
        await self.ended()

    def _has_room(self, mirror: Mirror, size: int) -> bool:
        pool = self._pools.get(mirror.to)
        if pool is None or self._bytes + size > MAX_BYTES:
            return False
        replicas = [replica.name for replica in pool.replicas]
        limit = mirror.limit if pool.slots is None else min(mirror.limit, pool.slots * len(replicas))
        return sum(self._under_way[name] for name in replicas) < limit

    def _least_busy(self, pool: PoolSpec, model: str) -> ReplicaSpec | None:
        fit = [each for each in pool.replicas if not self._is_out(each.name) and self._takes(each.name, model)]
        return min(fit, key=lambda replica: self._under_way[replica.name], default=None)

    async def _copy(self, model: str, pool: str, fetcher: Fetcher) -> None:
        try:
            answer = await fetcher.get()
        except Exception as error:  # noqa: BLE001 - a bug affects only this copy
            self._on_bug(error)
            answer = Failed(ReadFault.GARBAGE, f"a bug of the gateway: {type(error).__name__}")
        finally:
            fetcher.close()
        self._told(model, pool, MirrorResult.FAILED if isinstance(answer, Failed) else MirrorResult.OK)

    def _over(self, task: asyncio.Task[None], replica: str, size: int) -> None:
        self._tasks.discard(task)
        self._bytes -= size
        self._under_way[replica] -= 1
        if not self._under_way[replica]:
            del self._under_way[replica]
