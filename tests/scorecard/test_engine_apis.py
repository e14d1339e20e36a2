"""The APIs of engines beyond generation: over real sockets, under the policy's switches, limits and allow-lists."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .capture import Answer, Capture, whole
from .conftest import Connect, EmulatorFactory, GatewayFactory
from .policies import rules
from .raw import MODEL, request

RERANK = {"model": MODEL, "query": "What is a slot?", "documents": ["A lease.", "A fruit, of late summer."]}
SCORE = {"model": MODEL, "text_1": "What is a slot?", "text_2": ["A lease.", "A fruit, of late summer."]}
ASKED: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("/v1/rerank", "/rerank", "/v2/rerank"), RERANK),
    **dict.fromkeys(("/v1/score", "/score"), SCORE),
    "/pooling": {"model": MODEL, "input": ["A lease.", "A gap."]},
    "/classify": {"model": MODEL, "messages": [{"role": "user", "content": "A lease."}]},
    "/tokenize": {"model": MODEL, "prompt": "A lease, for as long as it takes."},
    "/detokenize": {"model": MODEL, "tokens": [0x41206C65, 0x6173652E]},
}
ALL = "apis: {rerank: true, score: true, pooling: true, classify: true, tokenize: true, detokenize: true}"
FREE = ("/tokenize", "/detokenize")
OF_THE_ANSWER_ALONE = ("id", "created")
CHEATS = {
    "priority": -100,
    "request_id": "mine",
    "cache_salt": "mine",
    "max_tokens": 10**6,
    "n": 100,
}


def asking(path: str, *lines: str, **fields: Any) -> bytes:
    return request(path, json.dumps(ASKED[path] | fields).encode(), *lines)


def comparable(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in OF_THE_ANSWER_ALONE}


@pytest.mark.parametrize("path", ASKED)
async def test_engine_api_answer_is_passed_on_unchanged(
    gateway: GatewayFactory, emulator: EmulatorFactory, connect: Connect, path: str
) -> None:
    replicas = await emulator()
    gw = await gateway(rules(replicas.url, tier=ALL))
    direct = await (await connect(replicas.url)).ask(asking(path))
    response = await (await connect(gw.url)).ask(asking(path))
    assert (response.status, response.headers["x-tailgate-tier"]) == (200, "free")
    assert comparable(response.json()) == comparable(direct.json())
    assert replicas.replicas[0].requests[-1].path == path


async def test_apis_are_served_only_below_v1_by_default(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    capture.answer = lambda call: Answer(whole(b'{"results":[]}'))
    gw = await gateway(rules(capture.url))
    client = await connect(gw.url)
    found = {path: (await client.ask(asking(path))).status for path in ASKED}
    assert found == {path: 200 if path.startswith("/v1/") else 404 for path in ASKED}
    assert {call.path for call in capture.calls} == {"/v1/rerank", "/v1/score"}


async def test_path_of_an_api_that_the_tier_lacks_is_a_404_that_says_so(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url, tier="apis: {rerank: false, chat: false}"))
    client = await connect(gw.url)
    response = await client.ask(asking("/v1/rerank"))
    assert (response.status, response.reason) == (404, "not-found")
    assert response.error["message"] == "/v1/rerank is not served in this tier."
    assert (await client.ask(request("/v1/chat/completions", b"{}"))).status == 404
    assert not capture.calls


async def test_request_without_a_key_gets_401_whatever_the_api(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url, keys={"tg-key": "acme"}, tier="apis: {score: false}"))
    client = await connect(gw.url)
    assert {(await client.ask(asking(path))).status for path in ASKED} == {401}


@pytest.mark.parametrize("path", ASKED)
async def test_engine_steering_fields_never_reach_a_replica(
    gateway: GatewayFactory, capture: Capture, connect: Connect, path: str
) -> None:
    capture.answer = lambda call: Answer(whole(b'{"results":[]}'))
    gw = await gateway(rules(capture.url, tier=f"{ALL}, engine_priority: 7"))
    client = await connect(gw.url)
    for name, value in (("mm_processor_kwargs", {"max_pixels": 10**9}), ("chat_template", "{{ 1 }}")):
        refused = await client.ask(asking(path, **{name: value}))
        assert (refused.status, refused.error["param"]) == (400, name)
    response = await client.ask(asking(path, **CHEATS, truncate_prompt_tokens=5))
    assert response.status == 200
    (call,) = capture.calls
    taken = {} if path in FREE else {"truncate_prompt_tokens": 5, "priority": 7}
    assert json.loads(call.body) == ASKED[path] | taken
    dropped = {*CHEATS, "truncate_prompt_tokens"} - taken.keys() | {"priority"}
    assert set(response.headers["x-tailgate-changed"].split(", ")) == dropped


async def test_more_documents_than_the_tier_allows_are_refused_by_name(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url, tier="caps: {batch: 2}"))
    client = await connect(gw.url)
    for path, field in (("/v1/rerank", "documents"), ("/v1/score", "text_2")):
        response = await client.ask(asking(path, **{field: ["a", "b", "c"]}))
        assert (response.status, response.error["param"]) == (400, field)
        assert response.error["message"] == f"{field}: must have at most 2 entries for this tier (caps.batch)"
    assert not capture.calls


async def test_rerank_query_is_charged_once_for_each_document(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    capture.answer = lambda call: Answer(whole(b'[{"index":0,"score":0.5}]'))
    gw = await gateway(rules(capture.url, tier="limits: {tokens: 3000/min}"))
    client = await connect(gw.url)
    long = "word " * 200
    few = await client.ask(asking("/v1/rerank", query=long, documents=["a"]))
    many = await client.ask(asking("/v1/rerank", query=long, documents=["a"] * 100))
    assert (few.status, many.status, many.reason) == (200, 429, "limit-tokens")


async def test_embeddings_take_messages_with_images_where_the_tier_allows_media(
    gateway: GatewayFactory, emulator: EmulatorFactory, connect: Connect
) -> None:
    """vLLM's form for multimodal models."""
    replicas = await emulator()
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    messages = [{"role": "user", "content": [image, {"type": "text", "text": "Represent this image."}]}]
    body = json.dumps({"model": MODEL, "messages": messages, "encoding_format": "float"}).encode()
    served = await (await connect((await gateway(rules(replicas.url, tier="caps: {media: true}"))).url)).ask(
        request("/v1/embeddings", body)
    )
    refused = await (await connect((await gateway(rules(replicas.url))).url)).ask(request("/v1/embeddings", body))
    assert (served.status, len(served.json()["data"])) == (200, 1)
    assert (refused.status, refused.error["param"]) == (400, "messages[0].content[0]")


async def test_tokenize_uses_no_token_limit_and_detokenize_restores_the_text(
    gateway: GatewayFactory, emulator: EmulatorFactory, connect: Connect
) -> None:
    replicas = await emulator()
    gw = await gateway(rules(replicas.url, tier=f"{ALL}, limits: {{tokens: 60/min, requests: 6/min}}"))
    client = await connect(gw.url)
    for _ in range(3):
        response = await client.ask(asking("/tokenize", prompt="A lease, for as long as it takes. " * 100))
        ids = response.json()["tokens"]
        response = await client.ask(asking("/detokenize", tokens=ids))
        assert response.json() == {"prompt": "A lease, for as long as it takes. " * 100}
        assert response.headers["x-ratelimit-remaining-tokens"] == "60"
    assert (await client.ask(asking("/tokenize"))).reason == "limit-requests"


async def test_rerank_answer_that_is_a_bare_list_is_accepted(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    """The form of SGLang and TEI."""
    ranking = b'[{"index":1,"score":0.9},{"index":0,"score":0.1}]'
    capture.answer = lambda call: Answer(whole(ranking))
    gw = await gateway(rules(capture.url, tier=ALL))
    client = await connect(gw.url)
    body = json.dumps({"model": MODEL, "query": "q", "texts": ["a", "b"], "raw_scores": True}).encode()
    response = await client.ask(request("/rerank", body))
    assert (response.status, response.body) == (200, ranking)
    assert json.loads(capture.calls[0].body)["texts"] == ["a", "b"]


async def test_refusal_of_a_replica_keeps_its_message(
    gateway: GatewayFactory, emulator: EmulatorFactory, connect: Connect
) -> None:
    replicas = await emulator()
    gw = await gateway(rules(replicas.url))
    long = "word " * 20_000
    response = await (await connect(gw.url)).ask(asking("/v1/rerank", query=long))
    assert (response.status, response.error["code"]) == (400, "context_length_exceeded")
