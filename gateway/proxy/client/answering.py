"""Answers a whole request of a client: by an exchange, by a count, or at once."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.proxy.body_intake import BodyIntake
from gateway.proxy.client.request_reader import RequestReader
from gateway.proxy.client_writer import AnswerUnderWay
from gateway.proxy.count_tokens import CountAsker, CountUnderWay
from gateway.proxy.exchanges.exchange import Exchange
from gateway.proxy.handler import RequestHandler
from gateway.proxy.limits import ConnectionLimits
from gateway.proxy.services import Client
from gateway.proxy.turns import TINY_BYTES
from gateway.wire.errors.replies import Problem
from gateway.wire.http.written_heads import status_line
from gateway.wire.parsed import Parsed
from gateway.wire.request import parse_in_parts
from gateway.wire.target import COUNTING


class AnsweringConnection(Client):
    """The part of a client connection that begins answers. A subclass receives the requests, and ends the answers."""

    def __init__(self, handler: RequestHandler, limits: ConnectionLimits) -> None:
        super().__init__()
        self._reader = RequestReader(handler, limits)
        self._handler = handler
        self._limits = limits
        self._clock = handler.driver.clock
        self._keep_alive = True
        self._exchange: Exchange | AnswerUnderWay | None = None
        self._intake: BodyIntake | None = None
        """Takes in the current body if it is long or compressed; else None."""

    def _answer_plain(self, reader: RequestReader, body: bytes) -> None:
        """Answer a request that no replica answers."""
        found = self._handler.read(reader.path, reader.caller)
        if isinstance(found, Problem):
            self._refuse(found)
        else:
            self._answer_read(*found)

    def _enter(self, body: bytes) -> None:
        """Start the exchange of the complete request, or reject it."""
        handler, reader = self._handler, self._reader
        endpoint, caller = reader.endpoint, reader.caller
        assert endpoint is not None
        assert caller is not None
        turns, is_tiny = self._limits.turns, len(body) <= TINY_BYTES
        since = 0.0 if is_tiny else turns.begin()
        entered: Exchange | CountUnderWay | Problem
        if reader.path in COUNTING:
            asker = CountAsker(self, caller.tenant, reader.head)
            entered = handler.counting.start(asker, handler.policy, caller.tier, body)
        else:
            entered = handler.enter(self, endpoint, caller, reader.dialect, reader.head, body)
        if not is_tiny:
            turns.end(caller.tenant, since)
        self._entered(entered)

    def _entered(self, entered: Exchange | CountUnderWay | Problem) -> None:
        if isinstance(entered, Exchange):
            self._exchange = entered
            self._handler.driver.arrive(entered.request, entered)
        elif isinstance(entered, CountUnderWay):
            self._exchange = entered
        else:
            self._refuse(entered)

    def taken_in(self, body: bytes | Problem) -> None:
        """Parse the plain body in one go, or take the problem that a body has."""
        self._intake = None
        if isinstance(body, Problem):
            self._refuse(body)
        else:
            self._enter(body)

    def parsing(self, body: bytes) -> Iterator[Parsed | None]:
        """The parts of the work of parsing a very long body, as from `parse_in_parts`."""
        reader, policy = self._reader, self._handler.policy
        endpoint, caller = reader.endpoint, reader.caller
        assert endpoint is not None
        assert caller is not None
        return parse_in_parts(endpoint, body, caller.tier.caps, policy.max_values, reader.path in COUNTING)

    def parsed(self, parsed: Parsed, body_bytes: int) -> None:
        """Start the exchange of a very long body that is parsed, or reject it."""
        self._intake = None
        handler, reader = self._handler, self._reader
        caller = reader.caller
        assert caller is not None
        if reader.path in COUNTING:
            asker = CountAsker(self, caller.tenant, reader.head)
            self._entered(handler.counting.place(asker, handler.policy, caller.tier, parsed))
        else:
            self._entered(handler.place(self, caller, reader.dialect, reader.head, parsed, body_bytes))

    def _refuse(self, problem: Problem) -> None:
        """Reject a complete request."""
        self._write_rejection(problem, close=not self._keep_alive)
        self.done()

    def _answer_read(self, status: int, body: bytes, lines: bytes = b"") -> None:
        head = b"%bcontent-type: application/json\r\ncontent-length: %d\r\n" % (status_line(status), len(body))
        # The answer to a HEAD must have no body, which would be read as the beginning of the next answer.
        body = b"" if self._reader.method == b"HEAD" else body
        self.write(b"".join((head, lines, self._reader.head.cors, self.closing_line(), b"\r\n", body)))
        self.done()

    def counted(self, body: bytes, rid: bytes) -> None:
        """Send the answer to a request for a count."""
        self._answer_read(200, body, b"x-request-id: %b\r\nrequest-id: %b\r\n" % (rid, rid))

    def _rejection(self, problem: Problem, close: bool) -> bytes:
        reader = self._reader
        return self._handler.rejection(reader.dialect, problem, reader.head, reader.caller, close=close)

    def _write_rejection(self, problem: Problem, close: bool) -> None:
        answer = self._rejection(problem, close)
        if self._reader.method == b"HEAD":
            answer = answer[: answer.index(b"\r\n\r\n") + 4]
        self.write(answer)

    def closing_line(self) -> bytes:
        """The header line that the connection closes after this answer, because the process ends soon; else empty.

        A load balancer that keeps connections would send requests until the port is closed.
        """
        if not self._handler.leaving:
            return b""
        self._keep_alive = False
        return b"connection: close\r\n"
