"""A shadow pool gets copies, and never changes the client's answer."""

from __future__ import annotations

import json

import pytest

from .capture import STREAM, Answer, Call, Capture, Then
from .conftest import Connect, EmulatorFactory, GatewayFactory
from .raw import chat, head, request


def rules(main: str, shadow: str) -> str:
    return f"""\
apiVersion: tailgate/v1
models: {{emulated: {{pools: [main], mirror: {{to: shadow, share: 50%, upstream: next}}}}}}
pools:
  main: {{replicas: [{main}], slots: 4}}
  shadow: {{replicas: [{shadow}]}}
tiers: {{free: {{max_tokens: {{default: 4, limit: 8}}, limits: {{requests: 1000/min}}}}}}
"""


def fine(call: Call) -> Answer:
    return Answer(STREAM)


def reset(call: Call) -> Answer:
    return Answer(b"", Then.RESET)


@pytest.mark.parametrize("does", [fine, reset, None], ids=["answers", "resets", "hangs"])
async def test_clients_are_served_whatever_the_mirror_pool_does(
    gateway: GatewayFactory, emulator: EmulatorFactory, capture: Capture, connect: Connect, does: object
) -> None:
    capture.answer = does or (lambda call: None)  # type: ignore[assignment]
    capture.models = ["next"]
    gw = await gateway(rules((await emulator()).urls[0], capture.url))
    client = await connect(gw.url)
    for _ in range(8):
        answer = await client.ask(chat(stream=True))
        assert answer.status == 200
        assert answer.headers["x-tailgate-pool"] == "main"
        assert answer.body.endswith(b"data: [DONE]\n\n")
    await capture.until(lambda: len(capture.calls) == 4)
    for call in capture.calls:
        body = json.loads(call.body)
        assert (call.path, body["model"], body["stream"]) == ("/v1/chat/completions", "next", True)
        assert "authorization" not in dict(call.headers)
    admin = await connect(gw.admin_url)
    page = (await admin.ask(head("/metrics", method="GET"))).body.decode()
    assert 'tailgate_offered_requests_total{tier="free"} 8.0' in page
    assert 'pool="shadow",reason=""' not in page


async def test_answer_to_a_mirrored_request_is_not_stored(
    gateway: GatewayFactory, emulator: EmulatorFactory, capture: Capture, connect: Connect
) -> None:
    capture.answer = fine
    capture.models = ["next"]
    text = rules((main := await emulator()).urls[0], capture.url).replace("50%", "100%")
    gw = await gateway(text.replace("free: {", "free: {caps: {stored_responses: true}, "))
    client = await connect(gw.url)
    for stores in ({}, {"store": True}, {"store": False}):
        answer = await client.ask(
            request("/v1/responses", json.dumps({"model": "emulated", "input": "hi", **stores}).encode())
        )
        assert answer.status == 200
    await capture.until(lambda: len(capture.calls) == 3)
    assert [json.loads(call.body)["store"] for call in capture.calls] == [False] * 3
    sent = [json.loads(received.body) for received in main.replicas[0].requests]
    assert [body.get("store") for body in sent] == [None, True, False]
    copied = json.loads(capture.calls[0].body)
    assert {**copied, "model": "emulated"} == {**sent[0], "store": False}
