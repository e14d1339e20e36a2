"""A raw client: reads the bytes of a replica, and how its connections end."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from urllib.parse import urlsplit


async def connected(url: str) -> Wire:
    """A new connection."""
    parts = urlsplit(url)
    return Wire(*await asyncio.open_connection(parts.hostname, parts.port, limit=2**26))


def http(path: str, body: bytes | None = None, *headers: str, method: str | None = None, version: str = "1.1") -> bytes:
    """One request."""
    lines = [f"{method or ('GET' if body is None else 'POST')} {path} HTTP/{version}", "Host: replica", *headers]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


@dataclass
class Answer:
    """A parsed response; `chunks` is None if it was not chunked; `ended`: whether the framing is complete."""

    status: int
    headers: dict[str, str]
    body: bytes
    chunks: list[bytes] | None
    ended: bool

    def json(self) -> dict[str, object]:
        return json.loads(self.body)

    def events(self) -> list[dict[str, object] | str]:
        """The data of every SSE event; text if it is not JSON."""
        return [_data(event) for event in self.body.decode().split("\n\n") if event]


def _data(event: str) -> dict[str, object] | str:
    data = "\n".join(line[6:] for line in event.split("\n") if line.startswith("data: "))
    return json.loads(data) if data.startswith("{") else data


@dataclass
class Wire:
    """One connection. `reset`: whether it ended with a RST, known once `rest` has returned."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    reset: bool = False
    seen: bytes = field(default=b"")

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> Answer:
        """Read one response."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.split("\r\n")[:-2]
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        status = int(first.split()[1])
        if headers.get("transfer-encoding") == "chunked":
            chunks, ended = await self.rest_of_chunks()
            return Answer(status, headers, b"".join(chunks), chunks, ended)
        body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return Answer(status, headers, body, None, True)

    async def rest_of_chunks(self) -> tuple[list[bytes], bool]:
        """The chunks up to the last, and whether there was a last one."""
        chunks = []
        try:
            while size := int(await self.reader.readuntil(b"\r\n"), 16):
                chunks.append((await self.reader.readexactly(size + 2))[:-2])
            await self.reader.readexactly(2)
        except (asyncio.IncompleteReadError, ConnectionResetError) as error:
            self.reset = isinstance(error, ConnectionResetError)
            return chunks, False
        return chunks, True

    async def rest(self) -> bytes:
        """Everything until the connection ends."""
        try:
            while data := await self.reader.read(65536):
                self.seen += data
        except ConnectionResetError:
            self.reset = True
        return self.seen

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


def chat(stream: bool = False, max_tokens: int = 8, **fields: object) -> bytes:
    """A chat request that gets exactly `max_tokens` tokens."""
    messages = [{"role": "user", "content": "Tell me about the sea."}]
    body = {"model": "emulated", "messages": messages, "max_tokens": max_tokens, "ignore_eos": True, "stream": stream}
    return http("/v1/chat/completions", json.dumps(body | fields).encode())


BODIES: dict[str, dict[str, object]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 6},
    "/v1/completions": {"prompt": "Hello", "max_tokens": 6},
    "/v1/responses": {"input": "Hello", "max_output_tokens": 6},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 6},
}


def generation(path: str, **fields: object) -> bytes:
    """The same small request in the dialect of `path`."""
    return http(path, json.dumps({"model": "emulated", "ignore_eos": True} | BODIES[path] | fields).encode())
