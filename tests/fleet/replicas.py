"""Replicas to watch: real sockets with scripted answers, and policies that name them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from gateway.core.policy import Model, Policy, Tier
from gateway.core.pool_spec import EngineKind, Health, PoolSpec, ReplicaAccess, ReplicaSpec
from gateway.fleet.watch import FleetWatcher

VLLM_PAGE = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
"""
MODELS = '{"object": "list", "data": [{"id": "m", "max_model_len": 8192}]}'


def answer(body: bytes | str = b"", *, status: int = 200, headers: str = "") -> bytes:
    """The bytes of a whole answer."""
    raw = body.encode() if isinstance(body, str) else body
    return f"HTTP/1.1 {status} X\r\n{headers}Content-Length: {len(raw)}\r\n\r\n".encode() + raw


class FakeReplica:
    """Answers each path with fixed bytes; None accepts the request and stays silent. It keeps the requests."""

    def __init__(self) -> None:
        self.answers: dict[str, bytes | None] = {
            "/health": answer(),
            "/metrics": answer(VLLM_PAGE),
            "/v1/models": answer(MODELS),
        }
        self.asked: list[bytes] = []
        self.bodies: list[tuple[str, bytes]] = []
        """Path and body of the requests with a body."""
        self.connections = 0
        self.url = ""
        self._writers: set[asyncio.StreamWriter] = set()
        self._unanswered: list[tuple[str, asyncio.StreamWriter]] = []
        self._server: asyncio.Server | None = None

    def paths(self) -> list[str]:
        """The path of every request so far, in order."""
        return [head.split(b" ", 2)[1].decode() for head in self.asked]

    async def start(self, port: int = 0) -> None:
        """Listen on `port` of loopback, or on a free one."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Close the listener and every connection."""
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await self._server.wait_closed()

    async def hang_up(self) -> None:
        """Close every connection properly."""
        for writer in self._writers:
            await writer.drain()
            writer.write_eof()

    async def answer_late(self, path: str, reply: bytes) -> None:
        """Answer the requests for `path` that got no answer so far."""
        for asked, writer in self._unanswered:
            if asked == path:
                writer.write(reply)
                await writer.drain()

    @property
    def open_connections(self) -> int:
        """Connections that are open now."""
        return len(self._writers)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.asked.append(head)
                path = head.split(b" ", 2)[1].decode()
                if length := re.search(rb"content-length: (\d+)", head.lower()):
                    self.bodies.append((path, await reader.readexactly(int(length[1]))))
                reply = self.answers.get(path, answer(status=404))
                if reply is None:
                    self._unanswered.append((path, writer))
                else:
                    writer.write(reply)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the other side left
        finally:
            self._writers.discard(writer)
            writer.close()


@asynccontextmanager
async def replica() -> AsyncIterator[FakeReplica]:
    """A running `FakeReplica`."""
    fake = FakeReplica()
    await fake.start()
    try:
        yield fake
    finally:
        await fake.stop()


# Frequent enough for tests, with timeouts that a healthy replica meets on a busy machine.
OFTEN = Health(interval_s=0.01, scrape_interval_s=0.01, timeout_s=10.0)


def pool(
    *replicas: FakeReplica | str,
    name: str = "main",
    engine: EngineKind = EngineKind.VLLM,
    health: Health = OFTEN,
    upstream_key: str | None = None,
) -> PoolSpec:
    """A pool whose replicas are named `{name}-0`, `{name}-1`, …; a string is a URL."""
    urls = [fake if isinstance(fake, str) else fake.url for fake in replicas]
    specs = tuple(ReplicaSpec(f"{name}-{i}", url) for i, url in enumerate(urls))
    return PoolSpec(name, specs, engine=engine, health=health, access=ReplicaAccess(key=upstream_key))


def policy(*pools: PoolSpec, models: tuple[Model, ...] = (), tiers: tuple[Tier, ...] = (Tier("t"),)) -> Policy:
    """A policy of these pools. Models are found by name and alias."""
    names = {name: model for model in models for name in (model.name, *model.aliases)}
    return Policy(names, {p.name: p for p in pools}, {t.name: t for t in tiers}, {}, tiers[0].name)


async def until(true: Callable[[], bool], deadline_s: float = 20.0) -> None:
    """Return as soon as `true()`; TimeoutError after the deadline."""
    async with asyncio.timeout(deadline_s):
        while not true():  # noqa: ASYNC110 - what is waited for has no event to set
            await asyncio.sleep(0.001)


@asynccontextmanager
async def watched(watcher: FleetWatcher, rules: Policy) -> AsyncIterator[None]:
    """Run `watcher` under `rules`."""
    watcher.configure(rules)
    running = asyncio.create_task(watcher.run())
    try:
        yield
    finally:
        await watcher.aclose()
        await running
