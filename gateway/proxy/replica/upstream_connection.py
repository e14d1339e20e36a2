"""One connection to a replica: sends a request, reads the answer, and reports to its receiver."""

from __future__ import annotations

import asyncio
import math
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from gateway.core.pool_spec import ReplicaSpec
from gateway.core.results import AttemptOutcome, Callback
from gateway.proxy.replica.framed import FramedConnection
from gateway.proxy.replica.receiver import AnswerReceiver
from gateway.wire.answers.oddity import Oddity
from gateway.wire.http.answer import (
    TO_THE_END,
    LargeHeadError,
)
from gateway.wire.http.framing import FramingError

# Size in bytes of the receive buffer of connections with a stream; Linux doubles it. uvloop reads up to 256 kB at once,
# and all of it would be kept here while the client is slow. A stream needs less than this per round trip. Whole answers
# may be large, so their connections keep the default.
STREAM_BUFFER_BYTES: Final = 32 * 1024

LAST_CHUNK_S: Final = 0.1
"""After a complete answer, seconds until the end of its HTTP message. Servers write both at once, so some round trips
are enough. A connection without its end is closed: its next bytes could not be told from those of the next answer.
"""


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

    @abstractmethod
    def broken(self, kind: str, said: str) -> None:
        """An answer failed. `said`: how, for the log."""


class UpstreamConnection(FramedConnection):
    """One TCP connection to a replica. A request can be given up only by `cancel`, which closes the connection."""

    __slots__ = (
        "_linger",
        "_narrow",
        "idle_since",
        "race_until",
        "upstream",
    )

    def __init__(self, upstream: ConnectionOwner) -> None:
        super().__init__()
        self.upstream = upstream
        self.race_until = -math.inf
        """Time up to which a close is taken for that of an idle connection; below 0 on a new connection."""
        self.idle_since = 0.0
        self._narrow = False
        """Whether the kernel's receive buffer is limited to `STREAM_BUFFER_BYTES`."""
        self._linger: asyncio.TimerHandle | None = None
        """The timer of a connection whose answer is complete, and whose HTTP message is not."""

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
            self.upstream.broken(
                "not HTTP",
                f"sent an answer that is not HTTP: {exc}; the request goes to another replica, or fails: "
                f"check that an engine listens at {self.upstream.spec.url}",
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

    def _trailers_are_large(self) -> None:
        self.upstream.odd(Oddity.LARGE_TRAILERS, "the trailers were not read to their end")

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
