"""Decodes a compressed body in parts, one in each turn of the event loop, and counts the decoded bytes against
limits.
"""

from __future__ import annotations

from typing import Protocol

from gateway.core.request import Callback, Reason
from gateway.proxy.limits import ConnectionLimits, LimitedConnection
from gateway.wire.errors.replies import Problem
from gateway.wire.http.encoding import CorruptBody, Decoding


class CompressedConnection(LimitedConnection, Protocol):
    """A client connection with a compressed body."""

    def decoded(self, body: bytes | Problem) -> None:
        """Take the decoded body, or the problem that prevented it."""


class BodyDecoder:
    """Decodes one body. The connection's `decoded` gets the result, unless `stop` was called before."""

    __slots__ = ("_connection", "_decoding", "_limits", "_stopped")

    def __init__(self, connection: CompressedConnection, limits: ConnectionLimits, coding: bytes, body: bytes) -> None:
        self._connection = connection
        self._limits = limits
        self._decoding = Decoding(coding, body)
        self._stopped = False

    def stop(self) -> None:
        """Stop decoding, because the client has left."""
        self._stopped = True

    def run(self) -> None:
        """Decode one part. The next part is queued behind the parts of all other bodies."""
        if self._stopped:
            return
        try:
            self._step()
        except Exception as error:  # noqa: BLE001 - a bug costs this connection
            self._connection.broke(Callback.CLIENT, error)

    def _step(self) -> None:
        decoding, limits, problem = self._decoding, self._limits, None
        is_whole = False
        try:
            is_whole = decoding.step()
        except CorruptBody as exc:
            coding = decoding.coding.decode()
            problem = Problem(Reason.BAD_REQUEST, f"The body is not valid {coding}, its Content-Encoding: {exc}.")
        if problem is not None:
            pass
        elif decoding.size > limits.max_body_bytes:
            problem = limits.too_large()
        elif not limits.holds(self._connection, decoding.held):
            problem = Problem(Reason.RECEIVING_FULL)
        elif not is_whole:
            limits.turns.add(self.run)
            return
        limits.let_go(self._connection)
        self._connection.decoded(decoding.decoded() if problem is None else problem)
