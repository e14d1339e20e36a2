"""Gateways share the limits of tenants over a real store."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic

import httpx
import pytest

from gateway.app import Gateway
from gateway.observe.journal.replay import in_order, replay
from gateway.policy import load_text
from gateway.settings import Settings
from tests.stores import RealStore, needs_store, real_store

from .conftest import EmulatorFactory, GatewayFactory
from .policies import rules
from .raw import chat
from .test_several_processes import seen, two_relays
from .waiting import until

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC).timestamp()
"""A time by which no test crosses a midnight."""
BODY = chat(max_tokens=1).split(b"\r\n\r\n", 1)[1]


@pytest.fixture
async def store() -> AsyncIterator[RealStore]:
    async with real_store() as running:
        yield running


async def pair(gateway: GatewayFactory, policy: str, url: str) -> list[Gateway]:
    """Two gateways that hear each other, and share limits."""
    both = [await gateway(policy, store=url) for _ in range(2)]
    for gw in both:
        await until(lambda gw=gw: all(pool.gateways == 2 for pool in gw.controller.state.fleet))
    return both


async def ask(*gateways: Gateway, each: int) -> Counter[int]:
    """Statuses of so many requests at each gateway, in turn."""
    async with httpx.AsyncClient() as client:
        answers = [
            await client.post(f"{gw.url}/v1/chat/completions", content=BODY) for _ in range(each) for gw in gateways
        ]
    return Counter(answer.status_code for answer in answers)


def quota_left(gw: Gateway) -> float:
    """Of the only quota, as the admin pages show it; -1 before any tenant is known."""
    tenants = gw.controller.snapshot(monotonic()).tenants
    return tenants[0].quotas[0].left if tenants else -1.0


@needs_store
async def test_a_gateway_gets_the_share_of_another_that_has_no_requests(
    gateway: GatewayFactory, emulator: EmulatorFactory, store: RealStore
) -> None:
    fleet = await emulator(replicas=1)
    began = monotonic()
    one, other = await pair(gateway, rules(*fleet.urls, tier="limits: {requests: 20/min}"), store.url)
    admitted = (await ask(one, each=10))[200]
    assert admitted == 10, "its equal share"
    async with asyncio.timeout(30):
        while admitted < 18:
            admitted += (await ask(one, each=1))[200]
    admitted += (await ask(one, other, each=20))[200]
    assert admitted <= 20 + (monotonic() - began) / 3


@needs_store
async def test_a_journal_with_leases_replays_bit_for_bit(
    gateway: GatewayFactory, emulator: EmulatorFactory, store: RealStore, tmp_path: Path
) -> None:
    fleet = await emulator(replicas=1)
    policy = rules(*fleet.urls, tier="limits: {requests: 30/min, tokens: 9k/min, concurrency: 4}")
    one = await gateway(policy, store=store.url, journal=tmp_path / "journal")
    await gateway(policy, store=store.url)
    await until(lambda: all(pool.gateways == 2 for pool in one.controller.state.fleet))
    async with asyncio.timeout(60):
        while '"LimitLease"' not in (tmp_path / "journal").read_text("utf-8"):
            await ask(one, each=1)
    await one.drain()
    done = replay(in_order([tmp_path / "journal"]), lambda _: None)
    assert done.divergence is None
    assert not done.stopped


async def test_a_quota_survives_a_restart_in_the_state_directory(emulator: EmulatorFactory, tmp_path: Path) -> None:
    fleet = await emulator(replicas=1)
    policy = load_text(rules(*fleet.urls, tier="limits: {requests: [100/min, 5/day]}"), "policy.yaml", {})
    for expected in ({200: 3}, {200: 2, 429: 1}, {429: 3}):
        settings = Settings(port=0, admin_port=0, drain_deadline_s=0.0, state_dir=tmp_path)
        async with Gateway(settings, policy, unix_s=lambda: NOON) as gw:
            assert await ask(gw, each=3) == expected
    async with httpx.AsyncClient() as client, Gateway(settings, policy, unix_s=lambda: NOON) as gw:
        answer = await client.post(f"{gw.url}/v1/chat/completions", content=BODY)
        state = (await client.get(f"{gw.admin_url}/admin/state")).json()
    assert answer.json()["error"]["code"] == "insufficient_quota"
    assert int(answer.headers["retry-after"]) == pytest.approx(43200, abs=60)
    assert state["tenants"][0]["quotas"] == [{"limit": "requests-day", "amount": 5.0, "left": 0.0}]


@needs_store
async def test_a_quota_survives_a_restart_in_the_store(
    gateway: GatewayFactory, emulator: EmulatorFactory, store: RealStore
) -> None:
    fleet = await emulator(replicas=1)
    policy = rules(*fleet.urls, tier="limits: {requests: 5/day}")
    one = await gateway(policy, unix_s=lambda: NOON, store=store.url)
    assert (await ask(one, each=5)) == {200: 5}
    await one.drain()
    later = await gateway(policy, unix_s=lambda: NOON, store=store.url)
    await until(lambda: quota_left(later) == 0.0)
    assert (await ask(later, each=3)) == {429: 3}


@needs_store
async def test_relays_of_a_gateway_learn_that_a_limit_has_room_again(
    gateway: GatewayFactory, emulator: EmulatorFactory, store: RealStore, tmp_path: Path
) -> None:
    fleet = await emulator(replicas=1)
    policy = rules(*fleet.urls, tier="limits: {requests: 20/min, concurrency: 4}")
    other = await gateway(policy, store=store.url)
    async with two_relays(tmp_path, policy, TAILGATE_STORE=store.url) as served, httpx.AsyncClient() as client:
        await until(lambda: other.store is not None and other.store.view().gateways == 1)
        await seen(served, lambda state: state["store"]["gateways"] == 1)
        admitted = 0
        async with asyncio.timeout(60):
            while admitted < 18:
                answer = await client.post(f"{served.url}/v1/chat/completions", content=BODY)
                assert answer.status_code in (200, 429)
                admitted += answer.status_code == 200
