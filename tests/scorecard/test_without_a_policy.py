"""`tailgate serve --replica URL`: what works with the engine alone works through the gateway."""

from __future__ import annotations

import json

import pytest

from gateway.policy.builtin import builtin

from .capture import Capture
from .conftest import Connect, GatewayFactory
from .raw import chat


@pytest.mark.parametrize("stream", [False, True])
async def test_who_asks_for_no_length_gets_the_engines(
    gateway: GatewayFactory, capture: Capture, connect: Connect, stream: bool
) -> None:
    """An engine whose context nobody knows might refuse a default of ours, and serves the same request without."""
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
