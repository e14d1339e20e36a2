"""The gateway treats a request exactly as `explain` says."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from gateway.app import Gateway
from gateway.cli.explanation import explain
from gateway.cli.output import console
from gateway.cli.running.live import Unanswered, ask_gateway, show
from gateway.core.policy import Policy
from gateway.core.request import Endpoint
from gateway.policy import load_text
from gateway.settings import Settings
from gateway.wire.errors.replies import status_of
from loadtests.emulator import Emulator

POLICY = """\
apiVersion: tailgate/v1
models:
  emulated: {{pools: [short, long], aliases: [gpt]}}
  "*": {{pools: [long], upstream: emulated}}
pools:
  short: {{replicas: ["{}"], max_prompt_tokens: 100}}
  long: {{replicas: ["{}"], max_prompt_tokens: 1000}}
tiers:
  only: {{max_tokens: {{default: 5, limit: 9}}, caps: {{n: 4}}, limits: {{tokens: 10k/min}}}}
"""


@dataclass(frozen=True, slots=True)
class Served:
    """A gateway that has learned nothing, and its two replicas."""

    policy: Policy
    gateway: Gateway
    emulator: Emulator

    def sent(self) -> dict[str, Any]:
        """The body of the last request, as its replica received it."""
        received = [r for replica in self.emulator.replicas for r in replica.requests if r.method == "POST"]
        body: dict[str, Any] = json.loads(received[-1].body)
        return body


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with Emulator(replicas=2) as emulator:
        policy = load_text(POLICY.format(*emulator.urls), "policy.yaml", {})
        async with Gateway(Settings(port=0, admin_port=0, drain_deadline_s=0.0), policy) as gateway:
            yield Served(policy, gateway, emulator)


def completion(prompt: object, **more: object) -> dict[str, object]:
    return {"model": "emulated", "prompt": prompt, **more}


WORDS = "word " * 20


@pytest.mark.parametrize(
    ("body", "pool"),
    [
        (completion(WORDS), "short"),
        (completion(WORDS, max_tokens=7), "short"),
        (completion(WORDS, max_tokens=700, n=2), "short"),
        (completion(WORDS * 10), "long"),
        (completion([WORDS] * 10), "short"),
        (completion([WORDS * 10, WORDS * 12]), "long"),
        (completion([[7] * 90] * 10), "short"),
        (completion([[7] * 190] * 3), "long"),
        ({**completion(WORDS), "model": "gpt"}, "short"),
        ({**completion(WORDS), "model": "any-name"}, "long"),
        ({"prompt": WORDS}, "short"),
    ],
)
async def test_explained_pool_model_and_max_tokens_equal_those_of_the_served_request(
    served: Served, body: dict[str, object], pool: str
) -> None:
    raw = json.dumps(body).encode()
    said = explain(served.policy, Endpoint.COMPLETIONS, None, raw)
    async with httpx.AsyncClient(base_url=served.gateway.url) as client:
        answer = await client.post("/v1/completions", content=raw)
    assert answer.status_code == 200, answer.text
    assert said.asked is not None
    assert said.output is not None
    assert [verdict.name for verdict in said.pools if verdict.chosen] == [answer.headers["x-tailgate-pool"]] == [pool]
    assert all(verdict.fits for verdict in said.pools if verdict.chosen)
    sent = served.sent()
    assert (said.asked.upstream_model, said.output.granted) == (sent["model"], sent["max_tokens"])


@pytest.mark.parametrize(
    "body",
    [
        {**completion(WORDS), "model": "*"},
        completion("word " * 4000),
        completion([[7] * 1001]),
        completion(WORDS, n=5),
        completion([[7] * 1000] * 11),
    ],
)
async def test_refusal_reason_equals_the_explained_reason(served: Served, body: dict[str, object]) -> None:
    raw = json.dumps(body).encode()
    said = explain(served.policy, Endpoint.COMPLETIONS, None, raw)
    async with httpx.AsyncClient(base_url=served.gateway.url) as client:
        answer = await client.post("/v1/completions", content=raw)
    assert said.refusal is not None
    assert (status_of(said.refusal.why), said.refusal.why) == (answer.status_code, answer.headers["x-tailgate-reason"])


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        (Endpoint.RERANK, {"model": "emulated", "query": WORDS, "documents": ["one", "two"]}),
        (Endpoint.RERANK_BARE, {"model": "emulated", "query": WORDS, "documents": ["one", "two"]}),
        (Endpoint.RERANK, {"model": "emulated", "query": WORDS}),
        (Endpoint.TOKENIZE, {"model": "emulated", "prompt": WORDS}),
    ],
)
async def test_explained_outcome_of_each_api_equals_the_served_one(
    served: Served, endpoint: Endpoint, body: dict[str, object]
) -> None:
    raw = json.dumps(body).encode()
    said = explain(served.policy, endpoint, None, raw)
    async with httpx.AsyncClient(base_url=served.gateway.url) as client:
        answer = await client.post(endpoint.value, content=raw)
    if said.refusal is not None:
        assert (status_of(said.refusal.why), said.refusal.why) == (
            answer.status_code,
            answer.headers["x-tailgate-reason"],
        )
    else:
        assert said.output is not None
        assert (answer.status_code, said.output.granted, said.output.why) == (200, 0, "this API has no output cap")


def test_explain_reserves_the_tokens_of_all_prompts_of_a_batch() -> None:
    policy = load_text(POLICY.format("http://127.0.0.1:1", "http://127.0.0.1:2"), "policy.yaml", {})
    one, three = (
        explain(policy, Endpoint.COMPLETIONS, None, json.dumps(completion([[7] * 50] * count)).encode())
        for count in (1, 3)
    )
    assert (one.reserved_tokens, three.reserved_tokens) == (50 + 5, 3 * (50 + 5))


@pytest.mark.parametrize(
    ("prompt", "least"),
    [("hello", 1), (["a", "b", "c"], 3), (WORDS, 12), ("", 0), (["", ""], 0), (["a", ""], 1), ([[7], [7]], 2)],
)
def test_explained_prompt_with_text_has_at_least_one_token(prompt: object, least: int) -> None:
    policy = load_text(POLICY.format("http://127.0.0.1:1", "http://127.0.0.1:2"), "policy.yaml", {})
    asked = explain(policy, Endpoint.COMPLETIONS, None, json.dumps(completion(prompt)).encode()).asked
    assert asked is not None
    assert least == asked.prompt_tokens_low <= asked.prompt_tokens_high


async def test_explain_live_shows_the_verdict_of_a_running_gateway(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = {"tier": "only", "model": "gpt", "prompt_tokens": 70, "max_tokens": 500, "stream": True, "tenant": None}
    found = await asyncio.to_thread(ask_gateway, served.gateway.admin_url, asked)
    assert (found["verdict"], found["pool"], found["trust"], found["max_tokens"]) == ("sent", "short", "cold", 9)
    show(found, console())
    said = capsys.readouterr().out
    assert "sent to" in said
    assert "P(breach)" in said
    too_long = await asyncio.to_thread(ask_gateway, served.gateway.admin_url, {"prompt_tokens": 5000, "model": "gpt"})
    show(too_long, console())
    assert "the longest prompt this model serves is 1000 tokens" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(Unanswered, match="tier: 'gold' is unknown"):
        await asyncio.to_thread(ask_gateway, served.gateway.admin_url, {"tier": "gold"})


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "127.0.0.1:9090", "file:///etc/passwd"])
def test_explain_live_names_a_gateway_that_is_unreachable(url: str) -> None:
    with pytest.raises(Unanswered, match=re.escape(url)):
        ask_gateway(url, {})


def test_explanation_of_a_body_without_a_model_names_those_that_the_tier_may_use() -> None:
    body = json.dumps({"prompt": WORDS}).encode()
    pools = "{a: {replicas: ['http://127.0.0.1:1']}, b: {replicas: ['http://127.0.0.1:2']}}"
    several = "{x: {pools: [a]}, y: {pools: [a], aliases: [z]}, hidden: {pools: [b]}}"
    for models, detail in (
        (several, "model: field required: name one of x, y"),
        ("{x: {pools: [a]}, '*': {pools: [a]}}", "model: field required: with a catch-all it depends on the replicas'"),
    ):
        policy = load_text(
            f"apiVersion: tailgate/v1\nmodels: {models}\npools: {pools}\ntiers: {{t: {{pools: [a]}}}}", "p", {}
        )
        refusal = explain(policy, Endpoint.COMPLETIONS, None, body).refusal
        assert refusal is not None
        assert refusal.detail.startswith(detail)
