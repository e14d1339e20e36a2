"""A replica that keeps every received byte and sends given answers, without any checks."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import cast

from .raw import MODEL
from .waiting import DEADLINE_S


class Then(Enum):
    """The state of the connection after an answer."""

    KEEP = auto()
    CLOSE = auto()
    RESET = auto()


@dataclass(frozen=True, slots=True)
class Answer:
    """Bytes to send, and the action after them."""

    data: bytes
    then: Then = Then.KEEP


@dataclass
class Call:
    """One request, delimited by its framing (content-length or none), and its facts."""

    head: bytes
    body: bytes
    connection: Connection

    @property
    def line(self) -> str:
        """The request line."""
        return self.head.partition(b"\r\n")[0].decode("latin-1")

    @property
    def path(self) -> str:
        """The request target, unchanged."""
        return self.line.split(" ")[1]

    @property
    def headers(self) -> list[tuple[str, str]]:
        """Names in lower case, in the order of the request."""
        lines = self.head.decode("latin-1").split("\r\n")[1:-2]
        return [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]

    def header(self, name: str) -> list[str]:
        """Every value of a header."""
        return [value for given, value in self.headers if given == name]

    @property
    def aborted(self) -> bool:
        """Whether the gateway closed the connection before this answer was over."""
        return self.connection.lost and self.connection.open_call is self

    def send(self, data: bytes, then: Then = Then.KEEP) -> None:
        """Send (more of) the answer."""
        self.connection.send(Answer(data, then))

    def finish(self) -> None:
        """The answer is over: the end of the connection is not an abort from here on."""
        self.connection.open_call = None


@dataclass(eq=False)
class Connection(asyncio.Protocol):
    """One connection to the capture: `received` is every byte."""

    owner: Capture
    received: bytes = b""
    calls: list[Call] = field(default_factory=list)
    lost: bool = False
    open_call: Call | None = None
    _pending: bytes = b""
    _wanted: int | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.owner.connections.append(self)

    def data_received(self, data: bytes) -> None:
        self.received += data
        self._pending += data
        while call := self._next():
            self.owner.took(call)
        self.owner.changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self.owner.changed.set()

    def _next(self) -> Call | None:
        end = self._pending.find(b"\r\n\r\n") + 4
        if end < 4:
            return None
        head = self._pending[:end]
        lengths = [line[15:].strip() for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        body_end = end + (int(lengths[0]) if lengths else 0)
        if len(self._pending) < body_end:
            return None
        call = Call(head, self._pending[end:body_end], self)
        self._pending = self._pending[body_end:]
        return call

    @property
    def leftover(self) -> bytes:
        """Bytes that are not a complete request."""
        return self._pending

    def send(self, answer: Answer) -> None:
        """Send bytes."""
        transport = cast(asyncio.Transport, self.transport)
        if transport.is_closing():
            return
        transport.write(answer.data)
        if answer.then is Then.CLOSE:
            transport.close()
        elif answer.then is Then.RESET:
            self._reset_when_sent()

    def _reset_when_sent(self) -> None:
        transport = cast(asyncio.Transport, self.transport)
        if transport.get_write_buffer_size():
            asyncio.get_running_loop().call_later(0.001, self._reset_when_sent)
            return
        raw = transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()


def whole(body: bytes = b"", status: str = "200 OK", *lines: str) -> bytes:
    """A whole answer with Content-Length; without a body, a small chat completion."""
    body = body or completion()
    fields = [f"HTTP/1.1 {status}", "content-type: application/json", f"content-length: {len(body)}", *lines]
    return "\r\n".join([*fields, "", ""]).encode() + body


def completion(text: str = "Hi") -> bytes:
    """The JSON of a chat completion of two tokens."""
    return (
        b'{"id":"c-1","object":"chat.completion","created":1,"model":"%b","choices":[{"index":0,"message":'
        b'{"role":"assistant","content":"%b"},"finish_reason":"stop"}],'
        b'"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}' % (MODEL.encode(), text.encode())
    )


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


def chunk(payload: bytes) -> bytes:
    """`payload` as one chunk."""
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def token(text: str = "Hi", finish: str | None = None) -> bytes:
    """One event of a chat stream, as one chunk."""
    reason = f'"{finish}"' if finish else "null"
    event = (
        f'data: {{"id":"c-1","object":"chat.completion.chunk","created":1,"model":"{MODEL}","choices":[{{"index":0,'
        f'"delta":{{"content":"{text}"}},"finish_reason":{reason}}}]}}\n\n'
    )
    return chunk(event.encode())


USAGE = chunk(
    b'data: {"id":"c-1","object":"chat.completion.chunk","created":1,"model":"%b","choices":[],'
    b'"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}\n\n' % MODEL.encode()
)
DONE = chunk(b"data: [DONE]\n\n")
STREAM = STREAM_HEAD + token("Hi") + token(" there", "stop") + USAGE + DONE + LAST_CHUNK
"""A whole streamed chat completion."""


def by_default(call: Call) -> Answer:
    """Streamed if the body asks for it, else whole."""
    return Answer(STREAM if b'"stream":true' in call.body else whole())


def never(call: Call) -> None:
    """No answer, as if the request prefilled for ever."""


class Capture:
    """`calls` are the requests that the gateway made for clients; its own health checks are answered apart.

    `answer` is called with each call: it returns the bytes to send at once, or None if `call.send` is used later.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.probes: list[Call] = []
        self.connections: list[Connection] = []
        self.answer: Callable[[Call], Answer | None] = by_default
        self.is_late = False
        """Whether health checks get no answer."""
        self.well = True
        """Whether health checks pass."""
        self.models = [MODEL]
        """Names that it lists."""
        self.statuses: dict[str, str] = {}
        """Status of the answers to the gateway's own GETs by path, where it is not 200."""
        self.changed = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._scheme = "http"

    @property
    def url(self) -> str:
        """Where it listens."""
        assert self._server is not None
        return f"{self._scheme}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    @property
    def traffic(self) -> list[Connection]:
        """Connections that carried more than the gateway's own health checks."""
        probing = {id(call.connection) for call in self.probes}
        return [c for c in self.connections if c.received and id(c) not in probing]

    def took(self, call: Call) -> None:
        """A request came in."""
        if call.header("user-agent") == ["tailgate"] and call.line.startswith("GET "):
            self.probes.append(call)
            if self.is_late and "/health" in call.line:
                return
            call.send(self._probed(call))
            return
        self.calls.append(call)
        call.connection.open_call = call
        answer = self.answer(call)
        if answer is not None:
            call.send(answer.data, answer.then)
            call.finish()

    def _probed(self, call: Call) -> bytes:
        """The answer to a check or a reading of the gateway."""
        status = self.statuses.get(call.path) if self.well else "503 Service Unavailable"
        listed = ",".join(f'{{"id":"{name}","object":"model"}}' for name in self.models)
        return whole(f'{{"object":"list","data":[{listed}]}}'.encode(), status or "200 OK")

    async def until(self, condition: Callable[[], object], timeout_s: float = DEADLINE_S) -> float:
        """Wait until the condition holds; it is checked after every event of this replica. Seconds it took."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        async with asyncio.timeout(timeout_s):
            while not condition():
                self.changed.clear()
                await self.changed.wait()
        return loop.time() - start

    async def first_call(self) -> Call:
        """The first request of a client, as soon as all of it is here."""
        await self.until(lambda: self.calls)
        return self.calls[0]

    async def __aenter__(self) -> Capture:
        await self.start()
        return self

    async def start(self, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        """Listen on `port`, or on a free one; behind TLS if a context is given."""
        self._scheme = "http" if tls is None else "https"
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(partial(Connection, self), "127.0.0.1", port, backlog=2048, ssl=tls)

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Close the listener and every connection."""
        assert self._server is not None
        self._server.close()
        for connection in self.connections:
            cast(asyncio.Transport, connection.transport).abort()
        await self._server.wait_closed()
