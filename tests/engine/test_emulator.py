"""The emulator beside the engine: the same conversations have the same hits in both prefix caches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace
from uuid import uuid4

import httpx
import pytest

from gateway.sim.engine.profiles import PROFILES
from loadtests.emulator import Emulator

from .conversations import CONVERSATIONS, TextTalk, TokenTalk, cached_of_tokens, counters, label, talk_text, talk_tokens
from .engine import Engine

POINTS = 0.03
ROOM_TOKENS = 60_000
SEQUENCES = 16
"""vLLM's --max-num-seqs: more than there are conversations will do."""


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
        PROFILES["default"],
        max_model_len=engine.max_model_len or 8192,
        max_num_seqs=SEQUENCES,
        kv_capacity_tokens=(blocks - 1) * block,  # one is vLLM's own, for padding
        kv_block_tokens=block,
        prefix_caching=caching == "True",
    )
    async with (
        # In real time: with virtual time, clients as slow as the engine would not overlap.
        Emulator(profile=profile, model=engine.model, time_scale=1.0) as emulator,
        httpx.AsyncClient(base_url=emulator.url, timeout=60) as client,
    ):
        yield client


async def test_each_prompt_of_tokens_finds_as_much_in_the_emulated_cache(
    engine: Engine, twin: httpx.AsyncClient
) -> None:
    """Exact to the token, even if the conversations do not fit into the cache together."""
    seed = uuid4().hex
    there = await cached_of_tokens(engine.client, engine.model, seed)
    if not any(there):
        pytest.skip("this engine does not say what it found: vLLM wants --enable-prompt-tokens-details")
    here = await cached_of_tokens(twin, engine.model, seed)
    assert here == there


async def hit_rate(client: httpx.AsyncClient, talks: list[Awaitable[None]]) -> float:
    """For simultaneous conversations."""
    before = await counters(client)
    await asyncio.gather(*talks)
    return (await counters(client)).since(before).hit_rate


async def test_conversations_at_once_have_the_same_hit_rate_in_the_emulated_cache(
    engine: Engine, twin: httpx.AsyncClient
) -> None:
    """With token ids, whether or not all conversations fit into the cache."""
    seed = uuid4().hex
    there, here = [
        await hit_rate(
            client, [talk_tokens(client, engine.model, TokenTalk(number, seed)) for number in range(CONVERSATIONS)]
        )
        for client in (engine.client, twin)
    ]
    print(f"token ids: hit rate of the engine {there:.3f}, of the emulator {here:.3f}")
    assert abs(there - here) <= POINTS


async def test_conversations_in_text_have_the_same_hit_rate_in_the_emulated_cache(
    engine: Engine, twin: httpx.AsyncClient
) -> None:
    """Each repeats its own answers, and has its own tokenizer, so both caches must have room for everything."""
    page = (await twin.get("/metrics")).text
    if int(label(page, "vllm:cache_config_info", "kv_cache_size_tokens")) < ROOM_TOKENS:
        pytest.skip(f"the engine's KV cache holds less than {ROOM_TOKENS} tokens")
    seed = uuid4().hex
    there, here = [
        await hit_rate(
            client, [talk_text(client, engine.model, TextTalk(number, seed)) for number in range(CONVERSATIONS)]
        )
        for client in (engine.client, twin)
    ]
    print(f"text: hit rate of the engine {there:.3f}, of the emulator {here:.3f}")
    assert abs(there - here) <= POINTS
