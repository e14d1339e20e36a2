"""Connections to replicas. A connection is kept alive, has one request at a time, and is closed if its request is
cancelled.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Iterable
from typing import Final, Protocol
from urllib.parse import urlsplit

from gateway.core.pool_spec import PoolSpec, ReplicaSpec
from gateway.core.request import Endpoint
from gateway.core.results import AttemptOutcome, Callback
from gateway.late import Within
from gateway.proxy.replica.oddities import Oddities
from gateway.proxy.replica.receiver import AnswerReceiver, Connecting
from gateway.proxy.replica.upstream_connection import ConnectionOwner, UpstreamConnection
from gateway.proxy.time_limits import Deadline
from gateway.tls import context_of, tls_cause
from gateway.wire.answers.oddity import Oddity
from gateway.wire.apis.table import API_OF
from gateway.wire.body.form import CONTENT_TYPE
from gateway.wire.http.written_heads import upstream_prefix

log = logging.getLogger("tailgate.upstream")

# An idle connection is closed after this time. uvicorn, and so vLLM and SGLang, closes it after 5 s.
IDLE_LIMIT_S: Final = 4.0
RACE_S: Final = 0.01
"""A close this soon after a write was under way before it: some round trips, and a turn of the loop. A later one may
come from the request.
"""

GRACE_S: Final = 1.0
"""Seconds for the rest of an answer that is complete but for its usage and its mark. Engines write these with the last
token, so a second is much; vLLM's slowest turn under load is a few tenths. Sweeps come four times a second.
"""

_SERVED_BY: Final = b"x-tailgate-pool: %b\r\nx-tailgate-replica: %b\r\nx-tailgate-tier: %b\r\n"


def _grace_over(receiver: AnswerReceiver) -> None:
    receiver.on_grace_over()


def _broke(receiver: AnswerReceiver, error: Exception) -> None:
    receiver.broke(Callback.TIMER, error)


class ModelLists(Protocol):
    """The models of the servers. After a lost connection, another process may answer at the address."""

    def lost(self, server: str) -> None:
        """A connection to `server` was lost or refused."""

    def is_list_old(self, server: str) -> bool:
        """Whether the models of `server` must be read again before it gets a request on a new connection."""

    async def fresh_list(self, server: str) -> frozenset[str] | None:
        """Names that `server` takes, read again if the last list is old; None if they are unknown."""


class ReplicaConnections(ConnectionOwner):
    """The connections of one replica. Each data-parallel rank of a server has its own connections, so that its calls
    are counted separately.
    """

    def __init__(
        self,
        spec: ReplicaSpec,
        pool: PoolSpec,
        oddities: Oddities,
        clock: Callable[[], float],
        lists: ModelLists | None = None,
    ) -> None:
        super().__init__(spec, clock)
        self._lists = lists
        self.pool = pool
        self._oddities = oddities
        self.takes_stream_options = True
        """Whether the replica accepts `stream_options`. Azure's OpenAI and Mistral's API refuse them."""
        self.graces: Deadline[AnswerReceiver] = Deadline(GRACE_S, _grace_over, _broke)
        """Answers that are complete as far as can be told, and may go on."""
        self._is_unreachable = False
        """Whether the last attempt to connect failed, so that the next failure is no news for the log."""
        self._served_by: dict[str, bytes] = {}
        self._prefixes: dict[Endpoint, bytes] = {}
        url = urlsplit(spec.url)
        self._host = url.hostname or ""
        self._port = url.port or 80
        self._tls = context_of(spec.url, pool.access)
        self._server_name = (pool.access.tls.server_name or self._host) if self._tls is not None else None
        self._idle: list[UpstreamConnection] = []
        self._all: set[UpstreamConnection] = set()
        self._connecting: set[asyncio.Task[None]] = set()

    def send(self, request: bytes, receiver: AnswerReceiver, on_new: bool = False) -> None:
        """Send `request`, a whole HTTP message, on an idle connection or a new one. `on_new`: only on a new one,
        which no idle close can meet.
        """
        connection = None if on_new else self._take_idle()
        if connection is None:
            self._connect(request, receiver)
        else:
            connection.race_until = self.clock() + RACE_S
            connection.send(request, receiver)

    def prefix(self, endpoint: Endpoint) -> bytes:
        """The constant beginning of the HTTP head of a request to `endpoint`.

        It is made at first use, because a reload may add a thousand replicas.
        """
        prefix = self._prefixes.get(endpoint)
        if prefix is None:
            api = API_OF[endpoint]
            content_type = CONTENT_TYPE if api.shape.is_form else "application/json"
            prefix = self._prefixes[endpoint] = upstream_prefix(
                endpoint.value, content_type, api.upstream_lines, self.spec, self.pool.access
            )
        return prefix

    def move(self, pool: PoolSpec) -> None:
        """Set the pool of the replica, after a reload."""
        self.pool = pool
        self._served_by.clear()

    def served_by(self, tier: str) -> bytes:
        """The header lines of an answer that name pool and replica, if `tier` shows them."""
        lines = self._served_by.get(tier)
        if lines is None:
            lines = self._served_by[tier] = _SERVED_BY % (
                self.pool.name.encode(),
                self.spec.name.encode(),
                tier.encode(),
            )
        return lines

    def without_key(self, said: bytes) -> bytes:
        """A replica's text without the key that the gateway sent."""
        key = self.pool.access.key
        return said if key is None else said.replace(key.encode(), b"[...]")

    def release(self, connection: UpstreamConnection) -> None:
        """Take back a connection after a complete answer, or close it if it cannot be reused."""
        if not connection.idle:
            self.odd(Oddity.NOT_IDLE, "a connection was not idle after its answer, and was closed")
            connection.transport.abort()
            return
        connection.idle_since = self.clock()
        self._idle.append(connection)

    def odd(self, kind: Oddity, detail: str) -> None:
        """Count an odd answer, and perhaps log it."""
        self._oddities.tell(self.pool.name, self.spec.name, kind, detail)

    def broken(self, kind: str, said: str) -> None:
        self._oddities.broken(self.spec.name, kind, said)

    def lost(self) -> None:
        """The replica closed or refused a connection."""
        if self._lists is not None:
            self._lists.lost(self.spec.server)

    def closed(self, connection: UpstreamConnection) -> None:
        """Forget a connection that is closed."""
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def sweep(self, now: float) -> None:
        """Close connections that have been idle for too long, and end answers whose grace is over."""
        while self.graces.sweep(now):
            pass  # few answers need their grace, and all their clients wait
        while self._idle and now - self._idle[0].idle_since > IDLE_LIMIT_S:
            self._idle.pop(0).transport.close()

    @property
    def idle_connections(self) -> tuple[UpstreamConnection, ...]:
        """The idle connections, in the order of their last use."""
        return tuple(self._idle)

    @property
    def open_connections(self) -> int:
        """Number of connections, idle and in use."""
        return len(self._all)

    @property
    def calls(self) -> int:
        """Requests under way."""
        return len(self._all) - len(self._idle) + len(self._connecting)

    def close(self) -> None:
        """Close every connection, in use or not."""
        for task in self._connecting:
            task.cancel()
        for connection in list(self._all):
            connection.transport.abort()

    def _take_idle(self) -> UpstreamConnection | None:
        """The idle connection that was used last; None if there is none. The replica is least likely to be closing this
        one.
        """
        oldest_fresh = self.clock() - IDLE_LIMIT_S
        while self._idle:
            connection = self._idle.pop()
            # `release` checked that the connection can be reused. After that, it can only have been closed.
            if connection.idle_since >= oldest_fresh and not connection.transport.is_closing():
                return connection
            connection.transport.close()
        return None

    def _connect(self, request: bytes, receiver: AnswerReceiver) -> None:
        task = asyncio.get_running_loop().create_task(self._open(request, receiver))
        receiver.line = Connecting(task)
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _open(self, request: bytes, receiver: AnswerReceiver) -> None:
        try:
            if await self._still_serves(receiver.asks_for):
                await self._open_connection(request, receiver)
            else:
                receiver.on_lost(AttemptOutcome.CANCELLED)
        except Exception as error:  # noqa: BLE001 - a bug affects only this request
            receiver.broke(Callback.REPLICA, error)

    async def _still_serves(self, model: str) -> bool:
        """Whether the replica lists `model`, or cannot say so. A list is believed while a connection is open that
        would have been lost with its process.
        """
        lists, server = self._lists, self.spec.server
        if lists is None:
            return True
        if not self._all and len(self._connecting) == 1:
            lists.lost(server)
        if not lists.is_list_old(server):
            return True
        names = await lists.fresh_list(server)
        return names is None or not model or model in names

    async def _open_connection(self, request: bytes, receiver: AnswerReceiver) -> None:
        connection = UpstreamConnection(self)
        within = Within(self.pool.connect_timeout_s)
        try:
            async with within:
                await asyncio.get_running_loop().create_connection(
                    lambda: connection,
                    self._host,
                    self._port,
                    ssl=self._tls,
                    server_hostname=self._server_name,
                )
        except TimeoutError:
            if within.was_late:
                receiver.on_lost(AttemptOutcome.GATEWAY_LATE)
            else:
                self.lost()
                receiver.on_lost(AttemptOutcome.CONNECT_TIMEOUT)
        except OSError as exc:
            self._unreachable(exc)
            receiver.on_lost(AttemptOutcome.UNREACHABLE)
        except asyncio.CancelledError:
            if connection.transport is not None:
                connection.transport.abort()
            raise
        else:
            self._is_unreachable = False
            if connection.transport.is_closing():
                self.lost()
                receiver.on_lost(AttemptOutcome.UNREACHABLE)
            else:
                # The connection is counted only now, because uvloop does not report the loss of a connection that was
                # cancelled while it opened.
                self._all.add(connection)
                connection.send(request, receiver)

    def _unreachable(self, error: OSError) -> None:
        tls = self.pool.access.tls
        cause = tls_cause(error, self._host, tls) if isinstance(error, ssl.SSLError) else str(error)
        log.log(
            logging.DEBUG if self._is_unreachable else logging.INFO,
            "replica %s cannot be reached: %s; the request goes to another replica, or fails: "
            "check that an engine listens at %s",
            self.spec.name,
            cause,
            self.spec.url,
        )
        self._is_unreachable = True
        self.lost()


class Upstreams:
    """The connections of every replica of the policy, by replica name."""

    def __init__(self, oddities: Oddities, clock: Callable[[], float], lists: ModelLists | None = None) -> None:
        """`lists`: the servers' models; None: every server is believed to serve what it did."""
        self._oddities = oddities
        self._clock = clock
        self._lists = lists
        self._by_name: dict[str, ReplicaConnections] = {}
        self._leaving: list[ReplicaConnections] = []

    def configure(self, pools: Iterable[PoolSpec]) -> None:
        """Apply a policy. The connections of a removed replica are closed when its last call ends."""
        old = dict(self._by_name)
        found: dict[str, ReplicaConnections] = {}
        for pool in pools:
            for spec in pool.replicas:
                known = old.get(spec.name)
                if known is not None and known.spec == spec and known.pool.access == pool.access:
                    known.move(pool)
                    found[spec.name] = old.pop(spec.name)
                else:
                    found[spec.name] = ReplicaConnections(spec, pool, self._oddities, self._clock, self._lists)
        self._by_name = found
        self._leaving += old.values()
        self.sweep(self._clock())

    def get(self, name: str) -> ReplicaConnections | None:
        """The connections of the replica `name`; None if the policy no longer has it."""
        return self._by_name.get(name)

    def sweep(self, now: float) -> None:
        """Close idle connections, and those of removed replicas, in time. Called about once a second."""
        for upstream in self._every():
            upstream.sweep(now)
        for upstream in [u for u in self._leaving if not u.calls]:
            upstream.close()
            self._leaving.remove(upstream)

    @property
    def open_connections(self) -> int:
        """Connections to all replicas, idle and in use."""
        return sum(upstream.open_connections for upstream in self._every())

    @property
    def calls(self) -> int:
        """Requests under way at all replicas."""
        return sum(upstream.calls for upstream in self._every())

    def close(self) -> None:
        """Close all connections."""
        for upstream in self._every():
            upstream.close()

    def _every(self) -> list[ReplicaConnections]:
        return [*self._by_name.values(), *self._leaving]
