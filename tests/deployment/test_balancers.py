"""HAProxy and nginx in front of two gateways: one of them leaves, and no request fails."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from loadtests.emulator import Emulator
from tests.deployment.balancers import Balancer, first_answer, haproxy, listening, needs_haproxy, needs_nginx, nginx
from tests.scorecard.conftest import unanswering
from tests.scorecard.policies import rules
from tests.scorecard.raw import chat_body
from tests.scorecard.waiting import until
from tests.serving import gateways

__all__ = ["unanswering"]


async def _ok(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(asyncio.IncompleteReadError):  # of a check, or of a wait for the balancer
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
    writer.close()


@pytest.mark.parametrize(
    "balancer", [pytest.param(haproxy, marks=needs_haproxy), pytest.param(nginx, marks=needs_nginx)]
)
async def test_requests_through_a_balancer_outlive_one_of_two_gateways(tmp_path: Path, balancer: Balancer) -> None:
    body = chat_body(max_tokens=1)
    async with Emulator(replicas=1) as fleet, gateways() as start:
        policy = rules(*fleet.urls)
        one, two = await start(policy), await start(policy)
        addresses = [(gw.url.removeprefix("http://"), gw.admin_url.rpartition(":")[2]) for gw in (one, two)]
        async with balancer(tmp_path, addresses) as url, httpx.AsyncClient(base_url=url, timeout=30.0) as client:
            await first_answer(f"{url}/v1/chat/completions", body)
            answers = [await client.post("/v1/chat/completions", content=body) for _ in range(10)]
            await one.drain()
            answers += [await client.post("/v1/chat/completions", content=body) for _ in range(10)]
    assert [answer.status_code for answer in answers] == [200] * 20


@pytest.mark.parametrize(
    "balancer", [pytest.param(haproxy, marks=needs_haproxy), pytest.param(nginx, marks=needs_nginx)]
)
async def test_request_for_a_gateway_whose_machine_is_gone_is_sent_to_the_other(
    tmp_path: Path, balancer: Balancer, unanswering: str
) -> None:
    async with await asyncio.start_server(_ok, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        addresses = [(urlsplit(unanswering).netloc, f"{port}"), (f"127.0.0.1:{port}", f"{port}")]
        async with balancer(tmp_path, addresses) as url, httpx.AsyncClient(base_url=url, timeout=30.0) as client:
            await listening(url)
            answers = [await client.post("/v1/chat/completions", content=b"{}") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]


@needs_haproxy
async def test_haproxy_leaves_a_gateway_in_service_whose_check_is_slow(tmp_path: Path) -> None:
    checks = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal checks
        if b"/readyz" in await reader.readuntil(b"\r\n\r\n"):
            await asyncio.sleep(0.8)
            checks += 1
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with haproxy(tmp_path, [(f"127.0.0.1:{port}", f"{port}")] * 2) as url, httpx.AsyncClient() as client:
            await until(lambda: checks >= 4)
            assert (await client.get(url)).status_code == 200
