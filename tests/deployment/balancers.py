"""What tests of balancers in front of gateways share."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import httpx

READY_S = 30.0


async def first_answer(url: str, body: bytes) -> None:
    """Wait until a balancer that was just started listens, and a gateway behind it answers `body` with 200."""
    async with asyncio.timeout(READY_S), httpx.AsyncClient(timeout=READY_S) as client:
        while True:
            with suppress(httpx.TransportError):  # it does not listen yet
                if (await client.post(url, content=body)).status_code == 200:
                    return
            await asyncio.sleep(0.02)
