"""Gateways in this process, for tests over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from ssl import SSLError
from time import monotonic, time
from typing import Any

from gateway.app import Gateway
from gateway.core.policy import Policy
from gateway.policy import load_text
from gateway.settings import Settings

GatewayFactory = Callable[..., Awaitable[Gateway]]


@asynccontextmanager
async def gateways() -> AsyncIterator[GatewayFactory]:
    """`await start(policy, clock, unix_s, **settings)`: a serving gateway, with a policy as YAML or compiled.

    An exception in a callback of the event loop fails the test.
    """
    raised: list[dict[str, Any]] = []

    def note(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        # uvloop leaves the future of a TLS handshake alone if it fails in the instant in which its caller gives up.
        if not ("future" in context and isinstance(context.get("exception"), SSLError)):
            raised.append(context)

    asyncio.get_running_loop().set_exception_handler(note)
    async with AsyncExitStack() as stack:

        async def start(
            policy: str | Policy,
            clock: Callable[[], float] = monotonic,
            unix_s: Callable[[], float] = time,
            **settings: Any,
        ) -> Gateway:
            if isinstance(policy, str):
                policy = load_text(policy, "policy.yaml", {})
            given = {"port": 0, "admin_port": 0, "drain_deadline_s": 0.0} | settings
            gw = await stack.enter_async_context(Gateway(Settings(**given), policy, clock=clock, unix_s=unix_s))
            stack.callback(_hurry, gw)
            return gw

        yield start
    assert not raised, raised


def _hurry(gw: Gateway) -> None:
    """End all listeners at the same time. One after the other, each would take a few of uvicorn's ticks."""
    for listener in gw.listeners:
        listener.should_exit = True
