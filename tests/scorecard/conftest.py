"""Fixtures of all rows: a gateway in this process, replicas behind it, and clients that write bytes.

gw = await gateway(rules(capture.url, slots=1), receive_timeout_s=1.0)
client = await connect(gw.url)
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

import pytest
import uvloop

from loadtests.emulator import Emulator
from tests.serving import GatewayFactory, gateways

from . import raw
from .capture import Capture

EmulatorFactory = Callable[..., Awaitable[Emulator]]
Connect = Callable[..., Awaitable[raw.Client]]


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The gateway's own event loop: it differs from asyncio's at the end of connections."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def gateway() -> AsyncIterator[GatewayFactory]:
    """`await gateway(policy, clock, **settings)`: a serving gateway, with a policy as YAML or compiled."""
    async with gateways() as start:
        yield start


@pytest.fixture
async def emulator() -> AsyncIterator[EmulatorFactory]:
    """`await emulator(**options)`: emulated replicas, by default as fast as the loop turns."""
    async with AsyncExitStack() as stack:

        async def start(**options: Any) -> Emulator:
            return await stack.enter_async_context(Emulator(**options))

        yield start


@pytest.fixture
async def capture() -> AsyncIterator[Capture]:
    """A replica that keeps all received bytes."""
    async with Capture() as capture:
        yield capture


@pytest.fixture
async def connect(gateway: GatewayFactory) -> AsyncIterator[Connect]:
    """`await connect(url)`: a raw client, closed before the gateway is."""
    clients: list[raw.Client] = []

    async def open_one(url: str, **options: Any) -> raw.Client:
        client = await raw.connect(url, **options)
        clients.append(client)
        return client

    yield open_one
    for client in clients:
        await client.close()


@pytest.fixture
async def unanswering() -> AsyncIterator[str]:
    """The URL of a listener whose queue of new connections is full: connecting to it takes for ever."""
    loop = asyncio.get_running_loop()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fillers: list[socket.socket] = []
        try:
            while True:
                filler = socket.socket()
                filler.setblocking(False)
                fillers.append(filler)
                try:
                    # A connection over loopback succeeds at once, or never.
                    async with asyncio.timeout(0.2):
                        await loop.sock_connect(filler, listener.getsockname())
                except TimeoutError:
                    break
                except OSError:
                    pytest.skip("this system refuses connections where others let them wait")
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            for filler in fillers:
                filler.close()
