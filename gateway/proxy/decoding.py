"""Takes in the body of one request: decodes it if it is compressed, and hands it to its connection for parsing. A long
body takes turns with the bodies of other tenants.
"""

from __future__ import annotations

from typing import Protocol

from gateway.core.results import Callback, Reason
from gateway.proxy.limits import ConnectionLimits, LimitedConnection
from gateway.proxy.turns import SHORT_BYTES
from gateway.wire.errors.replies import Problem
from gateway.wire.http.encoding import CorruptBody, Decoding


class BodyOwner(LimitedConnection, Protocol):
    """The client connection that has received a body."""

    def taken_in(self, body: bytes | Problem) -> None:
        """Parse the plain body, or take the problem that prevented its decoding."""


class BodyIntake:
    """The intake of one body. The connection's `taken_in` gets the result, unless `stop` was called before."""

    __slots__ = ("_body", "_connection", "_decoding", "_limits", "_stopped", "_tenant")

    def __init__(
        self, connection: BodyOwner, limits: ConnectionLimits, tenant: str, coding: bytes | None, body: bytes
    ) -> None:
        self._connection = connection
        self._limits = limits
        self._tenant = tenant
        self._body = body
        self._decoding = None if coding is None else Decoding(coding, body)
        self._stopped = False

    def start(self) -> None:
        """Begin to decode at once if the tenant is within its share; otherwise wait for a turn."""
        turns, tenant = self._limits.turns, self._tenant
        # The first step of decoding is no longer than the work on a short body.
        if self._decoding is not None and turns.may_start(tenant, SHORT_BYTES):
            self.run()
        else:
            self._limits.holds(self._connection, len(self._body), tenant)
            turns.add(tenant, self.run)

    def stop(self) -> None:
        """Stop, because the client has left."""
        self._stopped = True
        self._body = b""

    def run(self) -> None:
        """Do one part of the work."""
        if self._stopped:
            return
        try:
            if self._decoding is not None:
                self._decode(self._decoding)
            else:
                self._hand_over(self._body)
        except Exception as error:  # noqa: BLE001 - a bug costs this connection
            self._connection.broke(Callback.CLIENT, error)

    def _decode(self, decoding: Decoding) -> None:
        limits, problem = self._limits, None
        is_whole = False
        since = limits.turns.begin()
        try:
            is_whole = decoding.step()
        except CorruptBody as exc:
            coding = decoding.coding.decode()
            problem = Problem(Reason.BAD_REQUEST, f"The body is not valid {coding}, its Content-Encoding: {exc}.")
        limits.turns.end(self._tenant, since)
        if problem is not None:
            pass
        elif decoding.size > limits.max_body_bytes:
            problem = limits.too_large()
        elif not limits.holds(self._connection, decoding.held, self._tenant):
            problem = Problem(Reason.RECEIVING_FULL)
        elif is_whole:
            self._decoding, self._body = None, decoding.decoded()
        if problem is not None:
            self._hand_over(problem)
        elif is_whole and len(self._body) <= SHORT_BYTES:
            self._hand_over(self._body)
        else:
            limits.turns.add(self._tenant, self.run)

    def _hand_over(self, body: bytes | Problem) -> None:
        self._limits.let_go(self._connection)
        self._body = b""
        self._connection.taken_in(body)
