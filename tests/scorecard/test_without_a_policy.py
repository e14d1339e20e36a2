"""`tailgate serve --replica URL`: everything that works with the engine alone works through the gateway."""

from __future__ import annotations

import asyncio
import json

import pytest

from gateway.policy.builtin import builtin

from .capture import STREAM, Capture
from .conftest import Connect, GatewayFactory
from .raw import chat


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
