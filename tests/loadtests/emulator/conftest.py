"""Emulators to talk to, and connections to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import uvloop

from loadtests.emulator import Emulator

from .wire import Wire, connected


@pytest.fixture
async def emulator() -> AsyncIterator[Emulator]:
    """Two fast replicas."""
    async with Emulator(profile="test", replicas=2) as emulator:
        yield emulator


@pytest.fixture
async def real_time() -> AsyncIterator[Emulator]:
    """One replica whose answers take real time, 10 ms per token, so that tests can interrupt them."""
    async with Emulator(profile="default", time_scale=1.0) as emulator:
        yield emulator


@pytest.fixture
async def connect() -> AsyncIterator[Callable[..., Awaitable[Wire]]]:
    """`await connect(url, request...)`: a new connection on which the requests have been sent."""
    wires: list[Wire] = []

    async def connect(url: str, *requests: bytes) -> Wire:
        wire = await connected(url)
        wires.append(wire)
        for request in requests:
            wire.send(request)
        return wire

    yield connect
    for wire in wires:
        await wire.close()


ON_BOTH_LOOPS = {"test_faults.py", "test_http.py"}


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Both event loops: they must agree on resets, closes and half-sent answers."""
    loops: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
    return loops | {"uvloop": uvloop.new_event_loop} if item.path.name in ON_BOTH_LOOPS else loops
