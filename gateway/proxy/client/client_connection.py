"""The connection of one client: an asyncio protocol that uvicorn runs. It calls the request handler without a
framework.

It does not have the gaps of uvicorn's own protocol, which were measured in version 0.54
(docs/internals/adr/0001-data-plane.md). uvicorn waits for ever for the rest of a request, and for a client that stopped
reading. It accepts headers without limit, and takes trailers for headers. If a client leaves after it pipelined another
request, uvicorn does not notice.

    IDLE ──bytes──> RECEIVING ──whole request──> ANSWERING ──answer complete──> IDLE
                        └── refused with the body unread ──> LINGERING ──> closed
"""

from __future__ import annotations

import asyncio
from enum import Enum, auto
from typing import Any, Final

from uvicorn.config import Config
from uvicorn.server import ServerState

from gateway.core.results import Callback, Reason
from gateway.proxy.body_intake import BodyIntake
from gateway.proxy.client.answering import AnsweringConnection
from gateway.proxy.client.request_reader import RequestReader
from gateway.proxy.client_writer import TRANSPORT_HIGH_WATER_BYTES, AnswerUnderWay
from gateway.proxy.handler import RequestHandler
from gateway.proxy.limits import ConnectionLimits
from gateway.proxy.occupancy import Occupancy
from gateway.proxy.turns import TINY_BYTES
from gateway.wire.errors.replies import Problem
from gateway.wire.http.decoding import coding_of
from gateway.wire.http.lines import CR, LF
from gateway.wire.http.written_heads import status_line


class Phase(Enum):
    """State of a connection."""

    IDLE = auto()
    RECEIVING = auto()
    ANSWERING = auto()
    LINGERING = auto()


# Members get module-level names, because reading one through its enum class takes ten times as long (CPython 3.11).
_IDLE: Final = Phase.IDLE
_RECEIVING: Final = Phase.RECEIVING
_ANSWERING: Final = Phase.ANSWERING
_LINGERING: Final = Phase.LINGERING


class ClientConnection(AnsweringConnection):
    """One client connection, with one request at a time. uvicorn uses this class like its own protocols."""

    def __init__(
        self,
        handler: RequestHandler,
        limits: ConnectionLimits,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(handler, limits)
        self.connections: set[Any] = server_state.connections
        self._supervisor = handler.driver.supervisor
        self._phase = _IDLE
        self._occupancy: Occupancy | None = None
        """Counter of the pool that serves the current request; None if none does."""

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.connections.add(self)
        limits = self._limits
        if not limits.opened(self):
            transport.abort()
            return
        transport.set_write_buffer_limits(high=TRANSPORT_HIGH_WATER_BYTES)
        limits.receiving.start(self, self._clock())

    def connection_lost(self, exc: Exception | None) -> None:
        self.connections.discard(self)
        self._limits.closed(self)
        if self._intake is not None:
            self._intake.stop()
        self._reader.close()
        self.eof_received()

    def eof_received(self) -> None:
        """The client closed its sending side. It counts as gone, because a half-closed connection looks the same as a
        closed one.
        """
        # The end is reported here, because asyncio calls `connection_lost` only after the client has read everything.
        exchange = self._exchange
        try:
            self._leave(Reason.CLIENT_GONE)
        except Exception as error:  # noqa: BLE001 - a bug affects only this connection
            self._exchange = exchange
            self.broke(Callback.CLIENT, error)

    def data_received(self, data: bytes) -> None:
        try:
            self._received(data)
        except Exception as error:  # noqa: BLE001 - a bug affects only this connection
            self.broke(Callback.CLIENT, error)

    def _received(self, data: bytes) -> None:
        phase = self._phase
        if phase is _LINGERING:
            return
        if phase is _ANSWERING:
            # The next request is not parsed yet. Otherwise a later disconnect would be seen only when the answer is
            # complete.
            if data.strip(b"\r\n"):
                self.abort()
            return
        is_new = phase is _IDLE
        if is_new:
            # Line ends between requests (RFC 9112, 2.2) are ignored.
            if data[0] == CR or data[0] == LF:
                data = data.lstrip(b"\r\n")
                if not data:
                    return
            self._phase = _RECEIVING
            self._reader.begin()
            self._limits.idle.stop(self)
        reader = self._reader
        problem = reader.take(data)
        if reader.wants_continue:
            reader.wants_continue = False
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if problem is not None:
            self._reject(problem)
        elif reader.is_pipelined:
            self.abort()
        elif reader.is_whole:
            self._answer(reader)
        else:
            if is_new:
                self._limits.receiving.start(self, self._clock())
            if reader.body and not self._limits.holds(self, len(reader.body), reader.tenant):
                self._reject(Problem(Reason.RECEIVING_FULL))

    # ---- answering

    def _answer(self, reader: RequestReader) -> None:
        self._phase = _ANSWERING
        self._keep_alive = reader.keep_alive and not self._handler.leaving
        self.chunked = reader.is_http_11
        limits, head = self._limits, reader.head
        limits.receiving.stop(self)
        body = reader.take_body()
        problem = reader.problem
        if len(body) > TINY_BYTES and not limits.holds(self, len(body), reader.tenant):
            problem = problem or Problem(Reason.RECEIVING_FULL)
        if problem is not None:
            self._refuse(problem)
        elif reader.endpoint is not None:
            coding = coding_of(head.fields) if head.unusual else None
            if coding is None and limits.turns.may_start(reader.tenant, len(body)):
                self._enter(body)
            else:
                self._intake = BodyIntake(self, limits, reader.tenant, coding, body)
                self._intake.start()
        elif head.preflight:
            self.write(b"".join((status_line(204), head.cors, head.preflight, b"\r\n")))
            self.done()
        else:
            self._answer_plain(reader, body)

    def _reject(self, problem: Problem) -> None:
        """Reject a request before it is complete. The connection is closed without a TCP reset, because a reset could
        destroy the answer.
        """
        limits = self._limits
        limits.receiving.stop(self)
        limits.let_go(self)
        self._reader.give_up()
        self._write_rejection(problem, close=True)
        self.hand_on()
        self._phase = _LINGERING
        # Closing a socket with unread bytes sends a reset (RST), which could destroy the answer in the client's buffer.
        if self.transport.can_write_eof():
            self.transport.write_eof()
        limits.lingering.start(self, self._clock())

    # ---- Client

    def placed(self, pool: str, since: float) -> None:
        """The request has been in `pool` since it was dispatched at `since`."""
        occupancy = self._limits.occupancy(pool)
        if occupancy is self._occupancy:
            return
        self.unplaced(since)
        occupancy.begin(since, self._clock())
        self._occupancy = occupancy

    def unplaced(self, since: float) -> None:
        """The request, dispatched at `since`, has reached no replica: it never was in its pool."""
        occupancy, self._occupancy = self._occupancy, None
        if occupancy is not None:
            occupancy.undo(since, self._clock())

    def let_go(self) -> None:
        """The body is sent, or will not be."""
        if self._limits.parts:
            self._limits.let_go(self)

    def _out(self) -> None:
        """Count that the request leaves its pool, and that its body is gone."""
        self.let_go()
        occupancy, self._occupancy = self._occupancy, None
        if occupancy is not None:
            occupancy.end(self._clock())

    def done(self) -> None:
        """The answer is complete."""
        self._exchange = None
        try:
            self._rest()
        except Exception as error:  # noqa: BLE001 - a bug affects only this connection
            self._supervisor.caught(Callback.CLIENT, error)
            self.transport.abort()

    def _rest(self) -> None:
        """Wait for another request, or close."""
        self._out()
        if self._keep_alive and not self._handler.draining and not self.transport.is_closing():
            self._phase = _IDLE
            self._limits.idle.start(self, self._clock())
            if self.full:
                # While the client does not read its answers, no more of its requests are read. Otherwise answers would
                # pile up.
                self.transport.pause_reading()
        else:
            self.close()

    def cut(self) -> None:
        """The answer ends here, incomplete; close the connection."""
        self._exchange = None
        self._out()
        self.transport.abort()

    # ---- ClientWriter

    def watch_stall(self) -> None:
        super().watch_stall()
        self._limits.stalled.start(self, self._clock())

    def held_up(self) -> None:
        if self._exchange is not None:
            self._exchange.pause()
        elif not self.transport.is_closing():
            self.transport.pause_reading()

    def caught_up(self) -> None:
        self._limits.stalled.stop(self)
        if self._exchange is not None:
            self._exchange.resume()
        else:
            self.transport.resume_reading()

    # ---- ends

    def too_slow(self) -> None:
        """The request did not arrive in time: reject it. A connection that sent nothing is closed silently."""
        if self._phase is _RECEIVING:
            self._reject(Problem(Reason.RECEIVE_TIMEOUT))
        else:
            self.close()

    def stalled(self) -> None:
        """The client reads nothing, or almost nothing, of its answer: close the connection."""
        if self.has_taken_some:
            self.watch_stall()
            return
        self._leave(Reason.CLIENT_STALLED)
        self.abort()

    def close(self) -> None:
        """Close after all written bytes are sent, or after `write_stall_s`."""
        self.hand_on()
        self.transport.close()
        self.watch_stall()

    def abort(self) -> None:
        """Close at once."""
        self._leave(Reason.CLIENT_GONE)
        self.transport.abort()

    def broke(self, callback: Callback, error: Exception) -> None:
        """Handle an exception that a callback of this connection raised: send an error if possible, and close.

        The driver ends a request under way, and frees its resources.
        """
        exchange = self._exchange
        if isinstance(exchange, AnswerUnderWay):
            exchange.leave(Reason.INTERNAL)
            self._exchange = exchange = None
        if exchange is None:
            self._supervisor.caught(callback, error)
        else:
            exchange.broke(callback, error)
            if self._exchange is None:
                return
        try:
            if exchange is None and self._phase is _ANSWERING and not self.transport.is_closing():
                self._keep_alive = False
                self._write_rejection(Problem(Reason.INTERNAL), close=True)
                self.done()
            else:
                self.abort()
        except Exception as again:  # noqa: BLE001 - nothing more can be sent to the client
            self._supervisor.caught(callback, again)
            self.transport.abort()

    def shutdown(self) -> None:
        """Called by uvicorn when the server shuts down. An answer under way is finished; then the connection is
        closed.
        """
        if self._phase is _IDLE:
            self.close()

    def _leave(self, why: Reason) -> None:
        """End the request under way, if any, because the client has left. `Lifecycle.end` in the core cancels its
        attempts.
        """
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            self._out()
            exchange.leave(why)
