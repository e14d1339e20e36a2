"""If its model has no room, a request is answered by the fallback of its tier, and the answer says so."""

from __future__ import annotations

import asyncio
import json

import pytest

from .capture import Capture
from .conftest import Connect, EmulatorFactory, GatewayFactory
from .raw import chat, head


def rules(large: str, small: str) -> str:
    return f"""\
apiVersion: tailgate/v1
models:
  emulated: {{pools: [large]}}
  small: {{pools: [small], upstream: tiny}}
pools:
  large: {{replicas: [{large}], slots: 1, queue: {{limit: 0}}}}
  small: {{replicas: [{small}], slots: 1, queue: {{limit: 0}}}}
tiers: {{free: {{max_tokens: {{default: 4, limit: 8}}, fallback: small}}}}
"""


@pytest.mark.parametrize("stream", [False, True])
async def test_fallback_gets_its_own_model_name_and_the_client_the_requested_one(
    gateway: GatewayFactory, emulator: EmulatorFactory, capture: Capture, connect: Connect, stream: bool
) -> None:
    """The large model is busy with a first request; a second one goes to the small model, a third is refused."""
    capture.answer = lambda call: None
    small = await emulator(model="tiny")
    gw = await gateway(rules(capture.url, small.urls[0]))
    busy, client = await connect(gw.url), await connect(gw.url)
    busy.send(chat())
    await capture.until(lambda: len(capture.calls) == 1)
    client.send(chat(stream=stream))
    answer = await client.response()
    assert answer.status == 200
    assert answer.headers["x-tailgate-model"] == "small"
    assert answer.headers["x-tailgate-pool"] == "small"
    named = [event["model"] for event in answer.events[:-1]] if stream else [answer.json()["model"]]
    assert set(named) == {"emulated"}
    admin = await connect(gw.admin_url)
    admin.send(head("/metrics", method="GET"))
    page = (await admin.response()).body.decode()
    assert 'tailgate_fallbacks_total{fallback="small",model="emulated",outcome="ok",tier="free"} 1.0' in page


async def test_request_that_model_and_fallback_refuse_is_refused(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    capture.answer = lambda call: None
    async with Capture() as other:
        other.models, other.answer = ["tiny"], lambda call: None
        gw = await gateway(rules(capture.url, other.url))
        first, second, third = [await connect(gw.url) for _ in range(3)]
        first.send(chat())
        await capture.until(lambda: len(capture.calls) == 1)
        second.send(chat())
        await other.until(lambda: len(other.calls) == 1)
        assert json.loads(other.calls[0].body)["model"] == "tiny"
        third.send(chat())
        answer = await asyncio.wait_for(third.response(), 10)
        assert (answer.status, answer.reason) == (429, "queue-full")
        assert "x-tailgate-model" not in answer.headers
