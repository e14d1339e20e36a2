"""The log of requests to a replica that cannot be reached."""

from __future__ import annotations

import asyncio
import logging

import httpx
import pytest

from loadtests.processes import free_port
from tests.serving import gateways


async def _close(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def test_replica_that_stays_unreachable_is_one_line_until_it_was_reached(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "tailgate.upstream")
    port = free_port()
    policy = f"""\
apiVersion: tailgate/v1
models: {{m: {{pools: [a]}}}}
pools: {{a: {{replicas: ["http://127.0.0.1:{port}"], health: {{failures: 100}}}}}}
tiers: {{t: {{}}}}
"""
    async with gateways() as start, httpx.AsyncClient(trust_env=False) as client:
        gateway = await start(policy)

        async def ask() -> int:
            """The number of lines on the replica after a request."""
            answer = await client.post(f"{gateway.url}/v1/completions", json={"prompt": "Hello"})
            assert answer.status_code >= 500
            return sum(
                line.name == "tailgate.upstream" and "cannot be reached" in line.getMessage() for line in caplog.records
            )

        assert [await ask() for _ in range(3)] == [1, 1, 1]
        async with await asyncio.start_server(_close, "127.0.0.1", port):
            assert await ask() == 1
        assert [await ask() for _ in range(2)] == [2, 2]
