"""HAProxy and nginx in front of two gateways: one of them leaves, and no request fails."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import httpx
import pytest

from gateway.app import Gateway
from loadtests.emulator import Emulator
from loadtests.processes import free_port
from tests.deployment.balancers import first_answer
from tests.scorecard.policies import rules
from tests.scorecard.raw import chat_body
from tests.scorecard.waiting import until
from tests.serving import gateways

HAPROXY = shutil.which("haproxy")
NGINX = shutil.which("nginx")
DEPLOY = Path(__file__).parents[2] / "deploy"


async def outlives(proxy: asyncio.subprocess.Process, port: int, leaves: Gateway) -> None:
    """Requests through a balancer at `port` are answered while a gateway leaves."""
    try:
        body = chat_body(max_tokens=1)
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        await first_answer(url, body)
        async with httpx.AsyncClient(timeout=30.0) as client:
            answers = [await client.post(url, content=body) for _ in range(10)]
            await leaves.drain()
            answers += [await client.post(url, content=body) for _ in range(10)]
        assert [answer.status_code for answer in answers] == [200] * 20
    finally:
        proxy.terminate()
        await proxy.wait()


@pytest.mark.skipif(HAPROXY is None, reason="needs haproxy: apt-get install haproxy")
async def test_requests_through_haproxy_outlive_one_of_two_gateways() -> None:
    assert HAPROXY is not None
    async with Emulator(replicas=1) as fleet, gateways() as start:
        policy = rules(*fleet.urls)
        one, two = await start(policy), await start(policy)
        port = free_port()
        places = {"BIND": f"127.0.0.1:{port}"}
        for number, gw in enumerate((one, two), 1):
            places[f"GATEWAY_{number}"] = gw.url.removeprefix("http://")
            places[f"ADMIN_{number}"] = gw.admin_url.rpartition(":")[2]
        command = HAPROXY, "-f", str(DEPLOY / "haproxy" / "haproxy.cfg"), "-db"
        await outlives(await asyncio.create_subprocess_exec(*command, env={**os.environ, **places}), port, one)


@pytest.mark.skipif(HAPROXY is None, reason="needs haproxy: apt-get install haproxy")
async def test_haproxy_leaves_a_gateway_in_service_whose_check_is_slow() -> None:
    assert HAPROXY is not None
    checks = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal checks
        if b"/readyz" in await reader.readuntil(b"\r\n\r\n"):
            await asyncio.sleep(0.8)
            checks += 1
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        at, port = server.sockets[0].getsockname()[1], free_port()
        places = {"BIND": f"127.0.0.1:{port}"}
        for number in (1, 2):
            places |= {f"GATEWAY_{number}": f"127.0.0.1:{at}", f"ADMIN_{number}": f"{at}"}
        command = HAPROXY, "-f", str(DEPLOY / "haproxy" / "haproxy.cfg"), "-db"
        proxy = await asyncio.create_subprocess_exec(*command, env={**os.environ, **places})
        try:
            await until(lambda: checks >= 4)
            async with httpx.AsyncClient() as client:
                assert (await client.get(f"http://127.0.0.1:{port}/")).status_code == 200
        finally:
            proxy.terminate()
            await proxy.wait()


@pytest.mark.skipif(NGINX is None, reason="needs nginx: apt-get install nginx-light")
async def test_requests_through_nginx_outlive_one_of_two_gateways(tmp_path: Path) -> None:
    assert NGINX is not None
    text = (DEPLOY / "nginx" / "nginx.conf").read_text("utf-8")
    async with Emulator(replicas=1) as fleet, gateways() as start:
        policy = rules(*fleet.urls)
        one, two = await start(policy), await start(policy)
        port = free_port()
        for number, gw in enumerate((one, two), 1):
            text = text.replace(f"10.0.0.{number}:8080", gw.url.removeprefix("http://"))
        temporary = "".join(f"{name}_temp_path {tmp_path}/{name};" for name in ("client_body", "proxy"))
        text = text.replace("listen 80;", f"listen 127.0.0.1:{port};").replace(
            "http {", f"http {{ access_log off; {temporary}"
        )
        (tmp_path / "nginx.conf").write_text(text)
        settings = f"daemon off; pid {tmp_path}/pid; error_log stderr;"
        command = NGINX, "-e", "stderr", "-c", str(tmp_path / "nginx.conf"), "-g", settings
        await outlives(await asyncio.create_subprocess_exec(*command), port, one)
