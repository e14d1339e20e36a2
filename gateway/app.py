"""Builds every part of the gateway and joins them; nothing but the sockets and this reads the real clock."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from time import monotonic

from gateway.admin_door import BACKLOG as ADMIN_BACKLOG
from gateway.admin_door import MAX_CONNECTIONS as MAX_ADMIN_CONNECTIONS
from gateway.admin_door import AdminDoor
from gateway.core.controller import Controller
from gateway.core.journal.recorder import Recorded
from gateway.core.policy import Policy
from gateway.core.request import Callback
from gateway.core.snapshot import ReplicaState
from gateway.fleet.board import ModelBoard
from gateway.fleet.counts import EngineCounts
from gateway.fleet.replica import Reading
from gateway.fleet.watch import FleetWatcher
from gateway.listener import Listener, listener, no_app
from gateway.observe.admin import MAX_BODY_BYTES, Access, Done, admin_app
from gateway.observe.journal.writer import Journal
from gateway.observe.logs import AccessLog, log_quarantine
from gateway.observe.metrics.lag import LoopLag
from gateway.observe.metrics.little import Little
from gateway.observe.metrics.metrics import Metrics
from gateway.observe.sources import Reload, Sources, Watched
from gateway.policy.errors import PolicyError, PolicyErrors
from gateway.policy.exposure import exposure_error
from gateway.policy.watch import PolicyWatcher
from gateway.proxy.driver import Driver
from gateway.proxy.handler import Callers, RequestHandler, TokenCounter, callers_of
from gateway.proxy.limits import SWEEP_S, ConnectionLimits
from gateway.proxy.replica.oddities import Oddities
from gateway.proxy.replica.upstream import Upstreams
from gateway.proxy.server import ClientConnection
from gateway.settings import Settings
from gateway.wire.answers.oddity import Oddity
from gateway.wire.tokens import TokenizerError, Tokenizers

log = logging.getLogger("tailgate")

UP = ReplicaState.UP
SPARE_DESCRIPTORS = 128
WATCHES = 3
"""Connections that read one replica: health, metrics, models."""
# After the drain deadline, error events have been written; clients that do not take them are cut off after this.
CLOSE_GRACE_S = 2.0


@dataclass(frozen=True, slots=True)
class Prepared:
    """A policy, and what takes long to make of it."""

    policy: Policy
    counters: dict[str, TokenCounter]
    callers: Callers


class Gateway:
    """One gateway process: the API port, the admin port, and everything between them and the replicas.

    `async with Gateway(...)` serves until the block is left, and then drains.
    """

    def __init__(self, settings: Settings, policy: Policy, policy_path: Path | None = None) -> None:
        self.settings = settings
        self.metrics = Metrics(policy)
        self._oddities = Oddities(self.metrics)
        self.upstreams = Upstreams(self._oddities)
        self.board = ModelBoard(int(time.time()))
        seed = random.getrandbits(53)
        self.journal = _journal(settings, policy, seed)
        chance = random.Random(seed)
        self.controller = (
            Controller(policy, chance) if self.journal is None else Recorded(policy, chance, self.journal.tell)
        )
        self.driver = Driver(self.controller, self.metrics, asyncio.get_running_loop())
        self.gate = RequestHandler(
            policy, self.driver, self.upstreams, self.metrics, self.board, AccessLog().write, settings.host
        )
        self.guard = ConnectionLimits(
            max_body_bytes=settings.max_body_bytes,
            max_receiving_bytes=settings.max_receiving_bytes,
            max_header_bytes=settings.max_header_bytes,
            receive_timeout_s=settings.receive_timeout_s,
            keep_alive_s=settings.keep_alive_s,
            write_stall_s=settings.write_stall_s,
            max_connections=settings.max_connections or _connections_that_fit(policy),
        )
        self._admin_guard = ConnectionLimits(
            max_body_bytes=MAX_BODY_BYTES,
            body_limit_name="",
            max_header_bytes=settings.max_header_bytes,
            receive_timeout_s=settings.receive_timeout_s,
            keep_alive_s=settings.keep_alive_s,
            write_stall_s=settings.write_stall_s,
            max_connections=MAX_ADMIN_CONNECTIONS,
        )
        self.fleet = FleetWatcher(
            self.driver.observe,
            self.board,
            clock=monotonic,
            random=random.Random(),
            on_bug=partial(self.driver.supervisor.caught, Callback.WATCH),
        )
        self.gate.counting.ask_engine = EngineCounts(monotonic, random.Random(), self._unfit).ask
        self._policy_path = policy_path
        self.watcher = (
            None
            if policy_path is None
            else PolicyWatcher(
                policy_path,
                policy,
                self.configure,
                self._reload_failed,
                prepare=self._prepare_ahead,
                on_bug=partial(self.driver.supervisor.caught, Callback.WATCH),
            )
        )
        self._prepared: Prepared | None = None
        """For the next policy: made outside the event loop, before it is in force."""
        self._tokenizers = Tokenizers()
        self._reload = Reload(time.time())
        self.little = Little(self.metrics, self._presences, monotonic())
        self._lag = LoopLag(monotonic, partial(self._supervised, self.metrics.roll))
        self._tasks: list[asyncio.Task[None]] = []
        self._states: dict[str, tuple[ReplicaState, str]] = {}
        self.stop = asyncio.Event()
        """Set when somebody wants it to drain and end."""
        self.broken = asyncio.Event()
        """Set when a part has stopped that must not."""
        self._swap(Prepared(policy, self._counters(policy), callers_of(policy)))
        self.fleet.configure(policy)
        self._api = listener(
            no_app,
            settings.host,
            settings.port,
            http=partial(ClientConnection, self.gate, self.guard),
            ssl_certfile=settings.ssl_certfile,
            ssl_keyfile=settings.ssl_keyfile,
            timeout_graceful_shutdown=int(settings.drain_deadline_s + CLOSE_GRACE_S) + 1,
        )
        token = settings.admin_token
        self._admin = listener(
            self._admin_app(Access(token.get_secret_value() if token else None, names=settings.admin_names)),
            settings.admin_host,
            settings.admin_port,
            http=partial(AdminDoor, self._admin_guard, self.driver.supervisor),
            backlog=ADMIN_BACKLOG,
            timeout_graceful_shutdown=1,
        )
        self._listeners = [self._api, self._admin]
        if settings.admin_uds is not None:
            self._listeners.append(
                listener(
                    self._admin_app(Access(None, trusted=True, names=settings.admin_names)),
                    uds=str(settings.admin_uds),
                    http=partial(AdminDoor, self._admin_guard, self.driver.supervisor),
                    backlog=ADMIN_BACKLOG,
                    timeout_graceful_shutdown=1,
                )
            )

    # ---- policy

    def configure(self, policy: Policy) -> None:
        """Swap the policy between two requests; those under way keep theirs. Raises `PolicyErrors` to refuse it."""
        prepared = self._prepared
        if prepared is None or prepared.policy is not policy:
            prepared = self._prepare(policy)
        self._prepared = None
        self._swap(prepared)
        # In a turn of its own: a thousand watches that end, and as many that begin, take as long as the swap.
        asyncio.get_running_loop().call_soon(self._watch, policy)
        self._reload = Reload(time.time())
        log.info("policy generation %d is in force", policy.generation)

    def _watch(self, policy: Policy) -> None:
        """Watch the replicas of a policy that is in force. Called by the loop, so that nothing is raised to anybody."""
        try:
            self.fleet.configure(policy)
        except Exception as error:  # noqa: BLE001 - the policy is in force, and the next reload tries again
            self.driver.supervisor.caught(Callback.WATCH, error)

    def _prepare(self, policy: Policy) -> Prepared:
        """Everything that can be made of a policy before it is in force. Raises `PolicyErrors`; runs in any thread."""
        problem = exposure_error(policy, self.settings.host)
        if problem is not None:
            raise PolicyErrors([PolicyError(str(self._policy_path), 0, "keys", problem)])
        problem = self.settings.body_limit_error(policy.max_body_bytes)
        if problem is not None:
            raise PolicyErrors([PolicyError(str(self._policy_path), 0, "listen.max_body", problem)])
        return Prepared(policy, self._counters(policy), callers_of(policy))

    def _prepare_ahead(self, policy: Policy) -> None:
        self._prepared = self._prepare(policy)

    def _swap(self, prepared: Prepared) -> None:
        policy = prepared.policy
        self.metrics.configure(policy)
        self.upstreams.configure(policy.pools.values())
        self.driver.configure(policy)
        self.gate.counters = prepared.counters
        self.gate.configure(policy, prepared.callers)
        self.guard.max_body_bytes = policy.max_body_bytes or self.settings.max_body_bytes

    def _counters(self, policy: Policy) -> dict[str, TokenCounter]:
        """Exact prompt counters of the models that name a tokenizer."""
        paths = {model.name: model.tokenizer for model in policy.models.values() if model.tokenizer is not None}
        try:
            tokenizers = self._tokenizers.take(paths.values())
        except TokenizerError as exc:
            raise PolicyErrors([PolicyError(str(self._policy_path), 0, "models", str(exc))]) from exc
        return {name: tokenizers[path].count for name, path in paths.items()}

    def _reload_failed(self, errors: PolicyErrors) -> None:
        self._reload = Reload(time.time(), str(errors))
        for error in errors.errors:
            log.error("policy not reloaded, the last good one stays in force: %s", error)

    async def reload(self) -> Done:
        """Read the policy file again."""
        if self.watcher is None:
            log.warning("asked to reload, but there is no policy file: the built-in policy stays in force")
            return Done(False, "there is no policy file: the built-in policy is in force")
        if await self.watcher.reload():
            return Done(True, f"policy generation {self.gate.policy.generation} is in force")
        return Done(False, self._reload.error)

    async def _stop(self) -> Done:
        """Drain as on SIGTERM, for callers that cannot send signals."""
        self.stop.set()
        return Done(True, f"draining: at most {self.settings.drain_deadline_s:.0f} s for requests under way")

    def _drain(self, on: bool, name: str) -> Done:
        """Send a replica nothing new, or let it serve again."""
        names = [replica.name for pool in self.gate.policy.pools.values() for replica in pool.replicas]
        if name not in names:
            return Done(False, f"there is no replica {name!r:.80}; there are: {', '.join(names)}")
        self.driver.drain(name, on)
        self._tell_states()
        if not on:
            return Done(True, f"{name} serves again")
        view = next(r for pool in self.controller.snapshot(monotonic()).pools for r in pool.replicas if r.name == name)
        return Done(True, f"{name} gets nothing new; {view.in_flight} under way there go on")

    # ---- life

    async def __aenter__(self) -> Gateway:
        parts = {
            "watch of the replicas": self.fleet.run(),
            "clock of the loop": self._lag.run(),
            "sweep": self._sweep(),
        }
        if self.journal is not None:
            parts["journal"] = self.journal.run()
        if self.watcher is not None:
            parts["watch of the policy"] = self.watcher.run()
        self._tasks = [asyncio.create_task(part, name=name) for name, part in parts.items()]
        for task in self._tasks:
            task.add_done_callback(self._task_ended)
        self._serving = [asyncio.create_task(each.serve()) for each in self._listeners]
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
        """Say so, stop accepting, let requests finish until the deadline, then end them with an error; then close."""
        self.gate.leaving = True
        if self.settings.drain_notice_s and not self.broken.is_set():
            log.info("not ready: requests are still accepted for %.0f s", self.settings.drain_notice_s)
            with suppress(TimeoutError):
                await asyncio.wait_for(self.broken.wait(), self.settings.drain_notice_s)
        log.info("draining: at most %.0f s for requests under way", self.settings.drain_deadline_s)
        self.gate.draining = True
        api = self._serving[0]
        self._api.should_exit = True
        loop = asyncio.get_running_loop()
        deadline = loop.call_later(self.settings.drain_deadline_s, self.driver.shut)
        cut = loop.call_later(self.settings.drain_deadline_s + CLOSE_GRACE_S, self.guard.abort_all)
        await asyncio.wait([api])
        deadline.cancel()
        cut.cancel()
        await self._close()

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """A part that runs for ever has stopped: without it the gateway would go wrong slowly, so it goes at once."""
        if not task.cancelled() and not self.gate.draining:
            error = task.exception()
            log.critical(
                "the %s has stopped (%r): a bug of the gateway, which now drains and exits with 1: start it again, "
                "and report this",
                task.get_name(),
                error,
                exc_info=error,
            )
            self.broken.set()

    async def _close(self) -> None:
        self.gate.leaving = self.gate.draining = True
        for each in self._listeners:
            each.should_exit = True
        await asyncio.wait(self._serving)
        await self.fleet.aclose()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.driver.close()
        self.upstreams.close()
        if self.journal is not None:
            await self.journal.aclose()

    @property
    def listeners(self) -> tuple[Listener, ...]:
        """API port, admin port, and the admin socket where there is one."""
        return tuple(self._listeners)

    @property
    def last_reload(self) -> Reload:
        """Time of the latest reload of the policy, and its error."""
        return self._reload

    @property
    def url(self) -> str:
        """Where the API is."""
        scheme = "https" if self.settings.ssl_certfile else "http"
        return f"{scheme}://{_authority(self.settings.host)}:{self._api.port}"

    @property
    def admin_url(self) -> str:
        """Where metrics and state are."""
        return f"http://{_authority(self.settings.admin_host)}:{self._admin.port}"

    # ---- parts

    def _admin_app(self, access: Access) -> Callable[..., object]:
        sources = Sources(
            version=version("tailgate"),
            policy=lambda: self.gate.policy,
            snapshot=lambda: self.controller.snapshot(monotonic()),
            reload=lambda: self._reload,
            connections=lambda: self.guard.connections,
            not_ready=self._not_ready,
            loop_lag_s=self._lag.read,
            loop_waits=self._lag.waits,
            watched=self._watched,
            little=lambda snapshot: self.little.read(snapshot.at, snapshot.held),
            journal_dropped=lambda: 0 if self.journal is None else self.journal.dropped,
            explain=lambda ask: self.controller.explain(ask, monotonic()),
            now=monotonic,
        )
        actions = {"reload": self.reload, "drain": self._stop}
        of_replicas = {"drain": partial(self._drain, True), "undrain": partial(self._drain, False)}
        return admin_app(self.metrics, sources, actions, of_replicas, access)

    def _presences(self, now: float) -> dict[str, float]:
        return {pool: presence.held_s(now) for pool, presence in self.guard.presences.items()}

    def _watched(self) -> list[Watched]:
        now = monotonic()
        return [
            Watched(
                report.name,
                report.pool,
                {reading.value: error for reading, error in report.errors.items()},
                {(reading.value, fault.value): n for (reading, fault), n in report.failures.items()},
                # The age of the third, metrics, is that of the sample that the controller has.
                {r.value: now - report.read_at.get(r, -math.inf) for r in (Reading.HEALTH, Reading.MODELS)},
            )
            for report in self.fleet.reports()
        ]

    def _unfit(self) -> frozenset[str]:
        """The replicas that get no requests now."""
        return frozenset(name for _, name, state, _ in self.controller.states() if state is not UP)

    def _not_ready(self) -> str:
        if self.gate.leaving:
            return "draining"
        return "" if self.controller.alive() else "no replica can be reached"

    async def _sweep(self) -> None:
        keep_alives = self.gate.keep_alives.sweep
        told = self._tell_states, self._tell_quarantine, self._tell_disbelieved
        steps = (keep_alives, self.upstreams.sweep, self._hold_little, *told)
        while True:
            await asyncio.sleep(SWEEP_S)
            now = monotonic()
            while any(guard.sweep(now) for guard in (self.guard, self._admin_guard)):  # noqa: ASYNC110 - no wait
                await asyncio.sleep(0)  # others are served in between
            for step in steps:
                self._supervised(step, now)

    def _supervised(self, step: Callable[[float], None], now: float) -> None:
        """Do what is done again and again: a bug in it must not end the task, which would end the process."""
        try:
            step(now)
        except Exception as error:  # noqa: BLE001 - the other steps, and the next time, are no part of it
            self.driver.supervisor.caught(Callback.TIMER, error)

    def _hold_little(self, now: float) -> None:
        if self.little.is_due(now):
            self.little.read(now, self.controller.held(now))

    def _tell_quarantine(self, now: float) -> None:
        log_quarantine(self.controller.quarantined(now))

    def _tell_disbelieved(self, _now: float) -> None:
        for (pool, replica), count in self.controller.disbelieved().items():
            for _ in range(count):
                self._oddities.tell(pool, replica, Oddity.USAGE, "more tokens than can be: an estimate was taken")

    def _tell_states(self, _now: float = 0.0) -> None:
        """Log each replica whose state has changed since the last look: the core itself writes no log."""
        for pool, name, state, why in self.controller.states():
            before, self._states[name] = self._states.get(name, (UP, "")), (state, why)
            if (state, why) != before:
                level = logging.INFO if state is UP or state is ReplicaState.DRAINED else logging.WARNING
                log.log(
                    level, "replica %s of pool %s is %s, was %s%s", name, pool, state, before[0], why and f": {why}"
                )


def _journal(settings: Settings, policy: Policy, seed: int) -> Journal | None:
    """The journal, if one is wanted. Raises `JournalError` if it cannot be written."""
    if settings.journal is None:
        return None
    return Journal(
        settings.journal,
        policy,
        seed,
        share=1.0,
        version=version("tailgate"),
        max_bytes=settings.journal_file_bytes,
        files=settings.journal_files,
    )


def _connections_that_fit(policy: Policy) -> int:
    """Each client may need one connection to a replica; the rest of the descriptors is for everything else.

    That is the admin port, and files (`SPARE_DESCRIPTORS`), and the watch of each replica.
    """
    spare = SPARE_DESCRIPTORS + WATCHES * sum(len(pool.replicas) for pool in policy.pools.values())
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != most and most != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        limit = most
    return max(16, (limit - spare) // 2)


def _authority(host: str) -> str:
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"[{host}]" if ":" in host else host
