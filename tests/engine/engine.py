"""What a real engine is and has, found out by asking it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

import httpx
import pytest

RUNNING = {
    "vllm": "vllm:num_requests_running",
    "sglang": "sglang:num_running_reqs",
    "tgi": "tgi_batch_current_size",
}
"""The gauge of requests that an engine works on."""


@dataclass(frozen=True, slots=True)
class Engine:
    """`max_model_len` is None where the engine does not say."""

    client: httpx.AsyncClient
    url: str
    kind: str
    model: str
    max_model_len: int | None

    async def running(self) -> float:
        """Requests that it works on now. Skips the test where there is no such gauge."""
        page = await self.client.get("/metrics")
        values = re.findall(rf"^{RUNNING.get(self.kind, 'none')}(?:{{[^}}]*}})? (\S+)$", page.text, re.MULTILINE)
        if not values:
            pytest.skip(f"this engine ({self.kind}) has no gauge of running requests")
        return sum(map(float, values))

    async def until_running(self, condition: Callable[[float], bool], timeout_s: float) -> float:
        """Wait until the gauge fits; how long it took, in seconds."""
        start = monotonic()
        async with asyncio.timeout(timeout_s):
            while not condition(await self.running()):
                pass
        return monotonic() - start

    async def wants(self, path: str, body: dict[str, object]) -> None:
        """Skip the test where the engine has no such endpoint, or not for this model."""
        answer = await self.client.post(path, json={"model": self.model} | body)
        if answer.status_code in (404, 405, 501) or "does not support" in answer.text:
            pytest.skip(f"this engine has no {path}: {answer.status_code} {answer.text[:200]}")


async def found(client: httpx.AsyncClient) -> Engine:
    """Ask an engine what it is."""
    card = (await client.get("/v1/models")).json()["data"][0]
    page = (await client.get("/metrics")).text
    kind = next((kind for kind, gauge in RUNNING.items() if gauge in page), "openai")
    return Engine(client, str(client.base_url).rstrip("/"), kind, card["id"], card.get("max_model_len"))
