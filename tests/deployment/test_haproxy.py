"""HAProxy in front of two gateways: one of them leaves, and no request fails."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import httpx
import pytest

from loadtests.emulator import Emulator
from loadtests.processes import free_port
from tests.scorecard.policies import rules
from tests.scorecard.raw import chat
from tests.serving import gateways

PROGRAM = shutil.which("haproxy")
FILE = Path(__file__).parents[2] / "deploy" / "haproxy" / "haproxy.cfg"


@pytest.mark.skipif(PROGRAM is None, reason="needs haproxy: apt-get install haproxy")
async def test_requests_through_haproxy_outlive_one_of_two_gateways() -> None:
    assert PROGRAM is not None
    async with Emulator(replicas=1) as fleet, gateways() as start:
        policy = rules(*fleet.urls)
        one, two = await start(policy), await start(policy)
        port = free_port()
        places = {"BIND": f"127.0.0.1:{port}"}
        for number, gw in enumerate((one, two), 1):
            places[f"GATEWAY_{number}"] = gw.url.removeprefix("http://")
            places[f"ADMIN_{number}"] = gw.admin_url.rpartition(":")[2]
        proxy = await asyncio.create_subprocess_exec(PROGRAM, "-f", str(FILE), "-db", env={**os.environ, **places})
        try:
            body = chat(max_tokens=1).split(b"\r\n\r\n", 1)[1]
            url = f"http://127.0.0.1:{port}/v1/chat/completions"
            async with httpx.AsyncClient(timeout=30.0) as client:
                async with asyncio.timeout(30):
                    while True:
                        try:
                            if (await client.post(url, content=body)).status_code == 200:
                                break
                        except httpx.TransportError:
                            await asyncio.sleep(0.02)
                answers = [await client.post(url, content=body) for _ in range(10)]
                await one.drain()
                answers += [await client.post(url, content=body) for _ in range(10)]
            assert [answer.status_code for answer in answers] == [200] * 20
        finally:
            proxy.terminate()
            await proxy.wait()
