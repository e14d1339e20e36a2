"""Reads requests from one client connection, and checks their heads and limits."""

from __future__ import annotations

from typing import Any, Final

import httptools

from gateway.core.request import Endpoint
from gateway.core.results import Callback, Reason
from gateway.proxy.callers import Caller
from gateway.proxy.handler import RequestHandler
from gateway.proxy.limits import ConnectionLimits
from gateway.proxy.turns import SHORT_BYTES
from gateway.wire.errors.replies import OPENAI, Problem
from gateway.wire.http.headers import Beginning, RequestHead, asks_websocket, read_head, without_upgrade
from gateway.wire.http.lines import Names, number
from gateway.wire.malformed_heads import malformed
from gateway.wire.target import POSTS, read_target

# Limit on the bytes on the wire for each byte of a body. A chunk of one byte takes six.
MAX_FRAMING: Final = 8
QUESTION_MARK: Final = 0x3F
_NO_HEAD: Final = RequestHead()


class RequestReader:
    """Reads one request at a time. Its callbacks are called by httptools.

    Rules that need only the head are checked as soon as the head is complete.
    """

    __slots__ = (
        "_beginning",
        "_body_bytes",
        "_callback",
        "_clock",
        "_handler",
        "_head_done",
        "_is_admitted",
        "_is_urgent",
        "_limits",
        "_parser",
        "_raw_head",
        "_received_bytes",
        "_url",
        "body",
        "caller",
        "dialect",
        "endpoint",
        "head",
        "is_http_11",
        "is_pipelined",
        "is_whole",
        "keep_alive",
        "path",
        "problem",
        "wants_continue",
    )

    def __init__(self, handler: RequestHandler, limits: ConnectionLimits, callback: Callback = Callback.CLIENT) -> None:
        """`callback`: as which a bug in this reader is counted."""
        self._handler = handler
        self._callback = callback
        self._clock = handler.driver.clock
        self._limits = limits
        self._beginning = Beginning()
        self._parser: Any = httptools.HttpRequestParser(self)
        # The gateway, not the parser, refuses bytes after a request with `Connection: close`.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.is_pipelined = False
        """Whether another request arrived before this one was answered."""
        self.is_http_11 = True
        self.begin()

    def begin(self) -> None:
        """Expect a new request."""
        self.head = _NO_HEAD
        self._head_done = False
        self._raw_head: bytes | bytearray = b""
        self._received_bytes = 0
        self.path = b""
        self.endpoint: Endpoint | None = None
        self.caller: Caller | None = None
        self.problem: Problem | None = None
        """Why the request is refused; None while there is no reason."""
        self.dialect = OPENAI
        self.body: bytes | bytearray = b""
        self._body_bytes = 0
        self._is_admitted = False
        """Whether the limits of the tenant were asked before the whole body was read."""
        self._is_urgent = False
        """Whether the problem is answered at once, before the request is complete."""
        self.wants_continue = False
        """Whether the client waits for a 100 (Continue) before it sends the body."""
        self.keep_alive = True
        self.is_whole = False
        self._url = b""

    @property
    def tenant(self) -> str:
        """The tenant of the request; empty if its key is unknown."""
        return "" if self.caller is None else self.caller.tenant

    @property
    def method(self) -> bytes:
        """Method of the request that was read last."""
        method: bytes = self._parser.get_method()
        return method

    def take(self, data: bytes) -> Problem | None:
        """Read more bytes. Returns a problem that must be answered now, before the request is complete; else None."""
        self._received_bytes += len(data)
        if not self._head_done and self._is_head_too_large(data):
            return Problem(Reason.HEADERS_TOO_LARGE)
        return self._feed(data)

    def take_body(self) -> bytes:
        """Return the whole body, and forget it."""
        body = self.body if isinstance(self.body, bytes) else bytes(self.body)
        self.body = b""
        return body

    def give_up(self) -> None:
        """Drop the body. The head received so far is parsed, because the error answer depends on it."""
        self.body = b""
        if not self._head_done:
            self._raw_head = bytes(self._raw_head) + b"\r\n\r\n"
            self._read_head()

    def close(self) -> None:
        """Forget the parser, because the connection is closed.

        This breaks a reference cycle with the parser, which only the garbage collector could free.
        """
        self._parser = None

    def _feed(self, data: bytes) -> Problem | None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            return self._ignore_upgrade()
        except httptools.HttpParserCallbackError as callback:
            # httptools turns an exception of a callback into this parser error. Such an error is a bug, not the
            # client's fault.
            raised, supervisor = callback.__context__, self._handler.driver.supervisor
            supervisor.caught(self._callback, raised if isinstance(raised, Exception) else callback)
            return Problem(Reason.INTERNAL)
        except httptools.HttpParserError as exc:
            return Problem(Reason.BAD_REQUEST, f"The request is not well-formed HTTP: {exc}")
        if self.is_pipelined:
            return None
        if self._is_urgent:
            return self.problem
        if (
            not self.is_whole
            and self._received_bytes > 2 * self._limits.max_header_bytes + MAX_FRAMING * self._body_bytes
        ):
            return Problem(Reason.HEADERS_TOO_LARGE, "The chunk extensions or the trailers are too large.")
        return None

    def _ignore_upgrade(self) -> Problem | None:
        """Parse a head again without its Upgrade header, which a server may ignore (RFC 9110, 7.8).

        llhttp treats bytes after a head with Upgrade as another protocol, not as the body. Java's client asks for h2c
        this way. A client that opens a WebSocket (Codex, on /v1/responses) gets an error at once, and continues without
        one.
        """
        raw = bytes(self._raw_head)
        if self._parser.get_method() == b"GET" and asks_websocket(raw):
            return Problem(Reason.NO_WEBSOCKETS)
        plain = without_upgrade(raw)
        if plain == raw:
            return Problem(Reason.BAD_REQUEST, "CONNECT is not supported: send the request itself.")
        self._parser = httptools.HttpRequestParser(self)
        self._url, self.is_whole, self._raw_head = b"", False, plain
        return self._feed(plain)

    def _is_head_too_large(self, data: bytes) -> bool:
        """Whether a head is too large. This is checked before its bytes are parsed, because httptools has no limit."""
        raw: bytes | bytearray = data
        if self._raw_head:
            # The buffer grows in place, because a client may send its head byte by byte.
            raw = self._raw_head if isinstance(self._raw_head, bytearray) else bytearray(self._raw_head)
            raw += data
        self._raw_head = raw
        limit = self._limits.max_header_bytes
        return len(raw) > limit and not 0 <= raw.find(b"\r\n\r\n") <= limit - 4

    # ---- httptools

    def on_message_begin(self) -> None:
        if self.is_whole:
            self.is_pipelined = True

    def on_url(self, url: bytes) -> None:
        self._url += url

    # There is no `on_header`. The headers that are needed are read from the raw head, after llhttp has found it well
    # formed. This saves a third of the parsing time, and leaves out trailers, which llhttp reports as headers.

    def on_headers_complete(self) -> None:
        if self.is_pipelined or self._parser.should_upgrade():
            return
        self._head_done = True
        at = self._clock()
        parser = self._parser
        head = self._read_head()
        head.at = at
        self._raw_head = b""
        version = "1.1" if head.http_11 else parser.get_http_version()
        self.is_http_11 = version == "1.1"
        self.keep_alive = self.is_http_11 and parser.should_keep_alive()
        self.problem = malformed(version, head)
        if self.problem is not None:
            self._is_urgent = True
            return
        self.problem = self._check(head)
        length = head.fields.get(b"content-length")
        if length is not None and not 0 <= number(length) <= self._limits.max_body_bytes:
            self.problem = self.problem or self._limits.too_large()
            self._is_urgent = True
        elif b"expect" in head.fields and self.is_http_11:
            # A client that waits for a 100 gets it only if the body would not be refused anyway.
            self._admit_unread()
            self.wants_continue = self.problem is None
        elif length is not None and number(length) > SHORT_BYTES:
            self._admit_unread()

    def _check(self, head: RequestHead) -> Problem | None:
        """Find endpoint and caller, or a problem, of a well-formed head."""
        self.endpoint, self.caller, problem = self._handler.check(self.method, self.path, head)
        return problem

    def _admit_unread(self) -> None:
        """Refuse the request before its long body is read, if its head or the limits of its tenant allow that. Such a
        body costs more than a new connection for the next request.
        """
        self._is_admitted = True
        if self.problem is None and self.endpoint is not None and self.caller is not None:
            self.problem = self._handler.limit_problem(self.path, self.endpoint, self.caller)
        if self.problem is not None:
            self.body = b""
            self._is_urgent = True

    def _read_head(self) -> RequestHead:
        """Parse the head, even if it is incomplete: an error answer depends on its path, key and error format."""
        handler = self._handler
        raw = self._raw_head if isinstance(self._raw_head, bytes) else bytes(self._raw_head)
        head = self._read_lines(raw, handler.names)
        self.dialect = handler.dialect(self.path, head)
        if head.has_origin:
            handler.greet(self._parser.get_method(), head, raw)
        return head

    def _read_lines(self, raw: bytes, names: Names) -> RequestHead:
        head = self.head = read_head(raw, names, self._beginning)
        path = self._url.partition(b"?")[0] if QUESTION_MARK in self._url else self._url
        if path not in POSTS:
            path, authority = read_target(path)
            if authority is not None and b"host" in head.fields:
                head.fields[b"host"] = authority
        self.path = path
        return head

    def on_body(self, body: bytes) -> None:
        if self.is_pipelined:
            return
        self._body_bytes += len(body)
        if self._body_bytes > self._limits.max_body_bytes:
            self.body = b""
            self.problem = self.problem or self._limits.too_large()
            self._is_urgent = True
        elif self._body_bytes > SHORT_BYTES and not self._is_admitted:
            self._admit_unread()
        if self.problem is not None:
            return
        if not self.body:
            self.body = body
        elif type(self.body) is bytearray:
            self.body += body
        else:
            # Pieces are joined in one buffer. In a list, pieces of two bytes would take twenty times their size.
            self.body = bytearray(self.body + body)

    def on_message_complete(self) -> None:
        if not self.is_pipelined:
            self.is_whole = True
