"""Takes in the body of one request: decodes it if it is compressed, and parses it in parts if it is very long. It takes
turns with the bodies of other tenants, so that no body holds up the loop for long.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

from gateway.core.results import Callback, Reason
from gateway.proxy.limits import ConnectionLimits, LimitedConnection
from gateway.proxy.turns import SHORT_BYTES
from gateway.wire.errors.replies import Problem
from gateway.wire.http.decoding import CorruptBody, Decoding
from gateway.wire.parsed import Parsed
from gateway.wire.request import BadRequest, bad_request

WHOLE_BYTES: Final = 2 * 2**20
"""A body up to this size is parsed and sent in one turn: at 16 ms for each MiB of the dearest text, it ends in time."""


class BodyOwner(LimitedConnection, Protocol):
    """The client connection that has received a body."""

    def taken_in(self, body: bytes | Problem) -> None:
        """Parse the plain body in one go, or take the problem that a body has."""

    def parsing(self, body: bytes) -> Iterator[Parsed | None]:
        """The parts of the work of parsing a very long body: None after each, and the result after the last. May raise
        BadRequest.
        """

    def parsed(self, parsed: Parsed, body_bytes: int) -> None:
        """Start the exchange of a very long body that is parsed."""


class BodyIntake:
    """The intake of one body. Its result goes to `taken_in` or `parsed` of the connection, unless `stop` is called."""

    __slots__ = ("_body", "_connection", "_decoding", "_limits", "_parsed", "_parts", "_size", "_stopped", "_tenant")

    def __init__(
        self, connection: BodyOwner, limits: ConnectionLimits, tenant: str, coding: bytes | None, body: bytes
    ) -> None:
        self._connection = connection
        self._limits = limits
        self._tenant = tenant
        self._body = body
        self._decoding = None if coding is None else Decoding(coding, body)
        self._parts: Iterator[Parsed | None] | None = None
        self._parsed: Parsed | None = None
        self._size = 0
        """Bytes of the plain body that is parsed."""
        self._stopped = False

    def start(self) -> None:
        """Begin to decode at once if the tenant is within its share; otherwise wait for a turn."""
        turns, tenant = self._limits.turns, self._tenant
        # The first step of decoding is no longer than the work on a short body.
        if self._decoding is not None and turns.may_start(tenant, SHORT_BYTES):
            self.run()
        else:
            turns.add(tenant, self.run)

    def stop(self) -> None:
        """Stop, because the client has left."""
        self._stopped = True
        self._body = b""
        self._parts = self._parsed = None

    def run(self) -> None:
        """Do one part of the work."""
        if self._stopped:
            return
        try:
            if self._decoding is not None:
                self._decode(self._decoding)
            elif self._parsed is not None:
                self._place(self._parsed)
            elif self._parts is None and len(self._body) <= WHOLE_BYTES:
                self._hand_over(self._body)
            else:
                self._parse()
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
            limits.holds(self._connection, len(self._body), self._tenant)
        if problem is not None:
            self._hand_over(problem)
        elif is_whole and len(self._body) <= SHORT_BYTES:
            self._hand_over(self._body)
        else:
            limits.turns.add(self._tenant, self.run)

    def _parse(self) -> None:
        turns = self._limits.turns
        since = turns.begin()
        if self._parts is None:
            self._parts = self._connection.parsing(self._body)
            self._size = len(self._body)
            self._body = b""
        problem = None
        try:
            self._parsed = next(self._parts)
        except BadRequest as exc:
            problem = bad_request(exc)
        turns.end(self._tenant, since)
        if problem is not None:
            self._hand_over(problem)
            return
        if self._parsed is not None:
            self._parts = None
        turns.add(self._tenant, self.run)

    def _place(self, parsed: Parsed) -> None:
        """Hand over the parsed body. Finding its prefix and sending it take a turn as well."""
        since = self._limits.turns.begin()
        self._parsed = None
        self._connection.parsed(parsed, self._size)
        self._limits.turns.end(self._tenant, since)

    def _hand_over(self, body: bytes | Problem) -> None:
        self._body = b""
        self._parts = None
        self._connection.taken_in(body)
