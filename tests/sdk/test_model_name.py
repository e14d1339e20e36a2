"""The model in an answer is the requested one, not the engine's name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gateway.app import Gateway

from .conftest import Start
from .policies import ALIAS, HELLO, KEY, MODEL

REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO, "max_tokens": 40},
    "/v1/completions": {"prompt": "Hello", "max_tokens": 40},
    "/v1/responses": {"input": "Hello", "max_output_tokens": 40},
    "/v1/messages": {"messages": HELLO, "max_tokens": 40},
    "/v1/embeddings": {"input": "Hello"},
}
STREAMED = [path for path in REQUESTS if path != "/v1/embeddings"]


async def _ask(gateway: Gateway, path: str, **fields: object) -> str:
    async with httpx.AsyncClient(trust_env=False) as client:
        headers = {"authorization": f"Bearer {KEY}"}
        answer = await client.post(
            f"{gateway.url}{path}", json={"model": ALIAS, **REQUESTS[path], **fields}, headers=headers
        )
    assert answer.status_code == 200
    return answer.text


def _models(value: object) -> Iterator[str]:
    """Every `model` in a JSON value."""
    if isinstance(value, dict):
        if "model" in value:
            yield value["model"]
        for inner in value.values():
            yield from _models(inner)


@pytest.mark.parametrize("path", REQUESTS)
async def test_whole_answer_has_the_requested_model_name(gateway: Gateway, path: str) -> None:
    assert set(_models(json.loads(await _ask(gateway, path)))) == {ALIAS}


@pytest.mark.parametrize("tier", ["", "aggregate: true"])
@pytest.mark.parametrize("path", STREAMED)
async def test_every_stream_event_has_the_requested_model_name(start: Start, path: str, tier: str) -> None:
    gateway = await start(tier=tier)
    text = await _ask(gateway, path, stream=True)
    events = [json.loads(line[5:]) for line in text.splitlines() if line.startswith("data: {")]
    assert len(events) >= 40
    assert {name for event in events for name in _models(event)} == {ALIAS}
    assert set(_models(json.loads(await _ask(gateway, path)))) == {ALIAS}


@pytest.mark.parametrize("path", REQUESTS)
async def test_policy_can_report_the_engines_own_model_name(start: Start, path: str) -> None:
    gateway = await start(model="report: upstream")
    assert set(_models(json.loads(await _ask(gateway, path)))) == {MODEL}
