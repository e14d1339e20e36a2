"""One real engine, named by TAILGATE_TEST_ENGINE, with a gateway in front of it. Skipped where none is named."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import anthropic
import httpx
import openai
import pytest

from gateway.app import Gateway
from gateway.policy import load_text
from gateway.settings import Settings

from .engine import Engine, reached

KEY = "tg-the-key-of-the-tests"
POLICY = """\
apiVersion: tailgate/v1
models:
  {model}: {{pools: [main], aliases: [default]}}
  not-there: {{pools: [main], upstream: no-such-model}}
pools: {{main: {{engine: {kind}, replicas: [{url}], slots: 8, health: {{interval: 500ms, scrape_interval: 100ms}}}}}}
tiers:
  standard:
    max_tokens: {{default: 16, limit: 100000}}
    caps: {{n: 4, best_of: 4, prompt_logprobs: 5}}
    timeouts: {{queue: 60s, ttft: 120s, idle: 60s, total: 300s}}
"""


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    """The engine, and the facts that it reports."""
    url = os.environ.get("TAILGATE_TEST_ENGINE")
    if not url:
        pytest.skip("no engine: name one with TAILGATE_TEST_ENGINE, or make test-vllm URL=...")
    async with httpx.AsyncClient(base_url=url.rstrip("/"), timeout=60) as client:
        yield await reached(client)


@pytest.fixture
async def gateway(engine: Engine) -> AsyncIterator[Gateway]:
    """A gateway with the engine as its only replica."""
    text = POLICY.format(model=engine.model, kind=engine.kind, url=engine.url)
    settings = Settings(port=0, admin_port=0, drain_deadline_s=0.0)
    async with Gateway(settings, load_text(text, "policy.yaml", {})) as gateway:
        yield gateway


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's client, through the gateway."""
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture
async def direct(engine: Engine) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's client, past the gateway."""
    async with openai.AsyncOpenAI(base_url=f"{engine.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture
async def messaging(gateway: Gateway) -> AsyncIterator[anthropic.AsyncAnthropic]:
    """Anthropic's client, through the gateway."""
    async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client:
        yield client
