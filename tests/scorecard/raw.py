"""A client that writes bytes: nothing between the test and the socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import struct
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from .waiting import DEADLINE_S

MODEL = "emulated"
CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Response:
    """One answer. `chunks` is None if it was not chunked; `whole`: whether its framing is complete."""

    status: int
    headers: dict[str, str]
    body: bytes
    chunks: list[bytes] | None = None
    whole: bool = True

    def json(self) -> dict:
        """The body."""
        return json.loads(self.body)

    @property
    def error(self) -> dict:
        """The error object of either dialect."""
        return self.json()["error"]

    @property
    def reason(self) -> str | None:
        """`x-tailgate-reason`."""
        return self.headers.get("x-tailgate-reason")

    @property
    def events(self) -> list[Any]:
        """The data of every server-sent event, parsed if it is JSON."""
        lines = [line[5:].strip() for line in self.body.decode().split("\n") if line.startswith("data:")]
        return [json.loads(line) if line[:1] in "{[" and line != "[DONE]" else line for line in lines]


def head(
    path: str = CHAT, *lines: str, method: str = "POST", version: str = "HTTP/1.1", host: str = "localhost"
) -> bytes:
    """A request head with a Host line (none if `host` is empty) and the given lines."""
    first = [f"{method} {path} {version}"] + ([f"Host: {host}"] if host else [])
    return "\r\n".join([*first, *lines, "", ""]).encode("latin-1")


def request(
    path: str = CHAT, body: bytes | None = None, *lines: str, method: str = "", version: str = "HTTP/1.1"
) -> bytes:
    """A well-formed request: POST with a body, GET without."""
    if body is None:
        return head(path, *lines, method=method or "GET", version=version)
    framing = ("Content-Type: application/json", f"Content-Length: {len(body)}")
    return head(path, *lines, *framing, method=method or "POST", version=version) + body


def chat_body(
    *, stream: bool = False, max_tokens: int | None = 4, content: str | list[Any] = "Hello", **fields: Any
) -> bytes:
    """The JSON of a small chat request."""
    body: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": content}]}
    if stream:
        body["stream"] = True
    if max_tokens is not None:
        body["max_tokens"] = max_tokens
    return json.dumps(body | fields).encode()


def chat(*lines: str, stream: bool = False, **fields: Any) -> bytes:
    """A whole chat request; `lines` are further header lines."""
    return request(CHAT, chat_body(stream=stream, **fields), *lines)


@dataclass
class Client:
    """One connection. Every read has a deadline, and fails with TimeoutError after it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    timeout_s: float = DEADLINE_S
    was_reset: bool = field(default=False)

    def send(self, data: bytes) -> None:
        """Write without waiting for the other side, which may be gone."""
        if not self.writer.transport.is_closing():
            self.writer.write(data)

    async def drain(self) -> None:
        """Wait until the other side has accepted most of it."""
        async with asyncio.timeout(self.timeout_s):
            await self.writer.drain()

    async def ask(self, data: bytes) -> Response:
        """Write a request and read its answer."""
        self.send(data)
        return await self.response()

    async def response(self) -> Response:
        """The next whole answer (1xx are skipped). Raises IncompleteReadError or ConnectionError if none comes."""
        status, headers = await self.head()
        while 100 <= status < 200:
            status, headers = await self.head()
        if headers.get("transfer-encoding") == "chunked":
            chunks, whole = await self._chunks()
            return Response(status, headers, b"".join(chunks), chunks, whole)
        length = headers.get("content-length")
        async with asyncio.timeout(self.timeout_s):
            if length is not None:
                return Response(status, headers, await self.reader.readexactly(int(length)))
            return Response(status, headers, await self.reader.read(-1))

    async def head(self) -> tuple[int, dict[str, str]]:
        """Status and header of the next answer, 1xx included."""
        async with asyncio.timeout(self.timeout_s):
            raw = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = raw.decode("latin-1").split("\r\n")[:-2]
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return int(first.split()[1]), headers

    async def chunk(self) -> bytes:
        """The payload of the next chunk; empty for the last."""
        async with asyncio.timeout(self.timeout_s):
            size = int((await self.reader.readuntil(b"\r\n"))[:-2], 16)
            payload = await self.reader.readexactly(size + 2)
        return payload[:-2]

    async def rest_of_chunks(self) -> list[bytes]:
        """The payloads of the remaining chunks, up to the end of the answer or of the connection."""
        chunks, _ = await self._chunks()
        return chunks

    async def _chunks(self) -> tuple[list[bytes], bool]:
        chunks: list[bytes] = []
        try:
            while payload := await self.chunk():
                chunks.append(payload)
        except asyncio.IncompleteReadError:
            return chunks, False
        except ConnectionError:
            self.was_reset = True
            return chunks, False
        return chunks, True

    async def rest(self) -> bytes:
        """All bytes until the connection ends, in any way; `was_reset` tells which."""
        seen = b""
        try:
            async with asyncio.timeout(self.timeout_s):
                while data := await self.reader.read(65536):
                    seen += data
        except ConnectionError:
            self.was_reset = True
        return seen

    # ---- ways to leave

    def fin(self) -> None:
        """Close both directions; the kernel says FIN (or RST, if there are bytes that nobody has read)."""
        self.writer.transport.close()

    def half_close(self) -> None:
        """Close the sending direction only."""
        self.writer.write_eof()

    def rst(self) -> None:
        """Reset the connection."""
        raw: socket.socket = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def close(self) -> None:
        """Close at once, in any state."""
        self.writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


async def connect(
    url: str, tls: ssl.SSLContext | None = None, receive_buffer: int | None = None, source: str = ""
) -> Client:
    """A new connection. `receive_buffer` (bytes) gives the client a small buffer; `source` is its address."""
    parts = urlsplit(url)
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setblocking(False)
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    if source:
        sock.bind((source, 0))
    try:
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.get_running_loop().sock_connect(sock, (parts.hostname, parts.port))
            limit = receive_buffer or 2**20
            reader, writer = await asyncio.open_connection(
                sock=sock, ssl=tls, server_hostname=parts.hostname if tls else None, limit=limit
            )
    except BaseException:
        sock.close()
        raise
    return Client(reader, writer)
