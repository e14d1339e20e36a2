"""vLLM's sleep mode: a replica that sleeps gets no requests, and is woken when some are on hold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from tests.serving import gateways

from .replicas import FakeReplica, answer, replica, until

POLICY = """\
apiVersion: tailgate/v1
models: {{m: {{pools: [main]}}}}
pools:
  main:
    replicas: [{url}]
    hold: {{wake: {{sleeping: true}}}}
    api_key: secret-of-the-engines
    health: {{interval: 100ms}}
tiers: {{free: {{max_tokens: {{default: 16, limit: 4000}}}}}}
defaults: {{tier: free}}
"""
MESSAGE = '{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hello"}}'
SAID = answer(
    f'{{"id": "1", "object": "chat.completion", "model": "m", "choices": [{MESSAGE}], '
    '"usage": {"prompt_tokens": 3, "completion_tokens": 1}}',
    headers="content-type: application/json\r\n",
)
BODY = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}


@pytest.fixture
async def fake() -> AsyncIterator[FakeReplica]:
    async with replica() as fake:
        yield fake


async def test_replica_that_sleeps_is_woken_for_requests_on_hold_and_serves_them(fake: FakeReplica) -> None:
    fake.answers |= {"/is_sleeping": answer('{"is_sleeping": true}'), "/wake_up": answer("{}")}
    async with gateways() as start, httpx.AsyncClient(timeout=60.0) as client:
        gw = await start(POLICY.format(url=fake.url))
        await until(lambda: bool(gw.fleet.asleep("main")) and not gw.controller.alive())
        assert "/wake_up" not in fake.paths(), "nobody asks for anything"
        asked = asyncio.create_task(client.post(f"{gw.url}/v1/chat/completions", json=BODY))
        await until(lambda: "/wake_up" in fake.paths())
        (called,) = [head for head in fake.asked if b"/wake_up" in head]
        assert called.startswith(b"POST ")
        assert b"Bearer secret-of-the-engines" in called
        assert "/v1/chat/completions" not in fake.paths()
        fake.answers |= {"/is_sleeping": answer('{"is_sleeping":false}'), "/v1/chat/completions": SAID}
        assert (await asked).status_code == 200


async def test_server_without_sleep_mode_serves(fake: FakeReplica) -> None:
    fake.answers["/v1/chat/completions"] = SAID
    async with gateways() as start, httpx.AsyncClient(timeout=60.0) as client:
        gw = await start(POLICY.format(url=fake.url))
        await until(lambda: "/is_sleeping" in fake.paths())
        assert (await client.post(f"{gw.url}/v1/chat/completions", json=BODY)).status_code == 200
