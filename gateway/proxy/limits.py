"""State that all client connections of one server share: limits, deadlines, and the set of open connections."""

from __future__ import annotations

from typing import Final, Protocol

from gateway.core.results import Callback, Reason
from gateway.proxy.occupancy import Occupancy
from gateway.proxy.time_limits import Deadline
from gateway.proxy.turns import Turns
from gateway.wire.errors.replies import Problem

LINGER_S: Final = 2.0
SWEEP_S: Final = 0.25
_NO_PART: Final = ("", 0)


class LimitedConnection(Protocol):
    """The part of a client connection that limits and deadlines use."""

    def too_slow(self) -> None:
        """The request did not arrive completely in time."""

    def stalled(self) -> None:
        """The client has stopped reading its answer."""

    def close(self) -> None:
        """Close after all written bytes are sent."""

    def abort(self) -> None:
        """Close at once."""

    def broke(self, callback: Callback, error: Exception) -> None:
        """A callback of the gateway raised an exception while it handled this connection."""


def _broke(connection: LimitedConnection, error: Exception) -> None:
    connection.broke(Callback.TIMER, error)


class ConnectionLimits:
    """Limits and deadlines of the client connections of one server, and the set of open connections."""

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
        makes_room: bool = False,
    ) -> None:
        """`makes_room`: whether a connection beyond the limit replaces the one that has been idle longest."""
        self.max_body_bytes = max_body_bytes
        """Limit on a body in bytes, after decoding. A reload changes it, even for bodies that are partly received."""
        self._body_limit_name = f" ({body_limit_name})" if body_limit_name else ""
        self.max_header_bytes = max_header_bytes
        self.max_connections = max_connections
        self._makes_room = makes_room
        self.max_receiving_bytes = max_receiving_bytes
        """Limit on the bytes of all `parts`."""
        self.parts: dict[LimitedConnection, tuple[str, int]] = {}
        """Bodies that are being received, or whose request has no answer yet, by connection: (tenant, bytes)."""
        self.part_bytes = 0
        """Bytes of all `parts`."""
        self._tenant_bytes: dict[str, int] = {}
        """Bytes of `parts` by tenant."""
        self.occupancies: dict[str, Occupancy] = {}
        """Counters of requests, by pool name. The counters of removed pools are kept."""
        self.turns = Turns()
        self.open: set[LimitedConnection] = set()
        """Open client connections."""
        self.receiving: Deadline[LimitedConnection] = Deadline(receive_timeout_s, lambda one: one.too_slow(), _broke)
        self.idle: Deadline[LimitedConnection] = Deadline(keep_alive_s, lambda one: one.close(), _broke)
        self.stalled: Deadline[LimitedConnection] = Deadline(write_stall_s, lambda one: one.stalled(), _broke)
        self.lingering: Deadline[LimitedConnection] = Deadline(LINGER_S, lambda one: one.abort(), _broke)

    @property
    def connections(self) -> int:
        """Open client connections."""
        return len(self.open)

    def opened(self, connection: LimitedConnection) -> bool:
        """Add a connection. Returns False if there are too many."""
        self.open.add(connection)
        if self.max_connections is None or len(self.open) <= self.max_connections:
            return True
        return self._makes_room and self._close_idle()

    def _close_idle(self) -> bool:
        """Close the connection that has been idle longest. Returns False if none is idle."""
        for deadline in (self.receiving, self.idle, self.lingering, self.stalled):
            oldest = deadline.oldest()
            if oldest is not None:
                self.closed(oldest)
                oldest.abort()
                return True
        return False

    def closed(self, connection: LimitedConnection) -> None:
        """Remove a connection that has closed."""
        self.open.discard(connection)
        self.let_go(connection)
        for deadline in (self.receiving, self.idle, self.stalled, self.lingering):
            deadline.stop(connection)

    def occupancy(self, pool: str) -> Occupancy:
        """The counter of requests in a pool; created if missing."""
        found = self.occupancies.get(pool)
        if found is None:
            found = self.occupancies[pool] = Occupancy()
        return found

    def holds(self, connection: LimitedConnection, part_bytes: int, tenant: str) -> bool:
        """Set how many bytes of a body a connection holds. Returns False if all held bodies exceed the limit, and those
        of this tenant exceed its equal share.
        """
        tenants = self._tenant_bytes
        _, before = self.parts.get(connection, _NO_PART)
        self.part_bytes += part_bytes - before
        held = tenants[tenant] = tenants.get(tenant, 0) + part_bytes - before
        self.parts[connection] = tenant, part_bytes
        return self.part_bytes <= self.max_receiving_bytes or held * len(tenants) <= self.max_receiving_bytes

    def too_large(self) -> Problem:
        """The `Problem` for a body that is larger than the limit."""
        return Problem(
            Reason.BODY_TOO_LARGE,
            f"The request body is larger than {self.max_body_bytes} bytes{self._body_limit_name}.",
        )

    def let_go(self, connection: LimitedConnection) -> None:
        """Forget the body of a connection, because an answer has begun, or because it is dropped."""
        part = self.parts.pop(connection, None)
        if part is not None:
            tenant, part_bytes = part
            self.part_bytes -= part_bytes
            self._tenant_bytes[tenant] -= part_bytes
            if not self._tenant_bytes[tenant]:
                del self._tenant_bytes[tenant]

    def abort_all(self) -> None:
        """Close every connection at once."""
        for connection in list(self.open):
            try:
                connection.abort()
            except Exception as error:  # noqa: BLE001 - the other connections are still closed
                _broke(connection, error)

    def excuse(self, late_s: float) -> None:
        """Give every client `late_s` more, because the process stood still for that long."""
        for deadline in (self.receiving, self.idle, self.stalled, self.lingering):
            deadline.excuse(late_s)

    def sweep(self, now: float) -> bool:
        """Act on deadlines that have passed. Returns whether more overdue ones are left. Called every `SWEEP_S`, and
        again while more are left.
        """
        self.turns.sweep()
        more = False
        for deadline in (self.receiving, self.idle, self.stalled, self.lingering):
            more = deadline.sweep(now) or more
        return more
