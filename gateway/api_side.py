"""The API of one process: the connections of clients and of replicas, and everything between them but the decisions."""

from __future__ import annotations

import random
import resource
from collections.abc import Callable
from functools import partial

from gateway.core.policy import Policy
from gateway.core.results import Callback, MirrorResult
from gateway.fleet.board import ModelBoard
from gateway.fleet.mirror import Mirrors
from gateway.fleet.token_counts import EngineCounts
from gateway.listener import Listener, listener, no_app
from gateway.proxy.callers import Callers
from gateway.proxy.client.client_connection import ClientConnection
from gateway.proxy.driver import Driver, Meter
from gateway.proxy.handler import RequestHandler
from gateway.proxy.limits import ConnectionLimits
from gateway.proxy.replica.oddities import Oddities
from gateway.proxy.replica.upstream import ModelLists, Upstreams
from gateway.proxy.services import ExchangeServices
from gateway.settings import Settings

SPARE_DESCRIPTORS = 128
WATCHES = 3
"""Number of connections that watch one replica: for health, metrics and models."""
# At the drain deadline, error events are written. A client that does not read its event within this many seconds is
# disconnected.
CLOSE_GRACE_S = 2.0


class ApiSide:
    """Serves the API. The decisions come through `driver`."""

    def __init__(
        self,
        settings: Settings,
        policy: Policy,
        driver: Driver,
        meter: Meter,
        copied: Callable[[str, str, MirrorResult], None],
        board: ModelBoard,
        lists: ModelLists,
        is_out: Callable[[str], bool],
    ) -> None:
        """`copied`: called with model, shadow pool and result of each copy. `is_out`: whether the replica of a name
        gets no requests.
        """
        clock, bug = driver.clock, partial(driver.supervisor.caught, Callback.WATCH)
        self.settings = settings
        self.driver = driver
        self.limits = ConnectionLimits(
            max_body_bytes=settings.max_body_bytes,
            max_receiving_bytes=settings.max_receiving_bytes,
            max_header_bytes=settings.max_header_bytes,
            receive_timeout_s=settings.receive_timeout_s,
            keep_alive_s=settings.keep_alive_s,
            write_stall_s=settings.write_stall_s,
            max_connections=settings.max_connections or connections_that_fit(policy),
        )
        self.mirrors = Mirrors(policy, clock, is_out, board.takes, copied, bug)
        self.oddities = Oddities(meter, clock)
        self.upstreams = Upstreams(self.oddities, clock, lists)
        self.services = ExchangeServices(driver, self.upstreams, meter, self.mirrors)
        if settings.trace_share is not None:
            self.services.trace_ratio = settings.trace_share
        counts = EngineCounts(clock, random.Random(), is_out, board.takes)
        self.handler = RequestHandler(policy, self.services, board, settings.host, counts.ask)
        self.steps = (self.services.keep_alives.sweep, self.upstreams.sweep)
        """To be called with the time at each sweep."""

    def listener(self) -> Listener:
        """A listener for the connections of clients."""
        settings = self.settings
        return listener(
            no_app,
            settings.host,
            settings.port,
            http=partial(ClientConnection, self.handler, self.limits),
            ssl_certfile=settings.ssl_certfile,
            ssl_keyfile=settings.ssl_keyfile,
            timeout_graceful_shutdown=int(settings.drain_deadline_s + CLOSE_GRACE_S) + 1,
        )

    def configure(self, policy: Policy, callers: Callers) -> None:
        """Put a policy in force, after the driver has it."""
        self.mirrors.configure(policy)
        self.handler.configure(policy, callers)
        self.limits.max_body_bytes = policy.max_body_bytes or self.settings.max_body_bytes
        # A relay has a part of the bound, which may be less than one body.
        self.limits.max_receiving_bytes = max(self.settings.max_receiving_bytes, self.limits.max_body_bytes)

    def held_s(self, now: float) -> dict[str, float]:
        """By pool, the seconds that its requests have been held, by the count of the connections."""
        return {pool: occupancy.held_s(now) for pool, occupancy in self.limits.occupancies.items()}

    async def aclose(self) -> None:
        """End the copies under way, and close the connections to replicas."""
        await self.mirrors.aclose()
        self.upstreams.close()


def connections_that_fit(policy: Policy) -> int:
    """How many client connections fit into the limit on file descriptors. Each client may need one connection to a
    replica.

    Other descriptors are left for the admin port, for files (`SPARE_DESCRIPTORS`), and for the connections that watch
    each replica.
    """
    spare = SPARE_DESCRIPTORS + WATCHES * len({spec.url for pool in policy.pools.values() for spec in pool.replicas})
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != most and most != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        limit = most
    return max(16, (limit - spare) // 2)
