"""The admin port is bounded: silence, large heads and large bodies cost little there, and do not disturb the API."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from starlette.responses import StreamingResponse

from gateway.app import MAX_ADMIN_CONNECTIONS as MAX_CONNECTIONS
from gateway.listener import bound_socket
from gateway.observe.admin import MAX_BODY_BYTES

from . import raw
from .capture import Capture
from .conftest import Connect, GatewayFactory
from .policies import rules
from .process import serving
from .raw import chat, head, request
from .sockets import room_for
from .waiting import DEADLINE_S

TOKEN = "canary-admin-token"
KNOWN = {"admin_token": TOKEN, "admin_names": {"gateway"}}
RELOAD = "/admin/reload"
SILENT = 700
DESCRIPTORS = 256


def allowed(*lines: str, token: str = TOKEN) -> tuple[str, ...]:
    return (f"Authorization: Bearer {token}", *lines)


@asynccontextmanager
async def silent(url: str, connections: int) -> AsyncIterator[None]:
    """Connect this many silent clients."""
    clients: list[raw.Client] = []
    try:
        for _ in range(connections):
            clients.append(await raw.connect(url))
        yield
    finally:
        for client in clients:
            await client.close()


async def test_silent_connections_to_the_admin_port_take_nothing_from_the_api_or_from_scrapes(
    capture: Capture, tmp_path: Path
) -> None:
    few = serving(tmp_path, rules(capture.url), descriptors=DESCRIPTORS)
    with room_for(SILENT):
        async with few as served, silent(served.admin_url, SILENT):
            for _ in range(20):
                client, scraper = await raw.connect(served.url), await raw.connect(served.admin_url)
                assert (await client.ask(chat())).status == 200
                assert (await scraper.ask(request("/metrics"))).status == 200
                await client.close()
                await scraper.close()


async def test_new_admin_connection_replaces_the_one_silent_longest(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url), **KNOWN)
    kept = await connect(gw.admin_url)
    assert (await kept.ask(request("/livez"))).status == 200
    oldest = await connect(gw.admin_url)
    async with silent(gw.admin_url, MAX_CONNECTIONS - 1):
        assert await oldest.rest() == b""
        assert (await kept.ask(request("/livez"))).status == 200


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"", 0),
        (head("/metrics", method="GET")[:-2], 408),
        (head("/admin/explain", "Content-Length: 100") + b"{", 408),
        (head("/admin/explain", "Transfer-Encoding: chunked") + b"5\r\n{", 408),
        (head("/metrics", "Content-Length: 100", method="POST"), 408),
    ],
    ids=["silence", "head", "body", "chunk", "unread-body"],
)
async def test_admin_request_that_is_incomplete_at_its_deadline_is_ended(
    gateway: GatewayFactory, capture: Capture, connect: Connect, sent: bytes, status: int
) -> None:
    gw = await gateway(rules(capture.url), **KNOWN, receive_timeout_s=0.3)
    client = await connect(gw.admin_url)
    client.send(sent)
    answer = await client.rest()
    assert answer[:13] == (b"HTTP/1.1 %d " % status if status else b"")


@pytest.mark.parametrize("lines", [("X: " + "x" * 100_000,), tuple(f"X-{n}: y" for n in range(10_000))])
async def test_admin_request_with_an_oversized_head_is_refused(
    gateway: GatewayFactory, capture: Capture, connect: Connect, lines: tuple[str, ...]
) -> None:
    gw = await gateway(rules(capture.url), **KNOWN)
    client = await connect(gw.admin_url)
    client.send(head(RELOAD, *allowed(*lines)))
    assert (await client.response()).status == 431


async def test_admin_request_with_an_endless_head_is_refused_at_the_limit(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url), **KNOWN, max_header_bytes=4096)
    client = await connect(gw.admin_url)
    client.send(head(RELOAD)[:-2] + b"X: " + b"x" * 5000)
    assert (await client.response()).status == 431


@pytest.mark.parametrize("framing", [f"Content-Length: {300 * 2**20}", "Transfer-Encoding: chunked"])
@pytest.mark.parametrize("token", ["wrong", TOKEN])
async def test_admin_request_with_a_large_body_is_refused_at_the_limit_with_any_token(
    gateway: GatewayFactory, capture: Capture, connect: Connect, framing: str, token: str
) -> None:
    gw = await gateway(rules(capture.url), **KNOWN)
    client = await connect(gw.admin_url)
    client.send(head(RELOAD, *allowed(framing, token=token)))
    if "chunked" in framing:
        client.send(b"%x\r\n" % (2 * MAX_BODY_BYTES) + b"x" * (MAX_BODY_BYTES + 1))
    assert (await client.response()).status == 413
    assert await client.rest() == b""


async def test_pipelined_admin_request_ends_the_connection(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url), **KNOWN)
    client = await connect(gw.admin_url)
    client.send(request("/livez") * 2)
    assert (await client.rest()).count(b"HTTP/1.1 200") <= 1


async def test_consecutive_admin_requests_share_a_connection(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url), **KNOWN)
    client = await connect(gw.admin_url)
    for _ in range(3):
        assert (await client.ask(request("/admin/explain", b"{}"))).status == 200
        assert (await client.ask(request(RELOAD, b"", *allowed()))).status == 409
        assert (await client.ask(request("/metrics"))).whole


async def test_admin_unix_socket_is_open_only_to_its_owner_and_group(
    gateway: GatewayFactory, capture: Capture, tmp_path: Path
) -> None:
    path = tmp_path / "admin.sock"
    bound_socket(path).close()  # an old file, left by an earlier process
    await gateway(rules(capture.url), **KNOWN, admin_uds=path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    transport = httpx.AsyncHTTPTransport(uds=str(path))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert (await client.get("/admin/state")).status_code == 200
        assert (await client.post("/admin/drain", content=b'{"replica": "main-1"}')).status_code in (200, 409)


def test_admin_unix_socket_does_not_replace_an_ordinary_file(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    with pytest.raises(OSError, match="in use"):
        bound_socket(path)
    assert path.read_text() == "mine"


async def test_admin_unix_socket_of_a_running_gateway_is_not_taken_over(
    gateway: GatewayFactory, capture: Capture, tmp_path: Path
) -> None:
    path = tmp_path / "admin.sock"
    await gateway(rules(capture.url), **KNOWN, admin_uds=path)
    with pytest.raises(OSError, match="in use"):
        bound_socket(path)
    transport = httpx.AsyncHTTPTransport(uds=str(path))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert (await client.get("/admin/state")).status_code == 200


async def test_probes_of_the_admin_port_answer_head(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url), **KNOWN)
    client = await connect(gw.admin_url)
    for path in ("/livez", "/health", "/readyz", "/ready"):
        client.send(head(path, method="HEAD"))
        assert (await client.head())[0] == 200
    assert (await client.ask(request("/metrics"))).whole  # no body of these answers came in between


async def test_admin_client_that_reads_nothing_is_ended_and_little_of_its_answer_is_kept(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url), **KNOWN, write_stall_s=0.3)
    made, ended = [0], asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        try:
            while True:
                made[0] += 1
                yield b"x" * 16384
                await asyncio.sleep(0)
        finally:
            ended.set()

    gw.listeners[1].config.loaded_app = StreamingResponse(pieces())
    client = await connect(gw.admin_url)
    client.send(request("/metrics"))
    assert (await client.head())[0] == 200
    async with asyncio.timeout(DEADLINE_S):
        await ended.wait()
    assert made[0] * 16384 < 8 * 2**20
