"""The rig itself: a request goes through, whole and streamed, to either kind of replica."""

from __future__ import annotations

from .capture import Capture
from .conftest import Connect, EmulatorFactory, GatewayFactory
from .policies import rules
from .raw import chat


async def test_rig_request_reaches_the_capture(gateway: GatewayFactory, capture: Capture, connect: Connect) -> None:
    gw = await gateway(rules(capture.url))
    client = await connect(gw.url)
    whole = await client.ask(chat())
    assert whole.status == 200
    assert whole.json()["choices"][0]["message"]["content"] == "Hi"
    streamed = await client.ask(chat(stream=True))
    assert streamed.whole
    assert streamed.events[-1] == "[DONE]"
    assert [call.line for call in capture.calls] == ["POST /v1/chat/completions HTTP/1.1"] * 2
    assert len(capture.traffic) == 1


async def test_a_request_reaches_the_emulator(
    gateway: GatewayFactory, emulator: EmulatorFactory, connect: Connect
) -> None:
    replicas = await emulator(replicas=2)
    gw = await gateway(rules(*replicas.urls))
    client = await connect(gw.url)
    for stream in (False, True):
        response = await client.ask(chat(stream=stream, max_tokens=4, ignore_eos=True))
        assert (response.status, response.whole) == (200, True)
    assert sum(replica.received_total for replica in replicas.replicas) == 2
