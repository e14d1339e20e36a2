"""Shared state of the connections of one server: limits, deadlines, and the open connections."""

from __future__ import annotations

from typing import Final, Protocol

from gateway.core.request import Callback, Reason
from gateway.proxy.deadlines import Deadline
from gateway.proxy.occupancy import Occupancy
from gateway.proxy.turns import Turns
from gateway.wire.errors.replies import Problem

LINGER_S: Final = 2.0
SWEEP_S: Final = 0.25


class LimitedConnection(Protocol):
    """A client connection, for limits and deadlines."""

    def too_slow(self) -> None:
        """The request did not arrive completely in time."""

    def stalled(self) -> None:
        """The client has stopped reading its answer."""

    def close(self) -> None:
        """Close after all written bytes are sent."""

    def abort(self) -> None:
        """Close at once."""

    def broke(self, callback: Callback, error: Exception) -> None:
        """One of our callbacks raised while it handled this connection."""


def _broke(connection: LimitedConnection, error: Exception) -> None:
    connection.broke(Callback.TIMER, error)


class ConnectionLimits:
    """Limits and deadlines that the connections of one server share, and the open connections themselves."""

    def __init__(
        self,
        max_body_bytes: int,
        max_header_bytes: int,
        receive_timeout_s: float,
        keep_alive_s: float,
        write_stall_s: float,
        max_connections: int | None = None,
        max_receiving_bytes: int = 2**62,
        body_limit_name: str = "`listen.max_body` of the policy",
    ) -> None:
        self.max_body_bytes = max_body_bytes
        """Limit of a decoded body; a reload changes it, also for bodies under way."""
        self._body_limit_name = f" ({body_limit_name})" if body_limit_name else ""
        self.max_header_bytes = max_header_bytes
        self.max_connections = max_connections
        self._max_receiving_bytes = max_receiving_bytes
        self.parts: dict[LimitedConnection, int] = {}
        """Bytes of incomplete bodies."""
        self.part_bytes = 0
        """Sum of `parts`."""
        self.occupancies: dict[str, Occupancy] = {}
        """Counters of requests, by pool name; removed pools keep theirs."""
        self.turns = Turns()
        self.open: set[LimitedConnection] = set()
        """Client connections that are open."""
        self.receiving: Deadline[LimitedConnection] = Deadline(receive_timeout_s, lambda one: one.too_slow(), _broke)
        self.idle: Deadline[LimitedConnection] = Deadline(keep_alive_s, lambda one: one.close(), _broke)
        self.stalled: Deadline[LimitedConnection] = Deadline(write_stall_s, lambda one: one.stalled(), _broke)
        self.lingering: Deadline[LimitedConnection] = Deadline(LINGER_S, lambda one: one.abort(), _broke)

    @property
    def connections(self) -> int:
        """Client connections that are open."""
        return len(self.open)

    def opened(self, connection: LimitedConnection) -> bool:
        """A client has connected; False if there are too many."""
        self.open.add(connection)
        return self.max_connections is None or len(self.open) <= self.max_connections

    def closed(self, connection: LimitedConnection) -> None:
        """A client has left."""
        self.open.discard(connection)
        self.let_go(connection)
        for deadline in (self.receiving, self.idle, self.stalled, self.lingering):
            deadline.stop(connection)

    def occupancy(self, pool: str) -> Occupancy:
        """Counter of the server's requests in that pool."""
        found = self.occupancies.get(pool)
        if found is None:
            found = self.occupancies[pool] = Occupancy()
        return found

    def holds(self, connection: LimitedConnection, part_bytes: int) -> bool:
        """A connection now holds this much of a body; False if all bodies together exceed the limit."""
        self.part_bytes += part_bytes - self.parts.get(connection, 0)
        self.parts[connection] = part_bytes
        return self.part_bytes <= self._max_receiving_bytes

    def too_large(self) -> Problem:
        """The refusal of a body beyond the limit."""
        return Problem(
            Reason.BODY_TOO_LARGE,
            f"The request body is larger than {self.max_body_bytes} bytes{self._body_limit_name}.",
        )

    def let_go(self, connection: LimitedConnection) -> None:
        """The partial body of a connection is complete, or dropped."""
        self.part_bytes -= self.parts.pop(connection, 0)

    def abort_all(self) -> None:
        """Close every connection at once."""
        for connection in list(self.open):
            try:
                connection.abort()
            except Exception as error:  # noqa: BLE001 - the others are closed all the same
                _broke(connection, error)

    def sweep(self, now: float) -> bool:
        """Act on passed deadlines. Returns whether more are left. Called every `SWEEP_S`, and again while more are
        left."""
        more = False
        for deadline in (self.receiving, self.idle, self.stalled, self.lingering):
            more = deadline.sweep(now) or more
        return more
