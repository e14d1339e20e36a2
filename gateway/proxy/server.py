"""The client's side of a connection: a protocol that uvicorn runs, guarded, and joined to the gate without a framework.

This protocol closes gaps of uvicorn 0.54 (measured; see docs/internals/adr/0001-data-plane.md). These are connections
that send nothing or half a request for ever, headers without limit, and trailers taken for headers. Others are a
disconnect hidden behind a pipelined request, and readers that stall for ever.

    IDLE ──bytes──> RECEIVING ──whole request──> ANSWERING ──answer complete──> IDLE
                        └── refused with the body unread ──> LINGERING ──> closed
"""

from __future__ import annotations

import asyncio
from enum import Enum, auto
from typing import Any, Final

import httptools
from uvicorn.config import Config
from uvicorn.server import ServerState

from gateway.core.request import Callback, Endpoint, Reason
from gateway.proxy.clock import monotonic
from gateway.proxy.counting import CountAsker, CountUnderWay
from gateway.proxy.decoding import BodyDecoder
from gateway.proxy.exchange import Client, Exchange
from gateway.proxy.handler import Caller, RequestHandler
from gateway.proxy.limits import ConnectionLimits
from gateway.proxy.outgoing import TRANSPORT_HIGH_WATER_BYTES
from gateway.proxy.presence import Presence
from gateway.wire.errors.replies import OPENAI, Problem
from gateway.wire.http.encoding import coding_of
from gateway.wire.http.headers import RequestHead, asks_websocket, read_head, status_line, without_upgrade
from gateway.wire.http.lines import number
from gateway.wire.malformed import malformed
from gateway.wire.target import COUNTING, POSTS, read_target

# Bytes on the wire for each byte of a body; chunks of one byte need six.
MAX_FRAMING: Final = 8
QUESTION_MARK: Final = 0x3F


class Phase(Enum):
    """State of a connection."""

    IDLE = auto()
    RECEIVING = auto()
    ANSWERING = auto()
    LINGERING = auto()


# Reading a member through its class costs ten times as much as a name of the module (CPython 3.11).
_IDLE: Final = Phase.IDLE
_RECEIVING: Final = Phase.RECEIVING
_ANSWERING: Final = Phase.ANSWERING
_LINGERING: Final = Phase.LINGERING
_NO_HEAD: Final = RequestHead()


class ClientConnection(Client):
    """One client connection; one request at a time. To uvicorn it is one of its own protocols."""

    def __init__(
        self,
        gate: RequestHandler,
        guard: ConnectionLimits,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__()
        self.connections: set[Any] = server_state.connections
        self.parser: Any = httptools.HttpRequestParser(self)
        # Bytes after a request with `Connection: close` are refused here, not by the parser.
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._gate = gate
        self._guard = guard
        self._supervisor = gate.driver.supervisor
        self._phase = _IDLE
        self._pipelined = False
        self._relay: Exchange | CountUnderWay | None = None
        self._place: Presence | None = None
        """The pool that the request under way is in."""
        self._decoder: BodyDecoder | None = None
        """Decodes the body under way, if it came compressed."""
        self._begin()

    def _begin(self) -> None:
        self._head = _NO_HEAD
        self._head_done = False
        self._raw_head: bytes | bytearray = b""
        self._received_bytes = 0
        self._path = b""
        self._endpoint: Endpoint | None = None
        self._caller: Caller | None = None
        self._problem: Problem | None = None
        self._dialect = OPENAI
        self._body: bytes | bytearray = b""
        self._body_bytes = 0
        self._urgent = False
        self._keep_alive = True
        self._whole = False
        self.url = b""

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.connections.add(self)
        guard = self._guard
        if not guard.opened(self):
            transport.abort()
            return
        transport.set_write_buffer_limits(high=TRANSPORT_HIGH_WATER_BYTES)
        guard.receiving.start(self, monotonic())

    def connection_lost(self, exc: Exception | None) -> None:
        self.connections.discard(self)
        self._guard.closed(self)
        if self._decoder is not None:
            self._decoder.stop()
        self.parser = None
        self.eof_received()

    def eof_received(self) -> None:
        """A client that closes its sending side has hung up: there is no way to tell it from one that is gone."""
        # Said here and not left to connection_lost, which waits until everything written has been taken.
        relay = self._relay
        try:
            self._leave(Reason.CLIENT_GONE)
        except Exception as error:  # noqa: BLE001 - a bug costs this connection
            self._relay = relay
            self.broke(Callback.CLIENT, error)

    def data_received(self, data: bytes) -> None:
        try:
            self._received(data)
        except Exception as error:  # noqa: BLE001 - a bug costs this connection
            self.broke(Callback.CLIENT, error)

    def _received(self, data: bytes) -> None:
        phase = self._phase
        if phase is _LINGERING:
            return
        if phase is _ANSWERING:
            # Were it parsed, a disconnect behind it would go unseen for as long as the answer takes.
            if data.strip(b"\r\n"):
                self.abort()
            return
        if phase is _IDLE:
            # Line ends between requests are no request (RFC 9112, 2.2), and no part of the next one's head.
            data = data.lstrip(b"\r\n")
            if not data:
                return
            self._phase = _RECEIVING
            self._begin()
            self._guard.idle.stop(self)
            self._guard.receiving.start(self, monotonic())
        self._received_bytes += len(data)
        if not self._head_done and self._is_head_too_large(data):
            self._reject(Problem(Reason.HEADERS_TOO_LARGE))
        else:
            self._feed(data)

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._ignore_upgrade()
        except httptools.HttpParserCallbackError as callback:
            # httptools makes a parser error of whatever a callback raises: that is a bug, and no fault of the client.
            raised = callback.__context__
            self._supervisor.caught(Callback.CLIENT, raised if isinstance(raised, Exception) else callback)
            self._reject(Problem(Reason.INTERNAL))
        except httptools.HttpParserError as exc:
            self._reject(Problem(Reason.BAD_REQUEST, f"The request is not well-formed HTTP: {exc}"))
        else:
            self._fed()

    def _ignore_upgrade(self) -> None:
        """Read a head again without its Upgrade, which a server may ignore (RFC 9110, 7.8); Java's client asks for h2c.

        llhttp takes what comes behind such a head for another protocol, and not for the body. A client that opens a
        WebSocket (Codex does, on /v1/responses) hears at once that it has to go on without.
        """
        raw = bytes(self._raw_head)
        if self.parser.get_method() == b"GET" and asks_websocket(raw):
            self._reject(Problem(Reason.NO_WEBSOCKETS))
            return
        plain = without_upgrade(raw)
        if plain == raw:
            self._reject(Problem(Reason.BAD_REQUEST, "CONNECT is not supported: send the request itself."))
            return
        self.parser = httptools.HttpRequestParser(self)
        self.url, self._whole, self._raw_head = b"", False, plain
        self._feed(plain)

    def _fed(self) -> None:
        if self._pipelined:
            self.abort()
        elif self._phase is _RECEIVING:
            if self._urgent and self._problem is not None:
                self._reject(self._problem)
            elif self._whole:
                self._answer()
            elif self._received_bytes > 2 * self._guard.max_header_bytes + MAX_FRAMING * self._body_bytes:
                self._reject(Problem(Reason.HEADERS_TOO_LARGE, "The chunk extensions or the trailers are too large."))
            elif self._body and not self._guard.holds(self, len(self._body)):
                self._reject(Problem(Reason.RECEIVING_FULL))

    def _is_head_too_large(self, data: bytes) -> bool:
        """Look at the bytes of a head before they are parsed: httptools would collect them without limit."""
        raw: bytes | bytearray = data
        if self._raw_head:
            # Grown in place, since a client may send its head byte by byte.
            raw = self._raw_head if isinstance(self._raw_head, bytearray) else bytearray(self._raw_head)
            raw += data
        self._raw_head = raw
        limit = self._guard.max_header_bytes
        return len(raw) > limit and not 0 <= raw.find(b"\r\n\r\n") <= limit - 4

    # ---- httptools

    def on_message_begin(self) -> None:
        if self._whole:
            self._pipelined = True

    def on_url(self, url: bytes) -> None:
        self.url += url

    # There is no `on_header`: the wanted headers are read from the raw head, which llhttp has found well formed by
    # then. That saves a third of the parsing, and keeps trailers, which it reports as headers, out of the way.

    def on_headers_complete(self) -> None:
        if self._pipelined or self.parser.should_upgrade():
            return
        self._head_done = True
        at = monotonic()
        parser = self.parser
        head = self._read_head()
        head.at = at
        self._raw_head = b""
        version = "1.1" if head.http_11 else parser.get_http_version()
        self.chunked = version == "1.1"
        self._keep_alive = self.chunked and parser.should_keep_alive()
        gate = self._gate
        self._problem = malformed(version, head)
        if self._problem is not None:
            self._urgent = True
            return
        self._endpoint, self._caller, self._problem = gate.check(parser.get_method(), self._path, head)
        length = head.fields.get(b"content-length")
        if length is not None and not 0 <= number(length) <= self._guard.max_body_bytes:
            self._problem = self._problem or self._guard.too_large()
            self._urgent = True
        elif b"expect" in head.fields and self.chunked:
            # A client that asks first must not be made to send what is refused anyway.
            if self._problem is None:
                self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            else:
                self._urgent = True

    def _read_head(self) -> RequestHead:
        """Read the head as it has come, whole or not: what to answer, and how to say it."""
        raw = self._raw_head if isinstance(self._raw_head, bytes) else bytes(self._raw_head)
        head = self._head = read_head(raw)
        path = self.url.partition(b"?")[0] if QUESTION_MARK in self.url else self.url
        if path not in POSTS:
            path, authority = read_target(path)
            if authority is not None and b"host" in head.fields:
                head.fields[b"host"] = authority
        self._path = path
        gate = self._gate
        self._dialect = gate.dialect(path, head)
        if head.has_origin:
            gate.greet(self.parser.get_method(), head, raw)
        return head

    def on_body(self, body: bytes) -> None:
        if self._pipelined:
            return
        self._body_bytes += len(body)
        if self._body_bytes > self._guard.max_body_bytes:
            self._body = b""
            self._problem = self._problem or self._guard.too_large()
            self._urgent = True
        elif self._problem is not None:
            return
        elif not self._body:
            self._body = body
        elif type(self._body) is bytearray:
            self._body += body
        else:
            # Not a list of pieces: chunks of two bytes would take twenty times their size.
            self._body = bytearray(self._body + body)

    def on_message_complete(self) -> None:
        if not self._pipelined:
            self._whole = True

    # ---- answering

    def _answer(self) -> None:
        self._phase = _ANSWERING
        guard, gate = self._guard, self._gate
        guard.receiving.stop(self)
        body = self._body if isinstance(self._body, bytes) else bytes(self._body)
        self._body = b""
        if guard.parts:
            guard.let_go(self)
        problem = self._problem
        if problem is not None:
            self._refuse(problem)
        elif self._endpoint is not None:
            coding = coding_of(self._head.fields) if self._head.unusual else None
            if coding is None:
                self._enter(body)
            else:
                self._decoder = BodyDecoder(self, guard, coding, body)
                self._decoder.run()
        elif self._head.preflight:
            self.write(b"".join((status_line(204), self._head.cors, self._head.preflight, b"\r\n")))
            self.done()
        else:
            found = gate.read(self._path, self._caller)
            if isinstance(found, Problem):
                self._refuse(found)
            else:
                self._answer_read(*found)

    def _enter(self, body: bytes) -> None:
        """Make a request of what has come, or say what is wrong with it."""
        gate, endpoint, caller = self._gate, self._endpoint, self._caller
        assert endpoint is not None
        assert caller is not None
        if self._path in COUNTING:
            asker = CountAsker(self, caller.tenant, self._head.request_id.encode())
            count = gate.counting.start(asker, gate.policy, caller.tier, body)
            if isinstance(count, CountUnderWay):
                self._relay = count
            else:
                self._turn_away(count, close=not self._keep_alive)
                self.done()
            return
        entered = gate.enter(self, endpoint, caller, self._dialect, self._head, body)
        if isinstance(entered, Exchange):
            self._relay = entered
            gate.driver.arrive(entered.ask, entered)
        else:
            self._turn_away(entered, close=not self._keep_alive)
            self.done()

    def decoded(self, body: bytes | Problem) -> None:
        """A body that came compressed is whole, or there is none."""
        self._decoder = None
        if isinstance(body, Problem):
            self._refuse(body)
        else:
            self._enter(body)

    def _refuse(self, problem: Problem) -> None:
        """Say what is wrong with a request that has come whole."""
        self._turn_away(problem, close=not self._keep_alive)
        self.done()

    def _answer_read(self, status: int, body: bytes, lines: bytes = b"") -> None:
        head = b"%bcontent-type: application/json\r\ncontent-length: %d\r\n" % (status_line(status), len(body))
        self.write(b"".join((head, lines, self._head.cors, b"\r\n", body)))
        self.done()

    def counted(self, body: bytes, rid: bytes) -> None:
        """The answer to a request for a count."""
        self._answer_read(200, body, b"x-request-id: %b\r\nrequest-id: %b\r\n" % (rid, rid))

    def _turn_away(self, problem: Problem, close: bool) -> None:
        answer = self._gate.turn_away(self._dialect, problem, self._head, self._caller, close=close)
        if self.parser.get_method() == b"HEAD":
            # Bytes after the head would be taken for the beginning of the next answer.
            answer = answer[: answer.index(b"\r\n\r\n") + 4]
        self.write(answer)

    def _reject(self, problem: Problem) -> None:
        """Answer before the request is whole, and close without resetting what is on its way to the client."""
        guard = self._guard
        guard.receiving.stop(self)
        guard.let_go(self)
        self._body = b""
        if not self._head_done:
            self._raw_head = bytes(self._raw_head) + b"\r\n\r\n"
            self._read_head()
        self._turn_away(problem, close=True)
        self.hand_on()
        self._phase = _LINGERING
        # Closing with unread bytes would send RST and could destroy the answer in the client's buffer.
        if self.transport.can_write_eof():
            self.transport.write_eof()
        guard.lingering.start(self, monotonic())

    # ---- Client

    def placed(self, pool: str, since: float) -> None:
        """The request is in that pool, since it was first dispatched."""
        place, before = self._guard.presence(pool), self._place
        if place is before:
            return
        now = monotonic()
        if before is not None:
            before.undo(since, now)
        place.begin(since, now)
        self._place = place

    def _out(self) -> None:
        """The request is in no pool any more."""
        place, self._place = self._place, None
        if place is not None:
            place.end(monotonic())

    def done(self) -> None:
        """The answer is complete."""
        self._relay = None
        try:
            self._rest()
        except Exception as error:  # noqa: BLE001 - a bug costs this connection
            self._supervisor.caught(Callback.CLIENT, error)
            self.transport.abort()

    def _rest(self) -> None:
        """Wait for another request, or close."""
        self._out()
        if self._keep_alive and not self._gate.draining and not self.transport.is_closing():
            self._phase = _IDLE
            self._whole = self._head_done = False
            self._guard.idle.start(self, monotonic())
            if self.full:
                # A client that asks on without reading would pile up answers.
                self.transport.pause_reading()
        else:
            self.close()

    def cut(self, politely: bool) -> None:
        """The answer ends here, incomplete, and the connection with it."""
        self._relay = None
        self._out()
        if politely:
            self.close()
        else:
            self.transport.abort()

    # ---- Outgoing

    def watch_stall(self) -> None:
        super().watch_stall()
        self._guard.stalled.start(self, monotonic())

    def held_up(self) -> None:
        if self._relay is not None:
            self._relay.pause()
        elif not self.transport.is_closing():
            self.transport.pause_reading()

    def caught_up(self) -> None:
        self._guard.stalled.stop(self)
        if self._relay is not None:
            self._relay.resume()
        else:
            self.transport.resume_reading()

    # ---- ends

    def too_slow(self) -> None:
        """The request is not whole in time; a connection that sent nothing is closed without a word."""
        if self._phase is _RECEIVING:
            self._reject(Problem(Reason.RECEIVE_TIMEOUT))
        else:
            self.close()

    def stalled(self) -> None:
        """The client takes nothing any more, or next to nothing."""
        if self.has_taken_some:
            self.watch_stall()
            return
        self._leave(Reason.CLIENT_STALLED)
        self.abort()

    def close(self) -> None:
        """Close after what was written has gone out, or in `write_stall_s` if it does not."""
        self.hand_on()
        self.transport.close()
        self.watch_stall()

    def abort(self) -> None:
        """Close at once."""
        self._leave(Reason.CLIENT_GONE)
        self.transport.abort()

    def broke(self, callback: Callback, error: Exception) -> None:
        """Something raised while it worked on this connection: say that this was a bug, if that can be, and close it.

        A request that is under way is ended by the driver, which frees what it holds.
        """
        relay = self._relay
        if isinstance(relay, CountUnderWay):
            relay.left(Reason.INTERNAL)
            self._relay = relay = None
        if relay is None:
            self._supervisor.caught(callback, error)
        else:
            relay.broke(callback, error)
            if self._relay is None:
                return
        try:
            if relay is None and self._phase is _ANSWERING and not self.transport.is_closing():
                self._keep_alive = False
                self._turn_away(Problem(Reason.INTERNAL), close=True)
                self.done()
            else:
                self.abort()
        except Exception as again:  # noqa: BLE001 - nothing can be said any more
            self._supervisor.caught(callback, again)
            self.transport.abort()

    def shutdown(self) -> None:
        """uvicorn: the server is going down. Answers under way are finished, and the connection then closed."""
        if self._phase is _IDLE:
            self.close()

    def _leave(self, why: Reason) -> None:
        relay, self._relay = self._relay, None
        if relay is not None:
            self._out()
            relay.left(why)
