"""Builds all parts of the gateway and connects them. Only this file and the sockets read the real clock."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.admin_port import AdminPort, is_out
from gateway.api_side import CLOSE_GRACE_S, ApiSide
from gateway.core.controller import Controller
from gateway.core.journal.recorder import Recorded
from gateway.core.policy import Policy
from gateway.core.results import Callback
from gateway.core.sample import LimitLease
from gateway.core.snapshot import ReplicaState
from gateway.driving.hub import RelayHub
from gateway.driving.local_driver import LocalDriver
from gateway.driving.quota_clock import QuotaClock
from gateway.driving.relay_link import FrameClock
from gateway.driving.sharing import Sharing, shared_store
from gateway.driving.state_dir import StateKeeper
from gateway.fleet.board import ModelBoard
from gateway.fleet.discovery.finder import ReplicaFinder
from gateway.fleet.wake import Waker
from gateway.fleet.watch import FleetWatcher
from gateway.listener import Listener, listener, url_at
from gateway.observe.admin import MAX_BODY_BYTES, Access
from gateway.observe.console.history import STEP_S, LastHour, ReplicaCaches
from gateway.observe.exporters import metric_exporter
from gateway.observe.journal.writer import Journal
from gateway.observe.metrics.exposition import registry_in_pieces
from gateway.observe.metrics.lag import LoopLag
from gateway.observe.metrics.little import Little
from gateway.observe.metrics.metrics import Metrics
from gateway.observe.requests.records import RequestRecords
from gateway.proxy.client.asgi_connection import AsgiConnection
from gateway.proxy.limits import ConnectionLimits
from gateway.reload import PolicyReloads, PolicyUsers
from gateway.settings import Settings
from gateway.sweeper import ControllerSweeper

if TYPE_CHECKING:
    from gateway.observe.otlp.metrics import MetricExporter

log = logging.getLogger("tailgate")

MAX_ADMIN_CONNECTIONS = 64
"""Limit on connections to the admin port. It is enough for scrapers, probes, and a few operators with the console open.

A new connection beyond the limit is still accepted if an idle connection can be closed for it.
"""
ADMIN_BACKLOG = 32
"""At most this many admin connections are accepted in one turn of the event loop. Others can be closed only in a later
turn.
"""


class Gateway:
    """One gateway process: the API port, the admin port, and all parts between them and the replicas.

    `async with Gateway(...)` serves until the block is left, and then drains.
    """

    def __init__(
        self,
        settings: Settings,
        policy: Policy,
        policy_path: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
        unix_s: Callable[[], float] = time.time,
        relays: FrameClock | None = None,
    ) -> None:
        """`clock`: returns the time in seconds, for all parts. Timers are those of the event loop. `unix_s`: the Unix
        time, for quotas and kept state. `relays`: the clock of a decider, whose relays serve the API; None if this
        process serves it.
        """
        clock = clock if relays is None else relays.read
        self.settings = settings
        self.records = RequestRecords(settings, clock, self._replicas_up)
        self.metrics = Metrics(policy, self.records.ring)
        self.journal, self.controller = _deciders(settings, policy)
        self.driver = LocalDriver(self.controller, self.metrics, asyncio.get_running_loop(), clock)
        store = settings.store
        self.store = (
            None if store is None else shared_store(store.get_secret_value(), self.driver, self.metrics, self._leased)
        )
        self._sharing = None if self.store is None else Sharing(self.store, self.driver, unix_s)
        self._admin_limits = _admin_limits(settings)
        self.board = ModelBoard(int(time.time()))
        out_of_service, bug = partial(is_out, self.controller), partial(self.driver.supervisor.caught, Callback.WATCH)
        self.fleet = FleetWatcher(
            self.driver.observe, self.board, clock=clock, random=random.Random(), on_bug=bug, is_out=out_of_service
        )
        self.metrics.engine_share = self.fleet.times.queue_share
        api = self.api = ApiSide(
            settings, policy, self.driver, self.metrics, self.metrics.copied, self.board, self.fleet, out_of_service
        )
        self.handler, self.limits = api.handler, api.limits
        responses = api.services.responses
        little = Little(self.metrics, self._held_s, clock())
        self.hub: RelayHub | None = None
        load = partial(self.controller.load, STEP_S)
        self.history = LastHour(self.metrics, load, self._caches)
        quotas = QuotaClock(self.driver, unix_s)
        quotas.step(clock())
        steps: tuple[Callable[[float], None], ...] = (*api.steps, self.history.sample, quotas.step)
        if relays is not None:
            self.hub = RelayHub(self.driver, self.metrics, relays, self.fleet, responses, policy)
            self.board.on_change = self.hub.listed
        limits = (self.limits, self._admin_limits)
        tell = None if self.hub is None else self.hub.sweep
        self.sweeper = ControllerSweeper(self.driver, api.oddities, little, limits, steps, tell)
        self.finder = ReplicaFinder(clock, out_of_service, lambda: self.reloads.found(), bug)
        waker = Waker(self.controller.on_hold, self.fleet.asleep, clock)
        directory = settings.state_dir
        self._state = None if directory is None else StateKeeper(directory, self.driver, responses, unix_s)
        absent = None if self._state is None else self._state.absent
        users = PolicyUsers(self.driver, api, self.metrics, self.fleet, self.finder, waker, self.hub, absent)
        self.reloads = PolicyReloads(users, settings, policy, policy_path)
        self._lag = LoopLag(clock, partial(self.sweeper.supervised, self.metrics.roll))
        self._tasks: list[asyncio.Task[None]] = []
        self.stop = asyncio.Event()
        """Set to ask the process to drain and end."""
        self.broken = asyncio.Event()
        """Set when a part that must always run has stopped."""
        self._api = api.listener()
        if relays is not None:
            self._api.given = []  # its relays serve the API
        self._metric_exporter: MetricExporter | None = None
        self._admin, *more = self._admin_listeners()
        self._listeners = [self._api, self._admin, *more]

    def _admin_listeners(self) -> Iterator[Listener]:
        """The listener of the admin port, and that of the admin socket if there is one."""
        settings = self.settings
        admin = AdminPort(
            controller=self.controller,
            driver=self.driver,
            handler=self.handler,
            limits=self.limits,
            hub=self.hub,
            fleet=self.fleet,
            finder=self.finder,
            metrics=self.metrics,
            history=self.history,
            sweeper=self.sweeper,
            lag=self._lag,
            reloads=self.reloads,
            journal=self.journal,
            records=self.records,
            store=self.store,
            stop=self.stop,
            drain_deadline_s=settings.drain_deadline_s,
        )
        if settings.otlp_metrics:
            self._metric_exporter = metric_exporter(partial(registry_in_pieces, self.metrics, admin.sources()))
        connection = partial(AsgiConnection, self.handler, self._admin_limits)
        listens = partial(listener, http=connection, backlog=ADMIN_BACKLOG, timeout_graceful_shutdown=1)
        token = settings.admin_token
        access = Access(token.get_secret_value() if token else None, names=settings.admin_names)
        yield listens(admin.app(access), settings.admin_host, settings.admin_port)
        if settings.admin_uds is not None:
            app = admin.app(Access(None, trusted=True, names=settings.admin_names))
            yield listens(app, uds=str(settings.admin_uds))

    def _replicas_up(self) -> dict[str, int]:
        """Number of replicas that get requests, by pool."""
        return Counter(pool for pool, _, state, _ in self.controller.states() if state is ReplicaState.UP)

    def _leased(self, leases: tuple[LimitLease, ...]) -> None:
        if self.hub is not None:
            self.hub.leased(leases)

    # ---- life

    async def __aenter__(self) -> Gateway:
        parts = {
            "watch of the replicas": self.fleet.run(),
            "clock of the loop": self._lag.run(),
            "sweep": self.sweeper.run(),
            "watch of the policy": self.reloads.run(),
        }
        parts |= self.records.parts()
        if self._sharing is not None:
            parts |= self._sharing.parts()
        if self._state is not None:
            parts["state"] = self._state.run()
        if self._metric_exporter is not None:
            parts["export of metrics"] = self._metric_exporter.run()
        if self.journal is not None:
            parts["journal"] = self.journal.run()
        if self.settings.ssl_certfile is not None:
            files = self.settings.ssl_certfile, self.settings.ssl_keyfile
            parts["watch of the certificate"] = self._api.watch_certificate(*files)
        self._tasks = [asyncio.create_task(part, name=name) for name, part in parts.items()]
        for task in self._tasks:
            task.add_done_callback(self._task_ended)
        await self.reloads.begin()
        if self._state is not None:
            await self._state.begin()
        if self._sharing is not None:
            await self._sharing.begin()
        self._serving = [asyncio.create_task(each.serve(each.given)) for each in self._listeners]
        while not all(each.started for each in self._listeners):
            for serving in self._serving:
                if serving.done():
                    await self._close()
                    serving.result()
            await asyncio.sleep(0.01)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.drain()

    async def drain(self) -> None:
        """Announce the end, stop accepting, let requests finish until the deadline, end the remaining requests with an
        error, and close.
        """
        self.handler.leaving = True
        if self.settings.drain_notice_s and not self.broken.is_set():
            log.info("not ready: requests are still accepted for %.0f s", self.settings.drain_notice_s)
            with suppress(TimeoutError):
                await asyncio.wait_for(self.broken.wait(), self.settings.drain_notice_s)
        if self.hub is None:  # the requests of relays are over, and the supervisor has said so
            log.info("draining: at most %.0f s for requests under way", self.settings.drain_deadline_s)
        self.handler.draining = True
        api = self._serving[0]
        self._api.should_exit = True
        loop = asyncio.get_running_loop()
        deadline = loop.call_later(self.settings.drain_deadline_s, self.driver.shut)
        cut = loop.call_later(self.settings.drain_deadline_s + CLOSE_GRACE_S, self.limits.abort_all)
        await asyncio.wait([api])
        deadline.cancel()
        cut.cancel()
        await self._close()

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """A part that must always run has stopped.

        Without this part the gateway would fail slowly, so the process drains and ends.
        """
        if not task.cancelled() and not self.handler.draining:
            error = task.exception()
            log.critical(
                "the %s has stopped (%r), a bug of the gateway: it now drains and exits with 1; start it again, "
                "and report this",
                task.get_name(),
                error,
                exc_info=error,
            )
            self.broken.set()

    async def _close(self) -> None:
        self.handler.leaving = self.handler.draining = True
        for each in self._listeners:
            each.should_exit = True
        await asyncio.wait(self._serving)
        self._admin_limits.abort_all()
        await self.fleet.aclose()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.hub is not None:
            self.hub.close()
        if self._state is not None:
            await self._state.aclose()
        self.driver.close()
        await self.api.aclose()
        await self.records.aclose()
        if self._metric_exporter is not None:
            await self._metric_exporter.aclose()
        if self.journal is not None:
            await self.journal.aclose()

    def _caches(self) -> Iterator[ReplicaCaches]:
        for pool in self.controller.state.fleet:
            for name, replica in pool.replicas.items():
                kv = None if replica.sample is None else replica.sample.kv_fraction
                yield pool.spec.name, name, kv, replica.cache.evidence.hit_rate

    def _held_s(self, now: float) -> dict[str, float]:
        """By pool, the seconds that requests have been held, by the count of the connections of all processes."""
        held = self.api.held_s(now)
        for pool, seconds in () if self.hub is None else self.hub.held_s.items():
            held[pool] = held.get(pool, 0.0) + seconds
        return held

    @property
    def listeners(self) -> tuple[Listener, ...]:
        """The listeners of the API port, the admin port, and the admin socket if there is one."""
        return tuple(self._listeners)

    @property
    def url(self) -> str:
        """URL of the API."""
        return url_at(self.settings.host, self._api.port, is_tls=self.settings.ssl_certfile is not None)

    @property
    def admin_url(self) -> str:
        """URL of the admin port, with metrics and state."""
        return url_at(self.settings.admin_host, self._admin.port)


def _deciders(settings: Settings, policy: Policy) -> tuple[Journal | None, Controller]:
    """The journal, if one is configured, and the controller. Raises `SettingError` if the journal cannot be written."""
    seed = random.getrandbits(53)
    chance = random.Random(seed)
    if settings.journal is None:
        return None, Controller(policy, chance)
    journal = Journal(
        settings.journal,
        policy,
        seed,
        version=version("tailgate"),
        max_bytes=settings.journal_file_bytes,
        files=settings.journal_files,
    )
    return journal, Recorded(policy, chance, journal.tell)


def _admin_limits(settings: Settings) -> ConnectionLimits:
    return ConnectionLimits(
        max_body_bytes=MAX_BODY_BYTES,
        body_limit_name="",
        max_header_bytes=settings.max_header_bytes,
        receive_timeout_s=settings.receive_timeout_s,
        keep_alive_s=settings.keep_alive_s,
        write_stall_s=settings.write_stall_s,
        max_connections=MAX_ADMIN_CONNECTIONS,
        makes_room=True,
    )
