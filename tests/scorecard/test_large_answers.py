"""Whole answers that are too large to hold: passed on as they arrive, with the requested model name."""

from __future__ import annotations

import json

import pytest

from .capture import Answer, Capture, whole
from .conftest import Connect, GatewayFactory
from .policies import MODEL, rules
from .raw import chat, request

NUMBERS = [[0.25] * 1000] * 400
"""Vectors that take two million bytes of JSON."""
EMBEDDED = {
    "object": "list",
    "model": MODEL,
    "data": [{"embedding": one, "model": "no name of ours"} for one in NUMBERS],
}
SAID = {"id": "c", "model": MODEL, "choices": [{"index": 0, "message": {"content": "x" * 2_000_000}}]}
ANSWERS = {
    "embeddings": (request("/v1/embeddings", b'{"model":"default","input":["hi"]}'), EMBEDDED),
    "chat": (chat(model="default"), SAID),
}


@pytest.mark.parametrize("kind", ANSWERS)
async def test_large_answer_gets_the_requested_model_name_and_no_other_change(
    gateway: GatewayFactory, capture: Capture, connect: Connect, kind: str
) -> None:
    asked, answer = ANSWERS[kind]
    capture.answer = lambda call: Answer(whole(json.dumps(answer).encode()))
    gw = await gateway(rules(capture.url))
    client = await connect(gw.url)
    for _ in range(2):
        response = await client.ask(asked)
        assert response.json() == {**answer, "model": "default"}
    (cell,) = gw.metrics.cells.values()
    assert sum(cell.ttft.counts) == 0, "what is held is no first token"
