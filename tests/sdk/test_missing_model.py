"""Requests that name no model, as vLLM and TEI accept them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import httpx
import openai
import pytest

from gateway.app import Gateway
from loadtests.emulator import Emulator
from tests.serving import GatewayFactory, gateways

from .conftest import Start
from .policies import HELLO, KEY, MODEL

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO, "max_tokens": 4},
    "/v1/completions": {"prompt": "Hello", "max_tokens": 4},
    "/v1/responses": {"input": "Hello", "max_output_tokens": 4},
    "/v1/messages": {"messages": HELLO, "max_tokens": 4},
    "/v1/embeddings": {"input": "Hello"},
    "/rerank": {"query": "Hello", "documents": ["one", "two"]},
    "/v1/rerank": {"query": "Hello", "documents": ["one", "two"]},
    "/v1/score": {"text_1": "Hello", "text_2": "one"},
    "/tokenize": {"prompt": "Hello"},
}
COUNT = "/v1/messages/count_tokens"
DEADLINE_S = 20.0
OPEN = "apis: {rerank: true, tokenize: true}"


def two_models(urls: list[str], pools: str = "a, b") -> str:
    """Two models in a pool each, renamed for the engines, and one tier of these pools."""
    return f"""\
apiVersion: tailgate/v1
models: {{one: {{pools: [a], aliases: [uno], upstream: {MODEL}}}, two: {{pools: [b], upstream: {MODEL}}}}}
pools: {{a: {{replicas: ["{urls[0]}"], slots: 4}}, b: {{replicas: ["{urls[1]}"], slots: 4}}}}
tiers: {{t: {{pools: [{pools}], max_tokens: {{default: 5, limit: 9}}}}}}
"""


@pytest.fixture
async def start_text() -> AsyncIterator[GatewayFactory]:
    """`await start_text(policy)`: a gateway."""
    async with gateways() as start:
        yield start


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(trust_env=False, headers={"authorization": f"Bearer {KEY}"}) as client:
        yield client


def bodies(replicas: Emulator) -> list[dict[str, Any]]:
    """The bodies that replicas received."""
    return [json.loads(got.body) for one in replicas.replicas for got in one.requests if got.method == "POST"]


@pytest.mark.parametrize("path", BODIES)
async def test_only_model_serves_a_request_that_names_none(
    start: Start, replicas: Emulator, client: httpx.AsyncClient, path: str
) -> None:
    gateway = await start(tier=OPEN)
    for unnamed in ({}, {"model": None}, {"model": ""}):
        missing = await client.post(gateway.url + path, json=BODIES[path] | unnamed)
        assert missing.status_code == 200, missing.text
    named = await client.post(gateway.url + path, json={**BODIES[path], "model": MODEL})
    assert named.status_code == 200
    sent = bodies(replicas)
    assert all(body == sent[-1] for body in sent)
    assert {body["model"] for body in sent} == {MODEL}


async def test_openai_sdk_without_a_model_gets_the_name_that_the_policy_gives(
    start: Start, openai_of: Callable[..., openai.AsyncOpenAI]
) -> None:
    gateway = await start()
    nothing = cast(str, None)
    answer = await openai_of(gateway).chat.completions.create(model=nothing, messages=HELLO, max_tokens=9000)
    assert answer.model == MODEL
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 4000, "the cap of the tier holds"


async def test_form_without_a_model_is_served_by_the_only_model(gateway: Gateway, client: httpx.AsyncClient) -> None:
    answer = await client.post(f"{gateway.url}/v1/audio/transcriptions", files={"file": ("a.wav", bytes(6400))})
    assert answer.status_code == 200, answer.text


async def test_tokens_of_a_prompt_without_a_model_are_counted(gateway: Gateway, client: httpx.AsyncClient) -> None:
    answer = await client.post(gateway.url + COUNT, json={"messages": HELLO})
    assert answer.status_code == 200
    assert answer.json()["input_tokens"] > 0


async def test_several_models_are_named_to_a_client_that_names_none(
    start_text: GatewayFactory, replicas: Emulator, client: httpx.AsyncClient
) -> None:
    gateway = await start_text(two_models(replicas.urls))
    for path in ("/v1/chat/completions", COUNT):
        refused = await client.post(gateway.url + path, json={"messages": HELLO})
        assert refused.status_code == 400
        error = refused.json()["error"]
        assert error["message"] == "model: field required: name one of one, two"
    assert bodies(replicas) == []


async def test_missing_model_never_reaches_a_pool_that_the_tier_may_not_use(
    start_text: GatewayFactory, replicas: Emulator, client: httpx.AsyncClient
) -> None:
    gateway = await start_text(two_models(replicas.urls, pools="b"))
    answer = await client.post(f"{gateway.url}/v1/chat/completions", json={"messages": HELLO})
    assert (answer.status_code, answer.headers["x-tailgate-pool"], answer.json()["model"]) == (200, "b", "two")
    assert [body["model"] for body in bodies(replicas)] == [MODEL]


async def test_only_listed_model_serves_behind_a_catch_all(
    start_text: GatewayFactory, replicas: Emulator, client: httpx.AsyncClient
) -> None:
    gateway = await start_text(
        f"""\
apiVersion: tailgate/v1
models: {{"*": {{pools: [a]}}}}
pools: {{a: {{replicas: [{", ".join(replicas.urls)}], slots: 4}}}}
tiers: {{t: {{}}}}
"""
    )
    async with asyncio.timeout(DEADLINE_S):
        while not (await client.get(f"{gateway.url}/v1/models")).json()["data"]:
            pass
    answer = await client.post(f"{gateway.url}/v1/completions", json={"prompt": "Hello", "max_tokens": 4})
    assert (answer.status_code, answer.json()["model"]) == (200, MODEL)
