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


UNKNOWN = {
    "no answer": (None, "timeout: GET /is_sleeping, because of hold.wake.sleeping: no complete answer"),
    "401": (answer(status=401), "status: GET /is_sleeping, because of hold.wake.sleeping: answered 401"),
    "500": (answer(status=500), "status: GET /is_sleeping, because of hold.wake.sleeping: answered 500"),
    "no word of it": (answer("{}"), "garbage: GET /is_sleeping, because of hold.wake.sleeping: it says neither"),
}


@pytest.mark.parametrize(("said", "error"), UNKNOWN.values(), ids=UNKNOWN.keys())
async def test_replica_that_may_sleep_gets_no_request_until_it_says_that_it_is_awake(
    fake: FakeReplica, said: bytes | None, error: str
) -> None:
    fake.answers |= {"/is_sleeping": said, "/v1/chat/completions": SAID}
    policy = POLICY.replace("interval: 100ms", "interval: 100ms, timeout: 200ms")
    async with gateways() as start, httpx.AsyncClient(timeout=60.0) as client:
        gw = await start(policy.format(url=fake.url))
        await until(lambda: bool(gw.fleet.reports()[0].errors) and not gw.controller.alive())
        assert next(iter(gw.fleet.reports()[0].errors.values())).startswith(error)
        asked = asyncio.create_task(client.post(f"{gw.url}/v1/chat/completions", json=BODY))
        await until(lambda: bool(gw.controller.on_hold().get("main")))
        assert "/v1/chat/completions" not in fake.paths()
        fake.answers["/is_sleeping"] = answer('{"is_sleeping": false}')
        assert (await asked).status_code == 200


async def test_sleep_is_forgotten_once_a_health_check_fails(fake: FakeReplica) -> None:
    fake.answers["/is_sleeping"] = answer('{"is_sleeping": true}')
    async with gateways() as start:
        gw = await start(POLICY.format(url=fake.url))
        await until(lambda: bool(gw.fleet.asleep("main")))
        fake.answers["/health"] = answer(status=503)
        await until(lambda: not gw.fleet.asleep("main"))
        assert not gw.controller.alive()
        fake.answers["/health"] = answer()
        await until(lambda: bool(gw.fleet.asleep("main")))
