"""Cached tokens from an engine's answers and counters reach the core, in every API and form of answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import pytest

from gateway.app import Gateway
from gateway.core.policy import Policy
from gateway.core.snapshot import CacheView, ReplicaView
from gateway.policy import load_text
from gateway.settings import Settings
from gateway.sim.engine.profiles import PROFILES
from loadtests.emulator import Emulator
from tests.fleet.replicas import until

POLICY = """\
apiVersion: tailgate/v1
models: {{emulated: {{pools: [main]}}}}
pools: {{main: {{replicas: [{url}], health: {{interval: 500ms, scrape_interval: {scrapes}}}}}}}
tiers: {{standard: {{max_tokens: {{default: 8, limit: 64}}}}}}
"""
SAID = "word " * 2000
TURN = [{"role": "system", "content": SAID}, {"role": "user", "content": "Go on."}]
ASKS: dict[str, dict[str, object]] = {
    "/v1/chat/completions": {"messages": TURN},
    "/v1/completions": {"prompt": SAID},
    "/v1/responses": {"input": SAID, "max_output_tokens": 8},
    "/v1/messages": {"messages": TURN, "max_tokens": 8},
}


@pytest.fixture
async def emulator() -> AsyncIterator[Emulator]:
    async with Emulator() as emulator:
        yield emulator


@pytest.fixture
async def gateway(emulator: Emulator) -> AsyncIterator[Gateway]:
    settings = Settings(port=0, admin_port=0, drain_deadline_s=0.0)
    async with Gateway(settings, policy(emulator)) as gateway:
        yield gateway


def policy(emulator: Emulator, scrapes: str = "50ms") -> Policy:
    return load_text(POLICY.format(url=emulator.url, scrapes=scrapes), "policy.yaml", {})


def replica(gateway: Gateway) -> ReplicaView:
    (pool,) = gateway.controller.snapshot(0.0).pools
    (only,) = pool.replicas
    return only


def cache(gateway: Gateway) -> CacheView:
    return replica(gateway).cache


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ASKS)
async def test_cached_tokens_of_an_answer_are_reported(gateway: Gateway, path: str, stream: bool) -> None:
    async with httpx.AsyncClient(base_url=gateway.url) as client:
        for _ in range(2):
            answer = await client.post(path, json={"model": "emulated", "stream": stream} | ASKS[path])
            assert answer.status_code == 200, answer.text
    found = cache(gateway)
    assert found.reported_tokens > 2400
    assert 0.75 * found.reported_tokens < found.predicted_tokens <= found.reported_tokens + 16
    assert found.kept == 1.0


async def test_prompt_tokens_of_an_anthropic_message_include_the_cached_ones(gateway: Gateway) -> None:
    """In that API `input_tokens` leave out cached tokens."""
    async with httpx.AsyncClient(base_url=gateway.url) as client:
        for _ in range(2):
            answer = await client.post("/v1/messages", json={"model": "emulated"} | ASKS["/v1/messages"])
    assert answer.json()["usage"]["input_tokens"] < 32
    low, high = gateway.controller.state.prompts.estimate("emulated", len(SAID))
    assert low > 1000, "and not of a few tokens"
    assert high > 2000


async def test_gateway_learns_that_an_engine_has_no_prefix_caching() -> None:
    settings = Settings(port=0, admin_port=0, drain_deadline_s=0.0)
    async with (
        Emulator(profile=replace(PROFILES["test"], prefix_caching=False)) as emulator,
        Gateway(settings, policy(emulator)) as gateway,
        httpx.AsyncClient(base_url=gateway.url) as client,
    ):
        for _ in range(8):
            await client.post("/v1/chat/completions", json={"model": "emulated"} | ASKS["/v1/chat/completions"])
    assert cache(gateway).reported_tokens == 0
    assert cache(gateway).kept < 0.25


async def test_cache_hit_rate_comes_from_scraped_counters_if_answers_do_not_report_it() -> None:
    settings = Settings(port=0, admin_port=0, drain_deadline_s=0.0)
    async with (
        Emulator(prompt_tokens_details=False) as emulator,
        Gateway(settings, policy(emulator, scrapes="1h")) as gateway,
        httpx.AsyncClient(base_url=gateway.url) as client,
    ):
        # No scrape comes while a request is sent but not yet counted by the engine: it would look like a lost cache.
        await until(lambda: replica(gateway).sample_age_s is not None)
        for _ in range(4):
            await client.post("/v1/chat/completions", json={"model": "emulated"} | ASKS["/v1/chat/completions"])
        gateway.reloads.configure(policy(emulator))
        await until(lambda: (cache(gateway).hit_rate or 0.0) > 0.5)
        assert cache(gateway).kept > 0.9
