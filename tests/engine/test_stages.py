"""A real engine tells how long requests wait in its own queue."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any

import openai
import pytest

from gateway.app import Gateway
from tests.scorecard.waiting import DEADLINE_S

from .engine import Engine


async def test_queue_of_the_engine_is_a_stage_of_its_own(
    engine: Engine, gateway: Gateway, client: openai.AsyncOpenAI
) -> None:
    if engine.kind not in ("vllm", "sglang"):
        pytest.skip(f"this engine ({engine.kind}) does not tell")
    (replica,) = gateway.fleet.reports()
    ask: dict[str, Any] = {"model": engine.model, "prompt": "Once upon a time", "max_tokens": 4}
    async with asyncio.timeout(DEADLINE_S):
        while gateway.fleet.times.queue_share(replica.name, monotonic()) is None:
            await asyncio.gather(*(client.completions.create(**ask) for _ in range(4)))
    stages = gateway.metrics.tiers["standard"].stages
    assert sum(stages) == 0.0, "only streams count"
    async for _ in await client.completions.create(**ask, stream=True):
        pass
    receive, queue, engine_queue, prefill, first_token, rest = stages
    assert min(receive, queue, engine_queue, rest) >= 0.0 == first_token
    assert prefill > 0.0
