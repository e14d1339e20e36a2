"""Prompts beyond the context: over real sockets, the first is refused by the engine, the next by the gateway."""

from __future__ import annotations

import json

from .capture import Answer, Call, Capture, completion, whole
from .conftest import Connect, GatewayFactory
from .policies import rules
from .raw import MODEL, request

TEXT = "The input (6000 tokens) is longer than the model's context length (4096 tokens)."
REFUSAL = whole(json.dumps({"object": "error", "message": TEXT, "code": 400}).encode(), "400 Bad Request")


def asking(tokens: int, **fields: object) -> bytes:
    """A completion of a prompt of token ids, whose number the gateway knows."""
    return request("/v1/completions", json.dumps({"model": MODEL, "prompt": [7] * tokens} | fields).encode())


def engine(call: Call) -> Answer:
    return Answer(REFUSAL if len(json.loads(call.body)["prompt"]) > 4096 else whole(completion()))


async def test_context_is_learned_from_an_engines_refusal_and_the_next_long_prompt_never_leaves(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    capture.answer = engine
    gw = await gateway(rules(capture.url))
    client = await connect(gw.url)
    first, second = await client.ask(asking(6000)), await client.ask(asking(6000))
    assert (first.status, first.error["message"]) == (400, TEXT)
    assert len(capture.calls) == 1
    assert (second.status, second.headers["x-tailgate-reason"]) == (400, "context-length")
    assert second.error["param"] == "prompt"
    assert second.error["code"] == "context_length_exceeded"
    assert "4096 tokens" in second.error["message"]
    assert "6000 tokens" in second.error["message"]
    assert (await client.ask(asking(4000))).status == 200
    assert len(capture.calls) == 2
    await client.ask(asking(6000, truncate_prompt_tokens=100))
    assert len(capture.calls) == 3, "the engine is asked to cut it"
