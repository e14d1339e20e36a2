"""Connections to replicas: kept alive, one request at a time on each, closed for good when a request is cancelled."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Protocol, cast
from urllib.parse import urlsplit

import httptools

from gateway.core.model import End, Endpoint
from gateway.core.rules import Pool, ReplicaSpec
from gateway.wire.framing import ChunkReader, FramingError
from gateway.wire.headers import upstream_prefix

log = logging.getLogger("tailgate.upstream")

MAX_HEAD_BYTES = 64 * 1024
# Below the 5 s after which uvicorn, and so vLLM and SGLang, closes an idle connection from its side.
IDLE_LIMIT_S = 4.0


class Line(Protocol):
    """What a receiver can do to the call it waits for."""

    def cancel(self) -> None:
        """Give it up: the connection is closed at once, and the receiver hears nothing more."""

    def pause(self) -> None:
        """Stop reading the answer."""

    def resume(self) -> None:
        """Read on."""


class Receiver(Protocol):
    """Whoever waits for an answer. Exactly one of `on_end` and `on_lost` is called, once, and nothing after it."""

    line: Line | None
    """Set by the upstream: the call as it stands."""

    def on_sent(self) -> None:
        """The request has been handed to a connection."""

    def on_head(self, status: int, headers: dict[bytes, bytes]) -> None:
        """The head of the answer; names are lower case."""

    def on_body(self, pieces: list[bytes], raw: bytes | None) -> None:
        """Payload as it came; `raw` is the same with its chunk framing, where that is whole chunks exactly."""

    def on_end(self) -> None:
        """The answer is complete."""

    def on_lost(self, end: End) -> None:
        """There will be no more: never connected, broken off, or not HTTP."""


class Connection(asyncio.Protocol):
    """One TCP connection to a replica. `cancel` is the only way to give up a request; it closes the connection."""

    __slots__ = (
        "_buffer",
        "_chunks",
        "_headers",
        "_in_body",
        "_keep_alive",
        "_left",
        "_started",
        "fast",
        "idle_since",
        "receiver",
        "request",
        "reused",
        "transport",
        "upstream",
    )

    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self.receiver: Receiver | None = None
        self.request = b""
        self.reused = False
        self.idle_since = 0.0
        self._reset()

    def _reset(self) -> None:
        self._buffer = b""
        self._headers: dict[bytes, bytes] = {}
        self._chunks: ChunkReader | None = None
        self._left: int | None = None
        self._in_body = False
        self._keep_alive = False
        self._started = False
        self.fast: Callable[[bytes], bool] | None = None
        """Tried first on bytes of the body: True if it has dealt with them. Only whole chunks may be."""

    # ---- sending

    def send(self, request: bytes, receiver: Receiver) -> None:
        """Start a request on this connection, which is idle."""
        receiver.line = self
        self.receiver = receiver
        self.request = request
        self.transport.write(request)
        receiver.on_sent()

    def cancel(self) -> None:
        """Close at once, unanswered; the receiver hears nothing more."""
        self.receiver = self.fast = None
        self.transport.abort()

    def pause(self) -> None:
        """Stop reading: whoever takes the answer is slow."""
        if not self.transport.is_closing():
            self.transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if not self.transport.is_closing():
            self.transport.resume_reading()

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        fast, chunks = self.fast, self._chunks
        if fast is not None and chunks is not None and chunks.at_boundary and fast(data):
            return
        if self.receiver is None:
            # Bytes nobody asked for: the connection is not in the state we think it is.
            self.transport.abort()
            return
        try:
            if self._in_body:
                self._body(data)
            else:
                self._head(data)
        except (httptools.HttpParserError, FramingError) as exc:
            log.warning("replica %s sent what is not HTTP: %s", self.upstream.spec.name, exc)
            self._lost(End.TRUNCATED)

    def eof_received(self) -> bool | None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self.upstream.closed(self)
        if self.receiver is None:
            return
        if self._in_body and self._left is None and self._chunks is None:
            # A body without length ends with the connection, if it ends in peace.
            if exc is None:
                self._end()
            else:
                self._lost(End.TRUNCATED)
        elif self._started:
            self._lost(End.TRUNCATED)
        elif self.reused:
            receiver, self.receiver = self.receiver, None
            self.upstream.resend(self.request, receiver)
        else:
            self._lost(End.RESET)

    # ---- the head

    def _head(self, data: bytes) -> None:
        self._started = True
        self.request = b""
        if self._buffer:
            data, self._buffer = self._buffer + data, b""
        head_end = data.find(b"\r\n\r\n") + 4
        if head_end < 4:
            if len(data) > MAX_HEAD_BYTES:
                raise FramingError("the head of the answer is longer than 64 KiB")
            if not data.startswith(b"HTTP/"[: len(data)]):
                raise FramingError("the answer does not begin with HTTP/")
            self._buffer = data
            return
        self._headers = {}
        parser = httptools.HttpResponseParser(self)
        try:
            parser.feed_data(data[:head_end])
        except httptools.HttpParserUpgrade as exc:
            raise FramingError("the answer changes protocol") from exc
        status = parser.get_status_code()
        if status < 200:
            if len(data) > head_end:
                self._head(data[head_end:])
            return
        self._keep_alive = parser.should_keep_alive()
        self._frame(status)
        self._in_body = True
        receiver = self.receiver
        assert receiver is not None
        receiver.on_head(status, self._headers)
        if self.receiver is receiver and (len(data) > head_end or self._left == 0):
            self._body(data[head_end:])

    def on_header(self, name: bytes, value: bytes) -> None:
        """httptools: one header."""
        self._headers[name.lower()] = value

    def _frame(self, status: int) -> None:
        """Find out how the body ends. What is ambiguous is refused, not guessed."""
        coding = self._headers.get(b"transfer-encoding")
        length = self._headers.get(b"content-length")
        if status in (204, 304):
            self._left = 0
        elif coding is not None:
            if coding.lower() != b"chunked" or length is not None:
                raise FramingError("the answer has an unknown transfer encoding")
            self._chunks = ChunkReader()
        elif length is not None:
            if not length.isdigit():
                raise FramingError("the answer has a malformed content-length")
            self._left = int(length)
        else:
            self._keep_alive = False

    # ---- the body

    def _body(self, data: bytes) -> None:
        receiver = self.receiver
        assert receiver is not None
        chunks = self._chunks
        if chunks is not None:
            aligned = chunks.at_boundary
            pieces = chunks.feed(data)
            if pieces:
                whole = aligned and chunks.at_boundary and not chunks.done
                receiver.on_body(pieces, data if whole else None)
            if chunks.done and self.receiver is receiver:
                self._keep_alive = self._keep_alive and not chunks.extra
                self._end()
            return
        if self._left is None:
            receiver.on_body([data], None)
            return
        if len(data) > self._left:
            data, self._keep_alive = data[: self._left], False
        self._left -= len(data)
        if data:
            receiver.on_body([data], None)
        if not self._left and self.receiver is receiver:
            self._end()

    def _end(self) -> None:
        receiver, self.receiver = self.receiver, None
        assert receiver is not None
        keep = self._keep_alive and not self.transport.is_closing()
        self._reset()
        # First back to the pool, then the news: the next request may come from within it.
        if keep:
            self.upstream.release(self)
        else:
            self.transport.abort()
        receiver.on_end()

    def _lost(self, end: End) -> None:
        receiver, self.receiver = self.receiver, None
        self.fast = None
        self.transport.abort()
        if receiver is not None:
            receiver.on_lost(end)


class Connecting:
    """A request whose connection is being made."""

    __slots__ = ("task",)

    def __init__(self, task: asyncio.Task[None]) -> None:
        self.task = task

    def cancel(self) -> None:
        """Give up."""
        self.task.cancel()

    def pause(self) -> None:
        """Nothing is read yet."""

    def resume(self) -> None:
        """Nothing is read yet."""


class Upstream:
    """The connections of one replica."""

    def __init__(self, spec: ReplicaSpec, pool: Pool) -> None:
        self.spec = spec
        self.pool = pool
        self.prefixes = {e: upstream_prefix(e, spec, pool.upstream_key) for e in Endpoint}
        url = urlsplit(spec.url)
        self._host = url.hostname or ""
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if url.scheme == "https" else None
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()
        self._connecting: set[asyncio.Task[None]] = set()

    def send(self, request: bytes, receiver: Receiver) -> None:
        """Send `request`, a whole HTTP message, on an idle connection or on a new one."""
        connection = self._take_idle()
        if connection is None:
            self._connect(request, receiver, End.UNREACHABLE)
        else:
            connection.reused = True
            connection.send(request, receiver)

    def resend(self, request: bytes, receiver: Receiver) -> None:
        """The keep-alive race: the replica closed an idle connection just as a request was put on it.

        Not a byte came back, so it is sent once more, on a fresh connection. Whether the replica has seen it the
        first time is unknown: if it cannot be reached now, that is a reset, which is not retried elsewhere.
        """
        self._connect(request, receiver, End.RESET)

    def without_key(self, said: bytes) -> bytes:
        """A replica's words about an error, less the key that we sent it."""
        key = self.pool.upstream_key
        return said if key is None else said.replace(key.encode(), b"[...]")

    def release(self, connection: Connection) -> None:
        """Take back a connection whose answer is complete."""
        connection.idle_since = monotonic()
        self._idle.append(connection)

    def closed(self, connection: Connection) -> None:
        """A connection is gone."""
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def sweep(self, now: float) -> None:
        """Close what has been idle for too long."""
        while self._idle and now - self._idle[0].idle_since > IDLE_LIMIT_S:
            self._idle.pop(0).transport.close()

    @property
    def open_connections(self) -> int:
        """Connections, idle and in use."""
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

    def _take_idle(self) -> Connection | None:
        """The connection used last, which is the least likely to be closed by the other side just now."""
        oldest_fresh = monotonic() - IDLE_LIMIT_S
        while self._idle:
            connection = self._idle.pop()
            if connection.idle_since >= oldest_fresh and not connection.transport.is_closing():
                return connection
            connection.transport.close()
        return None

    def _connect(self, request: bytes, receiver: Receiver, otherwise: End) -> None:
        task = asyncio.get_running_loop().create_task(self._open(request, receiver, otherwise))
        receiver.line = Connecting(task)
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _open(self, request: bytes, receiver: Receiver, otherwise: End) -> None:
        connection = Connection(self)
        try:
            async with asyncio.timeout(self.pool.connect_timeout_s):
                await asyncio.get_running_loop().create_connection(
                    lambda: connection,
                    self._host,
                    self._port,
                    ssl=self._tls,
                    server_hostname=self._host if self._tls else None,
                )
        except TimeoutError:
            receiver.on_lost(End.CONNECT_TIMEOUT if otherwise is End.UNREACHABLE else otherwise)
        except OSError as exc:
            log.info("replica %s cannot be reached: %s", self.spec.name, exc)
            receiver.on_lost(otherwise)
        except asyncio.CancelledError:
            if connection.transport is not None:
                connection.transport.abort()
            raise
        else:
            if connection.transport.is_closing():
                receiver.on_lost(otherwise)
            else:
                # Not counted before: of one whose making was cancelled, uvloop never says that it was lost.
                self._all.add(connection)
                connection.send(request, receiver)


class Upstreams:
    """The connections of every replica of the policy, by replica name."""

    def __init__(self) -> None:
        self._by_name: dict[str, Upstream] = {}
        self._leaving: list[Upstream] = []

    def configure(self, pools: Iterable[Pool]) -> None:
        """Have an `Upstream` for each replica; those no longer wanted close when their last call has ended."""
        old, self._by_name = self._by_name, {}
        for pool in pools:
            for spec in pool.replicas:
                known = old.get(spec.name)
                if known is not None and known.spec == spec and known.pool.upstream_key == pool.upstream_key:
                    known.pool = pool
                    self._by_name[spec.name] = old.pop(spec.name)
                else:
                    self._by_name[spec.name] = Upstream(spec, pool)
        self._leaving.extend(old.values())
        self.sweep(monotonic())

    def get(self, name: str) -> Upstream | None:
        """The connections of the replica `name`; None if the policy has none of that name any more."""
        return self._by_name.get(name)

    def sweep(self, now: float) -> None:
        """Close idle connections, and replicas that have left; called about once a second."""
        for upstream in self._by_name.values():
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
        """Close everything."""
        for upstream in self._every():
            upstream.close()

    def _every(self) -> list[Upstream]:
        return [*self._by_name.values(), *self._leaving]
