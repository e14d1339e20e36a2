"""The emulated prefix cache in the usage of each dialect, in counters, and in blocks."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from gateway.sim.engine.profiles import PROFILES
from loadtests.emulator import Emulator, text
from loadtests.emulator.rendered import blocks, chat, plain

PROFILE = PROFILES["test"]
SYSTEM = {"role": "system", "content": "word " * 64}
ASKS = [SYSTEM, {"role": "user", "content": "How are you?"}]


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with Emulator() as emulator, httpx.AsyncClient(base_url=emulator.url) as client:
        yield client


async def usage(client: httpx.AsyncClient, path: str, **fields: object) -> dict[str, Any]:
    answer = await client.post(path, json={"max_tokens": 8} | fields)
    assert answer.status_code == 200, answer.text
    return answer.json()["usage"]


async def cached(client: httpx.AsyncClient, **fields: object) -> int:
    told = await usage(client, "/v1/chat/completions", **fields)
    return told["prompt_tokens_details"]["cached_tokens"]


async def counter(client: httpx.AsyncClient, name: str) -> float:
    page = (await client.get("/metrics")).text
    found = re.search(rf'^vllm:{name}{{engine="0",model_name="emulated"}} (\S+)$', page, re.MULTILINE)
    assert found is not None
    return float(found[1])


def rounded(tokens: int) -> int:
    return tokens // PROFILE.kv_block_tokens * PROFILE.kv_block_tokens


async def test_emulator_caches_whole_blocks_of_a_known_prompt_beginning(client: httpx.AsyncClient) -> None:
    assert await cached(client, messages=ASKS) == 0
    other = [SYSTEM, {"role": "user", "content": "Where have you been all the time?"}]
    assert await cached(client, messages=other) == rounded(text.count_chat([SYSTEM]) - 3)


async def test_emulator_caches_an_answer_for_the_turn_that_repeats_it(client: httpx.AsyncClient) -> None:
    first = (
        await client.post("/v1/chat/completions", json={"messages": ASKS, "max_tokens": 64, "ignore_eos": True})
    ).json()
    said = first["choices"][0]["message"]["content"]
    turn = [*ASKS, {"role": "assistant", "content": said}, {"role": "user", "content": "Go on."}]
    found = await cached(client, messages=turn)
    assert found > first["usage"]["prompt_tokens"] + 32
    assert found <= text.count_chat([*ASKS, {"role": "assistant", "content": said}])


async def test_prompts_with_another_salt_share_no_cached_block(client: httpx.AsyncClient) -> None:
    for salt, wanted in (("a", False), ("b", False), ("a", True)):
        assert (await cached(client, messages=ASKS, cache_salt=salt) > 0) is wanted


@pytest.mark.parametrize("stream", [False, True])
async def test_emulator_reports_cached_tokens_in_each_api_format(client: httpx.AsyncClient, stream: bool) -> None:
    said = "word " * 64
    wanted = rounded(text.count_text(said) - 1)
    for _ in range(2):
        plain = await last_usage(client, "/v1/completions", stream, prompt=said)
        responses = await last_usage(client, "/v1/responses", stream, input=said, max_output_tokens=8)
        messages = await last_usage(client, "/v1/messages", stream, messages=ASKS)
        chat = await last_usage(client, "/v1/chat/completions", stream, messages=ASKS)
    assert plain["prompt_tokens_details"]["cached_tokens"] == wanted
    assert responses["input_tokens_details"]["cached_tokens"] > 0
    assert chat["prompt_tokens_details"]["cached_tokens"] > 0
    # Anthropic counts as input only tokens that are neither read from a cache nor written to it.
    assert messages["cache_read_input_tokens"] == chat["prompt_tokens_details"]["cached_tokens"]
    parts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    assert sum(messages[part] for part in parts) == chat["prompt_tokens"]


async def last_usage(client: httpx.AsyncClient, path: str, stream: bool, **fields: object) -> dict[str, Any]:
    body = {"max_tokens": 8, "stream": stream} | fields
    if stream and path in ("/v1/completions", "/v1/chat/completions"):
        body["stream_options"] = {"include_usage": True}
    answer = await client.post(path, json=body)
    if not stream:
        return answer.json()["usage"]
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    told = [event.get("usage") or event.get("response", {}).get("usage") for event in events]
    return [each for each in told if each][-1]


async def test_prefix_cache_counters_add_up(client: httpx.AsyncClient) -> None:
    total = hits = 0
    for _ in range(3):
        told = await usage(client, "/v1/chat/completions", messages=ASKS)
        total += told["prompt_tokens"]
        hits += told["prompt_tokens_details"]["cached_tokens"]
    assert hits > 0
    assert await counter(client, "prefix_cache_queries_total") == total
    assert await counter(client, "prefix_cache_hits_total") == hits


async def test_emulator_evicts_prompts_from_a_full_cache(client: httpx.AsyncClient) -> None:
    prompts = [f"{n} " + "word " * 3000 for n in range(4)]  # 3,751 tokens each, of 8,192
    for prompt in prompts:
        assert (await usage(client, "/v1/completions", prompt=prompt))["prompt_tokens_details"]["cached_tokens"] == 0
    again = [
        (await usage(client, "/v1/completions", prompt=prompt))["prompt_tokens_details"]["cached_tokens"]
        for prompt in (prompts[3], prompts[0])
    ]
    assert again[0] > 3700
    assert again[1] == 0


async def test_emulator_without_prefix_caching_reports_no_cached_tokens() -> None:
    profile = replace(PROFILE, prefix_caching=False)
    async with Emulator(profile=profile) as emulator, httpx.AsyncClient(base_url=emulator.url) as client:
        assert [await cached(client, messages=ASKS) for _ in range(2)] == [0, 0]
        assert await counter(client, "prefix_cache_queries_total") == 0


async def test_emulator_omits_prompt_tokens_details_like_vllm_by_default() -> None:
    async with Emulator(prompt_tokens_details=False) as emulator, httpx.AsyncClient(base_url=emulator.url) as client:
        for _ in range(2):
            chat = await usage(client, "/v1/chat/completions", messages=ASKS)
            messages = await usage(client, "/v1/messages", messages=ASKS)
            responses = await usage(client, "/v1/responses", input="word " * 64, max_output_tokens=8)
    assert chat["prompt_tokens_details"] is None
    assert set(messages) == {"input_tokens", "output_tokens"}
    assert responses["input_tokens_details"]["cached_tokens"] > 0


def test_emulated_rendered_prompt_has_as_many_tokens_as_are_counted() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    said = [{"role": "user", "content": ["ü", {"type": "text", "text": "five5"}, picture]}, *ASKS]
    fields = {"tools": [{"type": "function"}], "system": "Be kind."}
    counted = text.count_chat(said) + text.count_text('[{"type":"function"}]')
    counted += text.TOKENS_PER_MESSAGE + text.count_content("Be kind.")
    assert len(chat(fields, said)) == text.BYTES_PER_TOKEN * counted
    assert len(plain([1, 2, 3])) == text.BYTES_PER_TOKEN * 3


def test_emulator_caches_prompts_with_different_pictures_apart() -> None:
    one, other = (
        chat({}, [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]) for url in "ab"
    )
    assert len(one) == len(other)
    assert blocks(one, 16)[0] != blocks(other, 16)[0]
