"""A bug in code for long, compressed or abandoned requests costs only that request; the gateway goes on."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from gateway.app import Gateway
from gateway.core.results import Callback
from gateway.policy import load_text
from gateway.proxy.body_intake import BodyIntake
from gateway.proxy.client.asgi_connection import AsgiAnswer, AsgiConnection, AsgiReader
from gateway.proxy.client.client_connection import ClientConnection
from gateway.proxy.exchanges.exchange import Exchange
from gateway.proxy.replica.attempt import UpstreamAttempt
from gateway.proxy.replica.upstream_connection import UpstreamConnection
from gateway.settings import Settings
from loadtests.emulator import Emulator
from tests.interpreted import interpreted
from tests.scorecard.policies import rules
from tests.scorecard.waiting import until

pytestmark = interpreted

BODY = {"model": "emulated", "prompt": "hi", "max_tokens": 2, "stream": True}
TIER = "sse_comments: 100ms, timeouts: {ttft: none, idle: none, total: 1s, on_total: cut}"


@pytest.fixture
async def emulator() -> AsyncIterator[Emulator]:
    async with Emulator() as emulator:
        yield emulator


@pytest.fixture
async def gateway(emulator: Emulator) -> AsyncIterator[Gateway]:
    settings = Settings(port=0, admin_port=0, drain_deadline_s=0.0)
    async with Gateway(settings, load_text(rules(emulator.url, tier=TIER), "policy.yaml", {})) as gateway:
        yield gateway


def raises_once(owner: type, name: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make the first call of a method raise. The list has the number of calls."""
    whole, calls = getattr(owner, name), [0]

    def once(*args: Any, **more: Any) -> Any:
        calls[0] += 1
        if calls[0] == 1:
            raise RuntimeError("a bug")
        return whole(*args, **more)

    monkeypatch.setattr(owner, name, once)
    return calls


async def ask(gateway: Gateway, body: dict[str, Any], **more: Any) -> bool:
    """Whether the answer is a 200 with a complete stream. It must end in any case."""
    async with httpx.AsyncClient(base_url=gateway.url, timeout=20.0) as client:
        content = json.dumps(body).encode()
        if more.pop("compressed", False):
            content, more["headers"] = gzip.compress(content), {"content-encoding": "gzip"}
        try:
            answer = await client.post("/v1/completions", content=content, **more)
        except httpx.RemoteProtocolError:
            return False
    return answer.status_code == 200 and answer.text.endswith("data: [DONE]\n\n")


async def nothing_is_left(gateway: Gateway) -> None:
    await until(lambda: not gateway.driver.under_way)
    (pool,) = gateway.controller.snapshot(0.0).pools
    assert (pool.in_flight, pool.queued) == (0, 0)
    assert sum(gateway.metrics.bugs.values()) >= 1
    assert not gateway.broken.is_set()


@pytest.mark.parametrize(
    ("owner", "name"), [(BodyIntake, "_decode"), (ClientConnection, "taken_in"), (ClientConnection, "_enter")]
)
async def test_bug_in_decoding_a_compressed_body_costs_only_that_request(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    calls = raises_once(owner, name, monkeypatch)
    assert not await ask(gateway, BODY, compressed=True)
    assert await ask(gateway, BODY, compressed=True)
    assert calls[0] == 2
    await nothing_is_left(gateway)


@pytest.mark.parametrize(
    ("owner", "name", "events"),
    [
        (Exchange, "keep_alive", 0),
        (Exchange, "cut", 3),
        (UpstreamAttempt, "cut_short", 3),
        (Exchange, "cancel", 3),
        (UpstreamConnection, "cancel", 3),
    ],
)
async def test_bug_in_a_comment_a_cut_or_a_cancel_costs_at_most_one_request(
    gateway: Gateway, emulator: Emulator, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, events: int
) -> None:
    for replica in emulator.replicas:
        replica.fault("stall", after_events=events)
    calls = raises_once(owner, name, monkeypatch)
    await ask(gateway, BODY | {"max_tokens": 50})
    assert calls[0] >= 1, "this place is never passed"
    for replica in emulator.replicas:
        replica.fault(None)
    assert await ask(gateway, BODY)
    await nothing_is_left(gateway)


async def test_slot_is_freed_despite_a_bug_in_cancelling_for_a_client_that_left(
    gateway: Gateway, emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    for replica in emulator.replicas:
        replica.fault("stall", after_events=3)
    calls = raises_once(UpstreamConnection, "cancel", monkeypatch)
    with pytest.raises(httpx.ReadTimeout):
        async with httpx.AsyncClient(base_url=gateway.url, timeout=httpx.Timeout(10.0, read=0.05)) as client:
            await client.post("/v1/completions", json=BODY | {"max_tokens": 50, "stream": False})
    await until(lambda: calls[0] >= 1)
    for replica in emulator.replicas:
        replica.fault(None)
    assert await ask(gateway, BODY)
    await nothing_is_left(gateway)


ADMIN = [
    (AsgiConnection, "_received"),
    (AsgiReader, "on_headers_complete"),
    (AsgiReader, "on_message_complete"),
    (AsgiConnection, "_answer_plain"),
    (AsgiAnswer, "_start"),
    (AsgiAnswer, "_write"),
]


@pytest.mark.parametrize(("owner", "name"), ADMIN)
async def test_a_bug_in_a_callback_of_the_admin_port_costs_one_connection_and_is_counted(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    raised: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
    calls = raises_once(owner, name, monkeypatch)
    for _ in range(2):
        try:
            async with httpx.AsyncClient(base_url=gateway.admin_url, timeout=10.0) as client:
                answer = await client.get("/healthz")
        except httpx.TransportError:
            continue
        assert answer.status_code in (404, 500)
    await until(lambda: calls[0] >= 2)
    async with httpx.AsyncClient(base_url=gateway.admin_url, timeout=10.0) as client:
        assert (await client.get("/metrics")).status_code == 200
    assert gateway.metrics.bugs[Callback.ADMIN] == 1
    assert await ask(gateway, BODY)
    assert not raised


async def test_policy_stays_in_force_when_watching_its_replicas_hits_a_bug(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
    calls = raises_once(type(gateway.fleet), "configure", monkeypatch)
    gateway.reloads.configure(gateway.handler.policy)
    await until(lambda: calls[0] == 1)
    assert gateway.metrics.bugs[Callback.WATCH] == 1
    assert await ask(gateway, BODY)
    assert not raised
