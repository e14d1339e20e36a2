"""Connects the pages and actions of the admin port with the parts of the process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version

from gateway.core.controller import Controller
from gateway.core.request_state import RequestState
from gateway.core.snapshot import ReplicaState
from gateway.driving.hub import RelayHub
from gateway.driving.local_driver import LocalDriver
from gateway.driving.store import Store
from gateway.fleet.discovery.finder import ReplicaFinder
from gateway.fleet.watch import FleetWatcher
from gateway.observe.admin import Access, Done, admin_app
from gateway.observe.console.history import LastHour
from gateway.observe.journal.writer import Journal
from gateway.observe.metrics.lag import LoopLag
from gateway.observe.metrics.metrics import Metrics
from gateway.observe.requests.records import RequestRecords
from gateway.observe.requests.ring import sent_for
from gateway.observe.snapshots import snapshot_in_pieces
from gateway.observe.sources import Discovered, RelayView, Sources, Watched
from gateway.proxy.handler import RequestHandler
from gateway.proxy.limits import ConnectionLimits
from gateway.reload import PolicyReloads
from gateway.sweeper import ControllerSweeper


@dataclass(frozen=True, slots=True)
class AdminPort:
    """The parts of the process that the admin port reads and changes."""

    controller: Controller
    driver: LocalDriver
    handler: RequestHandler
    limits: ConnectionLimits
    """Limits of the API port."""
    hub: RelayHub | None
    """The relays that serve the API; None if this process serves it."""
    fleet: FleetWatcher
    finder: ReplicaFinder
    metrics: Metrics
    history: LastHour
    sweeper: ControllerSweeper
    lag: LoopLag
    reloads: PolicyReloads
    journal: Journal | None
    records: RequestRecords
    store: Store | None
    """The store that gateways share; None without `--store`."""
    stop: asyncio.Event
    """Set to drain the process."""
    drain_deadline_s: float

    def sources(self) -> Sources:
        """The functions that its pages read."""
        return Sources(
            version=version("tailgate"),
            policy=lambda: self.handler.policy,
            snapshot=lambda: self.controller.snapshot(self.driver.clock()),
            snapshot_in_pieces=partial(snapshot_in_pieces, self.controller, self.driver.clock),
            reload=lambda: self.reloads.latest,
            connections=self._connections,
            relays=self._relays,
            store=lambda: None if self.store is None else self.store.view(),
            not_ready=self._not_ready,
            loop_lag_s=self._loop_lag_s,
            loop_waits=self.lag.waits,
            watched=self._watched,
            discovered=self._discovered,
            little=lambda snapshot: self.sweeper.little.read(snapshot.at, snapshot.held),
            dropped=self._dropped,
            find=self.handler.find,
            explain=lambda request: self.controller.explain(request, self.driver.clock()),
            now=self.driver.clock,
            history=self.history,
            under_way=self._under_way,
            policies=lambda: self.reloads.in_force,
            wall_s=self.records.wall_s,
            requests=self.records.ring if self.records.is_kept else None,
            usage=self.records.usage,
        )

    def _dropped(self) -> dict[str, int]:
        writers = {"journal": self.journal, "access_log": self.records.access_log, "traces": self.records.traces}
        return {name: writer.dropped for name, writer in writers.items() if writer is not None}

    def app(self, access: Access) -> Callable[..., object]:
        """The ASGI application, with these access rights."""
        actions = {"reload": self.reloads.reload, "drain": self._drain}
        of_replicas = {"drain": partial(self._drain_replica, True), "undrain": partial(self._drain_replica, False)}
        return admin_app(self.metrics, self.sources(), actions, of_replicas, access)

    async def _drain(self) -> Done:
        """Drain the process as on SIGTERM, for callers that cannot send signals."""
        self.stop.set()
        return Done(True, f"draining: at most {self.drain_deadline_s:.0f} s for requests under way")

    def _drain_replica(self, on: bool, name: str) -> Done:
        """Stop new requests (if `on`) to a replica or to all ranks of a server; else let it serve again."""
        specs = [replica for pool in self.handler.policy.pools.values() for replica in pool.replicas]
        chosen = [spec.name for spec in specs if name in (spec.name, spec.server)]
        if not chosen:
            names = ", ".join(spec.name for spec in specs)
            return Done(False, f"there is no replica {name!r:.80}; known: {names}")
        for replica in chosen:
            self.driver.drain(replica, on)
        self.sweeper.log_states()
        if not on:
            return Done(True, f"{name} serves again")
        views = [view for pool in self.controller.snapshot(self.driver.clock()).pools for view in pool.replicas]
        under_way = sum(view.in_flight for view in views if view.name in chosen)
        return Done(True, f"{name} gets no new requests; {under_way} under way there go on")

    def _connections(self) -> int:
        return self.limits.connections + sum(relay.connections for relay in self._relays())

    def _under_way(self, given: str) -> list[RequestState]:
        names = (given, *sent_for(given))
        requests = self.controller.state.requests.values()
        return [state for state in requests if state.request.origin.request_id in names]

    def _relays(self) -> list[RelayView]:
        loads, now = [] if self.hub is None else self.hub.loads(), self.driver.clock()
        return [RelayView(load.number, load.pid, load.connections, load.under_way, load.lag_s(now)) for load in loads]

    def _loop_lag_s(self) -> float:
        return max([self.lag.read(), *[relay.lag_s for relay in self._relays()]])

    def _watched(self) -> list[Watched]:
        return [
            Watched(
                report.name,
                report.pool,
                {reading.value: error for reading, error in report.errors.items()},
                {(reading.value, fault.value): n for (reading, fault), n in report.failures.items()},
            )
            for report in self.fleet.reports()
        ]

    def _discovered(self) -> list[Discovered]:
        return [
            Discovered(report.pool, report.kind, report.addresses, report.error, report.held)
            for report in self.finder.reports()
        ]

    def _not_ready(self) -> str:
        if self.handler.leaving:
            return "draining"
        return "" if self.controller.alive() else "no replica can be reached"


def is_out(controller: Controller, name: str) -> bool:
    """Whether a replica of the policy gets no requests now."""
    replica = controller.state.fleet.replica(name)
    return replica is not None and replica.state is not ReplicaState.UP
