"""A connection to the admin port: uvicorn's own protocol, with limits that it lacks.

uvicorn keeps silent connections and half-sent requests for ever, accepts a head of any length, and starts all pipelined
requests at once (docs/internals/adr/0001-data-plane.md). The API port has a protocol of its own; this one serves
FastAPI, with the same deadlines.
"""

from __future__ import annotations

import asyncio
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from gateway.core.results import Callback
from gateway.proxy.client_writer import WRITE_HIGH_WATER_BYTES
from gateway.proxy.driver import Driver
from gateway.proxy.limits import ConnectionLimits

MAX_CONNECTIONS: Final = 64
"""Limit on connections. It is enough for scrapers, probes, and a few operators with the console open.

A new connection beyond the limit is still accepted if an idle connection can be closed for it.
"""
BACKLOG: Final = 32
"""At most this many connections are accepted in one turn of the event loop. Others can be closed only in a later
turn.
"""
UDS_MODE: Final = 0o660
_TOO_SLOW: Final = 408, b"Request Timeout", b"the request was not whole in time"
_TOO_LARGE: Final = 431, b"Request Header Fields Too Large", b"the head of the request is too large"


class AdminConnection(HttpToolsProtocol):
    """One connection, with one request at a time. `limits`: shared by the admin port and its unix socket."""

    def __init__(
        self,
        limits: ConnectionLimits,
        driver: Driver,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = limits
        self._supervisor = driver.supervisor
        self._clock = driver.clock
        self._lingers = False
        self._begin()

    def _begin(self) -> None:
        self._received_bytes = 0
        self._head_bytes = 0
        self._head_done = False
        self._whole = False
        self._pipelined = False

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Catch exceptions (bugs), so that they affect only this connection. The event loop and httptools would drop
        the exception, or end the process.
        """
        try:
            yield
        except Exception as error:  # noqa: BLE001 - of any kind
            self.broke(Callback.ADMIN, error)

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        with self._guarded():
            self._opened(transport)

    def _opened(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        if not self._limits.opened(self) and not self._make_room():
            transport.abort()
            return
        self._limits.receiving.start(self, self._clock())

    def connection_lost(self, exc: Exception | None) -> None:
        with self._guarded():
            self._limits.closed(self)
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        with self._guarded():
            self._received(data)

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn when httptools raised. The cause may be an exception (a bug) in one of our callbacks."""
        callback = sys.exception()
        raised = callback.__context__ if isinstance(callback, httptools.HttpParserCallbackError) else None
        if isinstance(raised, Exception):
            self.broke(Callback.ADMIN, raised)
        else:
            super().send_400_response(msg)

    def _received(self, data: bytes) -> None:
        if self._lingers or self.transport.is_closing():
            return
        if self._whole:
            # Pipelined requests are not accepted. Answers to abandoned requests would pile up, and a disconnect behind
            # them would not be noticed.
            if data.strip(b"\r\n"):
                self.abort()
            return
        if not self._received_bytes:
            data = data.lstrip(b"\r\n")
            if not data:
                return
            self._limits.idle.stop(self)
            self._limits.receiving.start(self, self._clock())
        self._received_bytes += len(data)
        super().data_received(data)
        if self._pipelined:
            self.abort()
        elif max(self._head_bytes, 0 if self._head_done else self._received_bytes) > self._limits.max_header_bytes:
            self._refuse(*_TOO_LARGE)

    def pause_writing(self) -> None:
        with self._guarded():
            super().pause_writing()
            self._limits.stalled.start(self, self._clock())

    def resume_writing(self) -> None:
        with self._guarded():
            super().resume_writing()
            self._limits.stalled.stop(self)

    # ---- httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        if not self._head_done:  # a field after the head is a trailer, not a header
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._whole:
            self._pipelined = True
        elif self._head_bytes <= self._limits.max_header_bytes:
            self._head_done = True
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._pipelined and self._head_done:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._pipelined and self._head_done:
            self._whole = True
            self._limits.receiving.stop(self)
            super().on_message_complete()

    # ---- answers

    def on_response_complete(self) -> None:
        """The answer is complete. The request may be incomplete, if its token was wrong or its body too large."""
        with self._guarded():
            self._answered()

    def _answered(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self._whole:
            self._begin()
            self._limits.idle.start(self, self._clock())
        else:
            self._linger()

    def _refuse(self, status: int, reason: bytes, text: bytes) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.cycle.response_started:
                self.abort()
                return
        head = b"HTTP/1.1 %d %b\r\ncontent-type: text/plain\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(head % (status, reason, len(text) + 1) + text + b"\n")
        self._linger()

    def _linger(self) -> None:
        """Close without a TCP reset, which could destroy an answer on its way to the client."""
        self._lingers = True
        self._limits.receiving.stop(self)
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._limits.lingering.start(self, self._clock())

    # ---- ends

    def too_slow(self) -> None:
        """The request did not arrive in time: refuse it. A connection that sent nothing is closed silently."""
        if self._received_bytes:
            self._refuse(*_TOO_SLOW)
        else:
            self.close()

    def stalled(self) -> None:
        """The client has stopped reading: close the connection."""
        self.abort()

    def close(self) -> None:
        """Close after all written bytes are sent."""
        self.transport.close()
        self._limits.stalled.start(self, self._clock())

    def broke(self, callback: Callback, error: Exception) -> None:
        """An exception (a bug) was raised while this connection was handled: close the connection."""
        self._supervisor.caught(callback, error)
        self.transport.abort()

    def abort(self) -> None:
        """Close at once."""
        self.transport.abort()

    def _make_room(self) -> bool:
        """Close the connection that has been idle longest. Returns False if none is idle."""
        limits = self._limits
        for deadline in (limits.receiving, limits.idle, limits.lingering, limits.stalled):
            oldest = deadline.oldest()
            if oldest is not None:
                limits.closed(oldest)
                oldest.abort()
                return True
        return False


def bound_socket(path: Path) -> socket.socket:
    """A unix socket that only the owner and the group of the process can open.

    A socket left by an earlier process is removed. Any other file there, or the socket of a running process, raises
    OSError.
    """
    if path.exists() and stat.S_ISSOCK(path.stat().st_mode) and not _is_served(path):
        path.unlink()
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # The mode is set between `bind` and `listen`, when nobody can connect yet.
        bound.bind(str(path))
        path.chmod(UDS_MODE)
    except OSError:
        bound.close()
        raise
    return bound


def _is_served(path: Path) -> bool:
    """Whether a process listens on a unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except BlockingIOError:
            return True  # its queue of connections is full
        except OSError:
            return False
    return True
