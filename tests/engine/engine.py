"""The facts of a real engine, found by requests."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from time import monotonic
from urllib.parse import urlsplit

import httpx
import pytest

RUNNING = {
    "vllm": "vllm:num_requests_running",
    "sglang": "sglang:num_running_reqs",
    "tgi": "tgi_batch_current_size",
}
"""The gauge of requests that an engine works on."""


@dataclass(frozen=True, slots=True)
class Engine:
    """`max_model_len` is None if the engine does not report it."""

    client: httpx.AsyncClient
    url: str
    kind: str
    model: str
    max_model_len: int | None

    async def running(self) -> float:
        """Requests that it works on now. Skips the test without that gauge."""
        page = await self.client.get("/metrics")
        values = re.findall(rf"^{RUNNING.get(self.kind, 'none')}(?:{{[^}}]*}})? (\S+)$", page.text, re.MULTILINE)
        if not values:
            pytest.skip(f"this engine ({self.kind}) has no gauge of running requests")
        return sum(map(float, values))

    async def until_running(self, condition: Callable[[float], bool], timeout_s: float) -> float:
        """Wait until the gauge fits. Returns the seconds that it took."""
        start = monotonic()
        async with asyncio.timeout(timeout_s):
            while not condition(await self.running()):
                pass
        return monotonic() - start

    async def wants(self, path: str, body: dict[str, object]) -> None:
        """Skip the test if the engine lacks the endpoint, or lacks it for this model."""
        answer = await self.client.post(path, json={"model": self.model} | body)
        if answer.status_code in (404, 405, 501) or "does not support" in answer.text:
            pytest.skip(f"this engine has no {path}: {answer.status_code} {answer.text[:200]}")


async def found(client: httpx.AsyncClient) -> Engine:
    """Ask an engine what it is."""
    card = (await client.get("/v1/models")).json()["data"][0]
    page = (await client.get("/metrics")).text
    kind = next((kind for kind, gauge in RUNNING.items() if gauge in page), "openai")
    return Engine(client, str(client.base_url).rstrip("/"), kind, card["id"], card.get("max_model_len"))


async def reached(client: httpx.AsyncClient) -> Engine:
    """The same. Ends all tests if the engine is unreachable, since each would fail in the same way."""
    try:
        return await found(client)
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        why = f"{type(error).__name__}: {error}".rstrip(": ")
        pytest.exit(f"no engine answers at {client.base_url} as it should ({why}): start it, or give its URL", 2)


@asynccontextmanager
async def recording(url: str) -> AsyncIterator[tuple[str, dict[int, bytearray]]]:
    """A relay to the engine that keeps the engine's bytes by connection. Yields its URL and the bytes."""
    parts = urlsplit(url)
    said: dict[int, bytearray] = {}
    running: set[asyncio.Task[None]] = set()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                kept += data
                writer.write(data)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        there = await asyncio.open_connection(parts.hostname, parts.port)
        kept = said[len(said)] = bytearray()
        await asyncio.gather(pass_on(reader, there[1], bytearray()), pass_on(there[0], writer, kept))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", said
    finally:
        server.close()
        await asyncio.gather(*running)  # the gateway has closed its end of each


def payload_of(framed: bytes) -> bytes:
    """The body of one chunked answer, from the bytes with its head."""
    rest = framed.partition(b"\r\n\r\n")[2]
    body = b""
    while rest and not rest.startswith(b"0\r\n"):
        size, _, rest = rest.partition(b"\r\n")
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return body
