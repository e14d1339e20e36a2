"""The emulator beside the engine: the same conversations find the same in both prefix caches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from uuid import uuid4

import httpx
import pytest

from gateway.sim.run.profiles import PROFILES
from loadtests.emulator import Emulator

from .conversations import CONVERSATIONS, TextTalk, cached_of_tokens, counters, label, talk_text
from .engine import Engine

POINTS = 0.03


@pytest.fixture
async def twin(engine: Engine) -> AsyncIterator[httpx.AsyncClient]:
    """An emulated vLLM with blocks and a KV cache as large as the engine's."""
    page = (await engine.client.get("/metrics")).text
    try:
        block = int(label(page, "vllm:cache_config_info", "block_size"))
        blocks = int(label(page, "vllm:cache_config_info", "num_gpu_blocks"))
        caching = label(page, "vllm:cache_config_info", "enable_prefix_caching")
    except LookupError as error:
        pytest.skip(f"this engine does not say how its cache is made: {error}")
    profile = replace(
        PROFILES["test"],
        max_model_len=engine.max_model_len or 8192,
        kv_capacity_tokens=(blocks - 1) * block,  # one is vLLM's own, for padding
        kv_block_tokens=block,
        prefix_caching=caching == "True",
    )
    async with (
        Emulator(profile=profile, model=engine.model) as emulator,
        httpx.AsyncClient(base_url=emulator.url, timeout=60) as client,
    ):
        yield client


async def test_each_prompt_of_tokens_finds_as_much_in_the_emulated_cache(
    engine: Engine, twin: httpx.AsyncClient
) -> None:
    """To the token, also where the conversations do not fit into the cache together."""
    seed = uuid4().hex
    there = await cached_of_tokens(engine.client, engine.model, seed)
    if not any(there):
        pytest.skip("this engine does not say what it found: vLLM wants --enable-prompt-tokens-details")
    here = await cached_of_tokens(twin, engine.model, seed)
    assert here == there


async def test_conversations_at_once_have_the_same_hit_rate_in_the_emulated_cache(
    engine: Engine, twin: httpx.AsyncClient
) -> None:
    """Each answers with texts of its own, and has its own tokenizer."""
    seed, rates = uuid4().hex, []
    for client in (engine.client, twin):
        before = await counters(client)
        talks = [TextTalk(number, seed) for number in range(CONVERSATIONS)]
        await asyncio.gather(*(talk_text(client, engine.model, talk) for talk in talks))
        rates.append((await counters(client)).since(before).hit_rate)
    there, here = rates
    print(f"hit rate of the engine {there:.3f}, of the emulator {here:.3f}")
    assert abs(there - here) <= POINTS
