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
from gateway.policy import load_text
from gateway.settings import Settings
from loadtests.emulator import Emulator

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
    """`await start(urls=[...], tier="...")`: a gateway, by default in front of the emulated replicas.

    An exception in a callback of the event loop fails the test.
    """
    raised: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
    async with AsyncExitStack() as stack:

        async def start(urls: list[str] | None = None, max_body_bytes: int = 2**20, **rules: Any) -> Gateway:
            text = policy(urls or replicas.urls, **rules)
            settings = Settings(port=0, admin_port=0, drain_deadline_s=0.0, max_body_bytes=max_body_bytes)
            gw = await stack.enter_async_context(Gateway(settings, load_text(text, "policy.yaml", {})))
            stack.callback(_hurry, gw)
            return gw

        yield start
    assert not raised


def _hurry(gw: Gateway) -> None:
    """End the listeners together: one after the other, each would take a few of uvicorn's ticks."""
    for listener in gw.listeners:
        listener.should_exit = True


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
