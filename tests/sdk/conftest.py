"""A gateway in front of emulated replicas, and the official clients pointed at it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

import anthropic
import openai
import pytest
import uvloop

from gateway.app import Gateway
from loadtests.emulator import Emulator
from tests.serving import gateways

from .policies import KEY, policy

Start = Callable[..., Awaitable[Gateway]]


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The gateway's own event loop."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def replicas() -> AsyncIterator[Emulator]:
    """Two replicas, as fast as the loop turns."""
    async with Emulator(replicas=2) as emulator:
        yield emulator


@pytest.fixture
async def start(replicas: Emulator) -> AsyncIterator[Start]:
    """`await start(urls=[...], tier="...")`: a gateway, by default in front of the emulated replicas."""
    async with gateways() as start:

        async def serve(urls: list[str] | None = None, max_body_bytes: int = 2**20, **rules: Any) -> Gateway:
            return await start(policy(urls or replicas.urls, **rules), max_body_bytes=max_body_bytes)

        yield serve


@pytest.fixture
async def gateway(start: Start) -> Gateway:
    """A gateway with default settings."""
    return await start()


@pytest.fixture
async def openai_of() -> AsyncIterator[Callable[..., openai.AsyncOpenAI]]:
    """`openai_of(gateway, **options)`: a client that does not retry by default."""
    async with AsyncExitStack() as stack:

        def client(gateway: Gateway, **options: Any) -> openai.AsyncOpenAI:
            given = {"api_key": KEY, "max_retries": 0} | options
            made = openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", **given)
            stack.push_async_callback(made.close)
            return made

        yield client


@pytest.fixture
async def anthropic_of() -> AsyncIterator[Callable[..., anthropic.AsyncAnthropic]]:
    """`anthropic_of(gateway, **options)`: a client that does not retry by default."""
    async with AsyncExitStack() as stack:

        def client(gateway: Gateway, **options: Any) -> anthropic.AsyncAnthropic:
            given = {"api_key": KEY, "max_retries": 0} | options
            made = anthropic.AsyncAnthropic(base_url=gateway.url, **given)
            stack.push_async_callback(made.close)
            return made

        yield client


@pytest.fixture
def chatting(gateway: Gateway, openai_of: Callable[..., openai.AsyncOpenAI]) -> openai.AsyncOpenAI:
    """OpenAI's client."""
    return openai_of(gateway)


@pytest.fixture
def messaging(gateway: Gateway, anthropic_of: Callable[..., anthropic.AsyncAnthropic]) -> anthropic.AsyncAnthropic:
    """Anthropic's client."""
    return anthropic_of(gateway)


in_thread = asyncio.to_thread
