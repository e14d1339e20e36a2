"""One connection to a replica: sends a request, reads the answer, and reports to its receiver."""

from __future__ import annotations

import asyncio
import logging
import math
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from gateway.core.pool_spec import ReplicaSpec
from gateway.core.results import AttemptOutcome, Callback
from gateway.proxy.replica.paced import PacedConnection
from gateway.wire.answers.oddity import Oddity
from gateway.wire.http.answer import (
    CHUNKED,
    MAX_HEAD_BYTES,
    TO_THE_END,
    AnswerHead,
    LargeHeadError,
    read_answer_head,
)
from gateway.wire.http.framing import ChunkReader, FramingError

log = logging.getLogger("tailgate.upstream")

# Size in bytes of the receive buffer of connections with a stream; Linux doubles it. uvloop reads up to 256 kB at once,
# and all of it would be kept here while the client is slow. A stream needs less than this per round trip. Whole answers
# may be large, so their connections keep the default.
STREAM_BUFFER_BYTES: Final = 32 * 1024

LAST_CHUNK_S: Final = 0.1
"""After a complete answer, seconds until the end of its HTTP message. Servers write both at once, so some round trips
are enough. A connection without its end is closed: its next bytes could not be told from those of the next answer.
"""


class Connecting:
    """A request whose connection is still being made."""

    __slots__ = ("task",)

    def __init__(self, task: asyncio.Task[None]) -> None:
        self.task = task

    def cancel(self) -> None:
        """Stop connecting."""
        self.task.cancel()

    def pause(self) -> None:
        """Does nothing, since nothing is read yet."""

    def resume(self) -> None:
        """Does nothing, since nothing is read yet."""


class AnswerReceiver(ABC):
    """Receives the answer to one request.

    Either `on_end` or `on_lost` is called, exactly once, as the last call. After a cancel, neither is called.
    """

    __slots__ = ("asks_for", "line", "streams")

    def __init__(self, streams: bool) -> None:
        self.streams = streams
        """Whether the answer arrives in pieces over a long time."""
        self.asks_for = ""
        """The model name in the request; empty if it is of no interest."""
        self.line: UpstreamConnection | Connecting | None = None
        """The connection of the call; None once the call is over."""

    @abstractmethod
    def on_sent(self) -> None:
        """The request was written to a connection."""

    @abstractmethod
    def on_head(self, head: AnswerHead) -> None:
        """The head of the answer."""

    @abstractmethod
    def pass_on(self, data: bytes) -> bool:
        """Take a read that begins with a chunk, if it is one plain event. Returns False if it is not: then the slow
        path is used.
        """

    @abstractmethod
    def on_body(self, pieces: list[bytes], raw: bytes | None) -> None:
        """Payload, as received. `raw`: the same bytes with their chunk framing, if they are exactly whole chunks."""

    @abstractmethod
    def on_more(self) -> bool:
        """All bytes so far were passed on, and the body goes on. Returns whether the answer does not: it said its
        end.
        """

    @abstractmethod
    def on_end(self) -> None:
        """The answer is complete."""

    @abstractmethod
    def on_lost(self, end: AttemptOutcome) -> None:
        """The request is lost: no connection was made, the connection broke, or the answer was not HTTP."""

    @abstractmethod
    def on_grace_over(self) -> None:
        """The grace for the rest of an answer is over, which the receiver had started."""

    @abstractmethod
    def broke(self, callback: Callback, error: Exception) -> None:
        """Report that a callback of the gateway raised an exception while it handled this request."""


class ConnectionOwner(ABC):
    """The part of the owner of a replica's connections that a connection uses."""

    def __init__(self, spec: ReplicaSpec, clock: Callable[[], float]) -> None:
        self.spec = spec
        self.clock = clock

    @abstractmethod
    def release(self, connection: UpstreamConnection) -> None:
        """Take back a connection after a complete answer, for reuse."""

    @abstractmethod
    def lost(self) -> None:
        """The replica closed or refused a connection, other than to end an answer."""

    @abstractmethod
    def closed(self, connection: UpstreamConnection) -> None:
        """Forget a connection that is closed."""

    @abstractmethod
    def odd(self, kind: Oddity, detail: str) -> None:
        """Count an odd answer."""


class UpstreamConnection(PacedConnection):
    """One TCP connection to a replica. A request can be given up only by `cancel`, which closes the connection."""

    __slots__ = (
        "_aligned",
        "_buffer",
        "_chunks",
        "_in_body",
        "_keep_alive",
        "_left",
        "_linger",
        "_narrow",
        "_started",
        "idle_since",
        "race_until",
        "receiver",
        "upstream",
    )

    def __init__(self, upstream: ConnectionOwner) -> None:
        super().__init__()
        self.upstream = upstream
        self.receiver: AnswerReceiver | None = None
        self.race_until = -math.inf
        """Time up to which a close is taken for that of an idle connection; below 0 on a new connection."""
        self.idle_since = 0.0
        self._narrow = False
        """Whether the kernel's receive buffer is limited to `STREAM_BUFFER_BYTES`."""
        self._linger: asyncio.TimerHandle | None = None
        """The timer of a connection whose answer is complete, and whose HTTP message is not."""
        self._reset()

    def _reset(self) -> None:
        self._buffer = b""
        self._chunks: ChunkReader | None = None
        self._aligned = False
        """Whether the next read begins with a chunk of the body."""
        self._left = 0
        """Remaining bytes of the body, or a code that says how the body ends otherwise (`wire.http.answer`)."""
        self._in_body = False
        self._keep_alive = False
        self._started = False

    def __repr__(self) -> str:
        if self.transport is None:
            state = "not connected"
        elif self.transport.is_closing():
            state = "closed"
        elif self._linger is not None:
            state = "after an answer, before its end in HTTP"
        elif self._in_body:
            state = "in a body in chunks" if self._chunks is not None else f"in a body, {self._left} bytes to come"
        elif self._started:
            state = f"in a head, {len(self._buffer)} bytes of it"
        else:
            state = "idle" if self.receiver is None else "request sent"
        paused = ", paused" if self._paused else ""
        reused = ", used before" if self.race_until > 0.0 else ""
        return f"<UpstreamConnection to {self.upstream.spec.name}: {state}{paused}{reused}, for {self.receiver!r}>"

    # ---- sending

    def send(self, request: bytes, receiver: AnswerReceiver) -> None:
        """Start a request on this connection, which must be idle."""
        if receiver.streams and not self._narrow:
            self._narrow = True
            read_from: socket.socket = self.transport.get_extra_info("socket")
            read_from.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, STREAM_BUFFER_BYTES)
        receiver.line = self
        self.receiver = receiver
        self.transport.write(request)
        receiver.on_sent()

    def cancel(self) -> None:
        """Close the connection at once. The receiver gets no more calls."""
        self.receiver = None
        self._abort()

    def pause(self) -> None:
        """Stop reading, because the client is slow. Ignored without a receiver: an idle connection must be read to
        notice its end.
        """
        if self.receiver is not None:
            self._paused = True
            self._read_or_wait()

    @property
    def missing(self) -> int | None:
        """Bytes of the body that are still to come; None if the body has no length."""
        return self._left if self._in_body and self._left >= 0 else None

    @property
    def idle(self) -> bool:
        """Whether the connection may be used for another request: it is open, being read, empty, and without a
        receiver.
        """
        return (
            self.receiver is None
            and self._reads
            and not self._started
            and not self._buffer
            and not self.transport.is_closing()
        )

    # ---- asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        receiver = self.receiver
        try:
            # Nearly every token takes this path, so it makes few function calls. It also reads few objects of its
            # stream: with thousands of streams, none of these objects is in the near CPU caches.
            if self._aligned and receiver is not None and receiver.pass_on(data):
                return
            self._take(data)
        except Exception as error:  # noqa: BLE001 - a bug affects only this request
            self._broke(receiver, error)

    def _received(self, data: bytes) -> None:
        receiver = self.receiver
        if receiver is None:
            if self._linger is not None:
                self._drop(data)
                return
            # Bytes that no request asked for: the connection cannot be trusted.
            if not self.transport.is_closing():
                self.upstream.odd(Oddity.NOT_IDLE, "it sent bytes that no request had asked for")
                self.upstream.closed(self)
            self._abort()
            return
        try:
            if self._in_body:
                self._body(data)
            else:
                self._head(data)
        except LargeHeadError as large:  # another name than above, because a name has only one type in compiled code
            self.upstream.odd(Oddity.LARGE_HEAD, str(large))
            self._lost(AttemptOutcome.UNREADABLE)
        except FramingError as exc:
            spec = self.upstream.spec
            log.warning(
                "replica %s sent an answer that is not HTTP: %s; the request goes to another replica, or fails: "
                "check that an engine listens at %s",
                spec.name,
                exc,
                spec.url,
            )
            self._lost(AttemptOutcome.TRUNCATED)

    def eof_received(self) -> bool | None:
        if not self._in_body or self._left != TO_THE_END:
            self.upstream.lost()
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self.upstream.closed(self)
        if exc is not None:
            self.upstream.lost()
        super().connection_lost(exc)

    def _take_close(self, exc: Exception | None) -> None:
        if self._linger is not None:
            self._stop_lingering(keep=False)
        receiver = self.receiver
        if receiver is None:
            return
        try:
            self._closed(exc)
        except Exception as error:  # noqa: BLE001 - a bug affects only this request
            self._broke(receiver, error)

    def _broke(self, receiver: AnswerReceiver | None, error: Exception) -> None:
        """A callback raised an exception. The request of `receiver` fails, because the connection may serve another
        request by now.
        """
        if self.receiver is receiver:
            self.receiver = None
            self._abort()
        if receiver is not None:
            receiver.broke(Callback.REPLICA, error)

    def _closed(self, exc: Exception | None) -> None:
        if self._in_body and self._left == TO_THE_END:
            # A body without a length ends with the connection, if the connection is closed properly.
            if exc is None:
                self._end()
            else:
                self._lost(AttemptOutcome.TRUNCATED)
        elif self._started:
            self._lost(AttemptOutcome.TRUNCATED)
        elif self.upstream.clock() <= self.race_until:
            self._lost(AttemptOutcome.IDLE_CLOSED)
        else:
            self._lost(AttemptOutcome.RESET)

    # ---- the head

    def _head(self, data: bytes) -> None:
        self._started = True
        if self._buffer:
            data, self._buffer = self._buffer + data, b""
        while True:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                if len(data) > MAX_HEAD_BYTES:
                    raise LargeHeadError(f"the head of the answer is longer than {MAX_HEAD_BYTES // 1024} KiB")
                if not data.startswith(b"HTTP/"[: len(data)]):
                    raise FramingError("the answer does not begin with HTTP/")
                self._buffer = data
                return
            head = read_answer_head(data[:end])
            rest = data[end + 4 :]
            if head.status >= 200:
                break
            if head.status == 101:
                raise FramingError("the answer changes protocol")
            if not rest:
                return
            data = rest
        self._in_body = True
        self._keep_alive = head.keep_alive and head.framed
        self._left = head.body
        if head.body == CHUNKED:
            self._chunks = ChunkReader()
            self._aligned = not self._waiting
        receiver = self.receiver
        assert receiver is not None
        receiver.on_head(head)
        if self.receiver is receiver and (rest or not self._left):
            self._body(rest)

    # ---- the body

    def _body(self, data: bytes) -> None:
        receiver = self.receiver
        assert receiver is not None
        chunks = self._chunks
        if chunks is not None:
            was_aligned = chunks.at_boundary
            pieces = chunks.feed(data)
            is_aligned = chunks.at_boundary and not chunks.done
            self._aligned = is_aligned and not self._waiting
            if pieces:
                whole = was_aligned and is_aligned
                receiver.on_body(pieces, data if whole else None)
            if chunks.done and self.receiver is receiver:
                if chunks.large:
                    self.upstream.odd(Oddity.LARGE_TRAILERS, "the trailers were not read to their end")
                self._keep_alive = self._keep_alive and not (chunks.extra or chunks.large)
                self._end()
                return
        elif self._left == TO_THE_END:
            receiver.on_body([data], None)
        else:
            if len(data) > self._left:
                data, self._keep_alive = data[: self._left], False
            self._left -= len(data)
            if data:
                receiver.on_body([data], None)
            if not self._left and self.receiver is receiver:
                self._end()
                return
        if self.receiver is receiver and receiver.on_more():
            self._end_early()

    # ---- the end

    def _end(self) -> None:
        receiver, self.receiver = self.receiver, None
        assert receiver is not None
        keep = self._keep_alive and not self._waiting and not self.transport.is_closing()
        self._reset()
        # Reading must go on. Otherwise a client that is slow to read the end of this answer would delay the next
        # request.
        self.resume()
        # The connection is given back before the end is reported, because the report may start the next request on it.
        if keep:
            self.upstream.release(self)
        else:
            self._abort()
        receiver.on_end()

    def _end_early(self) -> None:
        """Report a complete answer whose HTTP message has not ended. If its end comes at once, the connection is
        kept.
        """
        receiver, self.receiver = self.receiver, None
        assert receiver is not None
        self.resume()
        if self._keep_alive and not self.transport.is_closing():
            self._linger = asyncio.get_running_loop().call_later(LAST_CHUNK_S, self._linger_over)
        else:
            self._abort()
        receiver.on_end()

    def _drop(self, data: bytes) -> None:
        """Drop bytes after a complete answer, up to the end of the HTTP message."""
        chunks = self._chunks
        if chunks is None:
            self._left -= len(data)
            if self._left <= 0:
                self._stop_lingering(keep=not self._left)
            return
        try:
            chunks.feed(data)
        except FramingError:
            self._stop_lingering(keep=False)
        else:
            if chunks.done:
                self._stop_lingering(keep=not (chunks.extra or chunks.large))

    def _linger_over(self) -> None:
        self._stop_lingering(keep=False)

    def _stop_lingering(self, keep: bool) -> None:
        linger, self._linger = self._linger, None
        assert linger is not None
        linger.cancel()
        if keep and not self._waiting and not self.transport.is_closing():
            self._reset()
            self.resume()
            self.upstream.release(self)
        else:
            self.upstream.odd(Oddity.OPEN_END, "the answer was complete, and its HTTP message did not end")
            self._abort()

    def _lost(self, end: AttemptOutcome) -> None:
        receiver, self.receiver = self.receiver, None
        self._abort()
        if receiver is not None:
            receiver.on_lost(end)
