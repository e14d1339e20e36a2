"""Watches every replica of the policy in force."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from itertools import groupby

from gateway.core.policy import Policy
from gateway.core.pool_spec import PoolSpec, ReplicaSpec
from gateway.core.request import Random
from gateway.core.sample import Sample
from gateway.core.serving import open_catch_all
from gateway.fleet.board import ModelBoard
from gateway.fleet.engine_times import EngineTimes
from gateway.fleet.metrics_text import scrapes
from gateway.fleet.replica import ReplicaWatch
from gateway.fleet.target import ReplicaReport, Target, Tools

# Seconds between the starts of two watches, so that a start or a reload causes no burst.
_STAGGER_S = 0.01
READS_PER_S = 500.0
"""Most health checks and scrapes per second, of all replicas together: a fifth of a core. A larger fleet is read less
often.
"""


@dataclass(slots=True)
class _Running:
    watch: ReplicaWatch
    task: asyncio.Task[None] | None = None


class FleetWatcher:
    """Watches the replicas of the policy in force. A watch starts when a replica appears, and ends when it is removed
    or its settings change.

    `on_sample(replica, sample)` gets a `Sample(healthy=…)` for each health check. It gets a `Sample(waiting=…,
    running=…, kv_fraction=…)` for each page of metrics that could be read, and a `Sample(context_tokens=…)` for each
    list of models with lengths.
    """

    def __init__(
        self,
        on_sample: Callable[[str, Sample], None],
        board: ModelBoard,
        *,
        clock: Callable[[], float],
        random: Random,
        on_bug: Callable[[Exception], None],
        is_out: Callable[[str], bool],
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        models_interval_s: float = 30.0,
    ) -> None:
        """`clock`: monotonic seconds, for the times of readings. `random`: draws the jitter of pauses. `pause`: waits.

        `on_bug`: called with an exception that a reading raised. The reading counts as failed, and its loop goes on.
        `is_out`: whether the replica of a name gets no requests. It is probed.
        """
        self.times = EngineTimes()
        self._tools = Tools(
            on_sample, board, clock, random, pause, models_interval_s, on_bug, is_out, self.times, self._stretch
        )
        self._running: dict[str, _Running] = {}
        self._stretched = 1.0
        self._group: asyncio.TaskGroup | None = None
        self._stop = asyncio.Event()

    def configure(self, policy: Policy) -> None:
        """Watch the replicas of `policy` from now on. Replicas that stay are watched without interruption."""
        targets = {target.name: target for target in _targets(policy)}
        urls = {name: running.watch.target.url for name, running in self._running.items()}
        for name, running in list(self._running.items()):
            target, before = targets.get(name), running.watch.target
            if target != before:
                del self._running[name]
                if running.task is not None:
                    running.task.cancel()
            elif target is not None:
                running.watch.retarget(target)
            for spec in before.replicas:
                if target is None or spec not in target.replicas:
                    self._tools.board.forget(spec.name)
                    self.times.forget(spec.name)
        for name, target in targets.items():
            if name not in self._running:
                is_cold = self._group is not None and urls.get(name) != target.url
                self._running[name] = _Running(ReplicaWatch(target, self._tools, is_cold=is_cold))
        wanted_per_s = sum(map(_reads_per_s, targets.values()))
        self._stretched = max(1.0, wanted_per_s / READS_PER_S)
        self._start()

    def _stretch(self) -> float:
        return self._stretched

    async def run(self) -> None:
        """Watch until `aclose`. An exception from this method is a bug, in this package or in `on_sample`."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                self._start()
                await self._stop.wait()
            finally:
                self._group = None
                for running in self._running.values():
                    if running.task is not None:
                        running.task.cancel()

    async def aclose(self) -> None:
        """End `run`, and close every connection."""
        self._stop.set()
        tasks = [running.task for running in self._running.values() if running.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def checked(self) -> None:
        """Wait for the first health check of each found replica."""
        for running in list(self._running.values()):
            if running.watch.target.replicas[0].is_found:
                await running.watch.checked.wait()

    # ---- for connections to replicas

    def lost(self, server: str) -> None:
        """A connection to `server` was lost or refused."""
        running = self._running.get(server)
        if running is not None:
            running.watch.lost()

    def is_list_old(self, server: str) -> bool:
        """Whether the models of `server` must be read again before it gets a request on a new connection."""
        running = self._running.get(server)
        return running is not None and running.task is not None and running.watch.is_list_old

    async def fresh_list(self, server: str) -> frozenset[str] | None:
        """Names that `server` takes, read again if the last list is old; None if they are unknown."""
        running = self._running.get(server)
        return None if running is None else await running.watch.fresh_list()

    def asleep(self, pool: str) -> list[Target]:
        """The servers of a pool that sleep, by their last health check."""
        watches = [running.watch for running in self._running.values()]
        return [watch.target for watch in watches if watch.is_asleep and watch.target.pool == pool]

    def reports(self) -> tuple[ReplicaReport, ...]:
        """The state of the readings of each replica, in the policy's order."""
        return tuple(report for running in self._running.values() for report in running.watch.reports())

    def _start(self) -> None:
        """Begin every waiting watch."""
        if self._group is None:
            return
        waiting = [running for running in self._running.values() if running.task is None]
        for place, running in enumerate(waiting):
            # Starts are spread over the interval: connecting to a thousand replicas in one turn would block the loop.
            delay_s = place * min(_STAGGER_S, running.watch.target.health.interval_s / len(waiting))
            running.task = self._group.create_task(running.watch.run(delay_s), name=running.watch.target.name)


def _reads_per_s(target: Target) -> float:
    """Health checks and scrapes per second, as written."""
    health = target.health
    return 1.0 / health.interval_s + (1.0 / health.scrape_interval_s if scrapes(target.engine) else 0.0)


def _targets(policy: Policy) -> list[Target]:
    return [target for pool in policy.pools.values() for target in _targets_in(policy, pool)]


def _targets_in(policy: Policy, pool: PoolSpec) -> Iterator[Target]:
    asked = _asked(policy, pool)
    catch_all = open_catch_all(policy)
    takes_any = not asked and catch_all is not None and pool.name in catch_all.pools
    for _, ranks in groupby(pool.replicas, key=_server):
        may_sleep = pool.hold is not None and pool.hold.wakes_sleeping
        yield Target(tuple(ranks), pool.name, pool.engine, pool.health, pool.access, asked, takes_any, may_sleep)


def _asked(policy: Policy, pool: PoolSpec) -> frozenset[str]:
    """Names of the models that the policy asks the replicas of a pool for."""
    return frozenset(
        model.sent_as(model.name)
        for model in policy.models.values()
        if pool.name in model.pools and not model.split and (model.upstream or not model.any_name)
    )


def _server(spec: ReplicaSpec) -> str:
    return spec.server
