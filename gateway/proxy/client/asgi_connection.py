"""A client connection whose requests are answered by an ASGI application: the admin port.

Requests are read as on the API port, with the same limits and deadlines. The application gets a request when its last
byte has come.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final
from urllib.parse import unquote

from uvicorn.config import Config
from uvicorn.server import ServerState

from gateway.core.results import Callback, Reason
from gateway.proxy.client.client_connection import ClientConnection
from gateway.proxy.client.request_reader import RequestReader
from gateway.proxy.client_writer import AnswerUnderWay
from gateway.proxy.handler import RequestHandler
from gateway.proxy.limits import ConnectionLimits
from gateway.wire.errors.replies import OPENAI, Problem, error_response
from gateway.wire.http.framing import LAST_CHUNK, chunk
from gateway.wire.http.headers import RequestHead, wanted
from gateway.wire.http.written_heads import status_line

_NAMES: Final = wanted(["accept"])
_ASGI: Final = {"version": "3.0", "spec_version": "2.3"}


class AsgiReader(RequestReader):
    """Reads requests to any path. The application checks path, method and token."""

    __slots__ = ()

    def scope(self) -> dict[str, object]:
        """The ASGI scope of the request. It has only the headers that tailgate reads."""
        return {
            "type": "http",
            "asgi": _ASGI,
            "http_version": "1.1" if self.is_http_11 else "1.0",
            "method": self.method.decode(),
            "scheme": "http",
            "path": unquote(self.path.decode("latin-1")),
            "query_string": self._url.partition(b"?")[2],
            "headers": list(self.head.fields.items()),
        }

    def _check(self, head: RequestHead) -> Problem | None:
        return None

    def _read_head(self) -> RequestHead:
        return self._read_lines(bytes(self._raw_head), _NAMES)


class AsgiAnswer(AnswerUnderWay):
    """The call of the application for one request, and its answer."""

    def __init__(self, connection: AsgiConnection, scope: dict[str, object], body: bytes) -> None:
        self._connection = connection
        self._scope = scope
        self._body: bytes | None = body
        self._head = b""
        self._is_chunked = False
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._over = asyncio.Event()
        """Set when the answer is complete, or when nobody waits for it."""
        self.has_begun = False
        """Whether a part of the answer has been written."""

    async def run(self, app: Any) -> None:
        """Call the application. A client that leaves does not stop it, because it may be changing something."""
        try:
            await app(self._scope, self._receive, self._send)
            if not self._over.is_set():
                raise RuntimeError("the application gave no complete answer")
        except Exception as error:  # noqa: BLE001 - a bug affects only this connection
            self._connection.failed(self, error, self._over.is_set())

    def leave(self, why: Reason) -> None:
        self._over.set()
        self._may_write.set()

    def pause(self) -> None:
        self._may_write.clear()

    def resume(self) -> None:
        self._may_write.set()

    async def _receive(self) -> dict[str, object]:
        body, self._body = self._body, None
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        await self._over.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        await self._may_write.wait()
        if self._over.is_set():
            return
        if message["type"] == "http.response.start":
            self._start(message["status"], message.get("headers", ()))
        else:
            self._write(message.get("body", b""), message.get("more_body", False))

    def _start(self, status: int, headers: Any) -> None:
        names = [name.lower() for name, _ in headers]
        lines = [status_line(status), *(b"%b: %b\r\n" % (name, value) for name, value in headers)]
        if b"content-length" not in names:
            # To HTTP/1.0, which has no chunks, the end of the connection is the end of the answer.
            self._is_chunked = self._connection.chunked
        if self._is_chunked:
            lines.append(b"transfer-encoding: chunked\r\n")
        self._head = b"".join((*lines, self._connection.closing_line(), b"\r\n"))

    def _write(self, body: bytes, more: bool) -> None:
        if self._scope["method"] == "HEAD":
            body = b""
        elif self._is_chunked:
            body = (chunk(body) if body else b"") + (b"" if more else LAST_CHUNK)
        head, self._head = self._head, b""
        self.has_begun = True
        if head or body:
            self._connection.write(head + body)
        if not more:
            self._over.set()
            self._connection.done()


class AsgiConnection(ClientConnection):
    """One connection, with one request at a time. uvicorn makes it, and `config` has the application."""

    def __init__(
        self,
        handler: RequestHandler,
        limits: ConnectionLimits,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(handler, limits, config, server_state, app_state, _loop)
        self._reader = AsgiReader(handler, limits, Callback.ADMIN)
        self._app: Any = config.loaded_app
        self._tasks: set[asyncio.Task[None]] = server_state.tasks

    def _answer_plain(self, reader: RequestReader, body: bytes) -> None:
        assert isinstance(reader, AsgiReader)
        answer = AsgiAnswer(self, reader.scope(), body)
        self._exchange = answer
        task = asyncio.get_running_loop().create_task(answer.run(self._app))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _rejection(self, problem: Problem, close: bool) -> bytes:
        return error_response(OPENAI, problem, self._reader.head.request_id, close=close)

    def failed(self, answer: AsgiAnswer, error: Exception, is_over: bool) -> None:
        """The application raised an exception. If the answer is over, this connection may have a later request."""
        if is_over:
            self._supervisor.caught(Callback.ADMIN, error)
        else:
            self.broke(Callback.ADMIN, error)

    def broke(self, callback: Callback, error: Exception) -> None:
        """Handle an exception: send an error if no part of an answer is written, and close."""
        answer = self._exchange
        if isinstance(answer, AsgiAnswer) and answer.has_begun:
            self._supervisor.caught(Callback.ADMIN, error)
            self.abort()
        else:
            super().broke(Callback.ADMIN, error)
