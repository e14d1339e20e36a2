"""`tailgate serve --replica URL`: everything that works with the engine alone works through the gateway."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gateway.policy.builtin import builtin

from .capture import STREAM, Answer, Capture, whole
from .conftest import Connect, GatewayFactory
from .raw import MODEL, chat, request


@pytest.mark.parametrize("stream", [False, True])
async def test_request_without_a_length_gets_the_default_of_the_engine(
    gateway: GatewayFactory, capture: Capture, connect: Connect, stream: bool
) -> None:
    """An engine of unknown context might refuse our default cap, and serve the same request without it."""
    gw = await gateway(builtin([capture.url]))
    client = await connect(gw.url)
    answer = await client.ask(chat(stream=stream, max_tokens=None))
    assert answer.status == 200
    assert "x-tailgate-max-tokens" not in answer.headers
    assert (await client.ask(chat(stream=stream, max_tokens=9))).status == 200
    sent = [json.loads(call.body) for call in capture.calls]
    assert "max_tokens" not in sent[0]
    assert "max_completion_tokens" not in sent[0]
    assert sent[1]["max_tokens"] == 9


async def test_200_streams_run_at_once_at_an_engine_without_metrics(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    """Without /metrics its seats are unknown, which must not make requests wait or be refused."""
    capture.answer = lambda call: None
    gw = await gateway(builtin([capture.url]))
    clients = [await connect(gw.url) for _ in range(200)]
    for client in clients:
        client.send(chat(stream=True))
    await capture.until(lambda: len(capture.calls) == len(clients))
    for call in capture.calls:
        call.send(STREAM)
        call.finish()
    answers = await asyncio.gather(*(client.response() for client in clients))
    assert {answer.status for answer in answers} == {200}
    assert all(answer.body.endswith(b"data: [DONE]\n\n") for answer in answers)


PNG = "data:image/png;base64,iVBORw0KGgo="
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
HI = [{"role": "user", "content": "hi"}]


def seen(part: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [part]}]


ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "lm-eval scores a choice": ("/v1/completions", {"prompt": ["a b", "a c"], "echo": True, "logprobs": 1}),
    "prompt logprobs": ("/v1/chat/completions", {"messages": HI, "prompt_logprobs": 0}),
    "whole vocabulary": ("/v1/completions", {"prompt": "a", "prompt_logprobs": -1}),
    "many answers": ("/v1/chat/completions", {"messages": HI, "n": 64}),
    "beams": ("/v1/chat/completions", {"messages": HI, "n": 4, "use_beam_search": True}),
    "long answer": ("/v1/chat/completions", {"messages": HI, "max_tokens": 128_000}),
    "prefill": ("/v1/chat/completions", {"messages": HI, "continue_final_message": True}),
    "chat template": ("/v1/chat/completions", {"messages": HI, "chat_template": "{{ messages }}"}),
    "picture": ("/v1/chat/completions", {"messages": seen({"type": "image_url", "image_url": {"url": PNG}})}),
    "picture by URL": (
        "/v1/chat/completions",
        {"messages": seen({"type": "image_url", "image_url": {"url": "https://a.example/b.png"}})},
    ),
    "sound": (
        "/v1/chat/completions",
        {"messages": seen({"type": "input_audio", "input_audio": {"data": "UklG", "format": "wav"}})},
    ),
    "picture of Codex": ("/v1/responses", {"input": seen({"type": "input_image", "image_url": PNG})}),
    "picture that Claude Code has read": (
        "/v1/messages",
        {"max_tokens": 9, "messages": seen({"type": "tool_result", "tool_use_id": "t", "content": [PICTURE]})},
    ),
    "tokens": ("/tokenize", {"messages": HI}),
    "ranking": ("/rerank", {"query": "a", "documents": ["b"]}),
}


@pytest.mark.parametrize("asked", ASKED)
async def test_request_without_a_policy_reaches_the_engine_as_it_is(
    gateway: GatewayFactory, capture: Capture, connect: Connect, asked: str
) -> None:
    """The engine decides what it serves, as without the gateway."""
    capture.answer = lambda call: Answer(whole())
    client = await connect((await gateway(builtin([capture.url]))).url)
    path, fields = ASKED[asked]
    answer = await client.ask(request(path, json.dumps({"model": MODEL, **fields}).encode()))
    assert answer.status == 200, answer.body
    assert "x-tailgate-changed" not in answer.headers
    (call,) = capture.calls
    sent = json.loads(call.body)
    assert {name: sent.get(name) for name in fields} == fields


@pytest.mark.parametrize("url", ["file:///etc/passwd", "/etc/passwd", "ftp://a.example/b.png"])
async def test_engine_is_never_asked_to_read_a_file_or_another_scheme(
    gateway: GatewayFactory, capture: Capture, connect: Connect, url: str
) -> None:
    client = await connect((await gateway(builtin([capture.url]))).url)
    body = {"model": MODEL, "messages": seen({"type": "image_url", "image_url": {"url": url}})}
    answer = await client.ask(request(body=json.dumps(body).encode()))
    assert (answer.status, capture.calls) == (400, [])
    assert answer.error["message"].endswith("or be a URL that begins with http:// or https://")
