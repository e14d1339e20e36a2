"""If a replica refuses as busy or shutting down, another one answers, unseen by the client."""

from __future__ import annotations

from time import monotonic

import pytest

from gateway.core.snapshot import ReplicaState

from .capture import STREAM_HEAD, Answer, Capture, chunk, whole
from .conftest import Connect, GatewayFactory
from .policies import rules
from .raw import chat

BUSY = b'{"error":{"message":"The server is currently busy.","type":"Service Unavailable","code":503}}'
SHUT_DOWN = b'{"error":{"message":"cannot schedule new futures after shutdown","type":"Internal","code":500}}'
REFUSALS = {
    "503": whole(BUSY, "503 Service Unavailable"),
    "429": whole(BUSY, "429 Too Many Requests"),
    "500, shut down": whole(SHUT_DOWN, "500 Internal Server Error"),
}


IN_A_STREAM = STREAM_HEAD + chunk(b"data: " + BUSY + b"\n\n") + chunk(b"data: [DONE]\n\n") + chunk(b"")


@pytest.mark.parametrize(
    ("stream", "refusal"),
    [*((stream, refusal) for stream in (False, True) for refusal in REFUSALS.values()), (True, IN_A_STREAM)],
)
async def test_request_refused_by_a_busy_replica_is_served_by_another(
    gateway: GatewayFactory, capture: Capture, connect: Connect, stream: bool, refusal: bytes
) -> None:
    async with Capture() as other:
        gw = await gateway(rules(capture.url, other.url, pool="router: round-robin, health: {failures: 1000}"))
        client = await connect(gw.url)
        capture.answer = lambda call: Answer(refusal)
        for _ in range(4):
            assert (await client.ask(chat(stream=stream))).status == 200
        assert capture.calls
        assert len(other.calls) >= 2


async def test_busy_only_replica_is_a_503_with_its_retry_after(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url, pool="health: {failures: 1000}"))
    client = await connect(gw.url)
    capture.answer = lambda call: Answer(whole(BUSY, "503 Service Unavailable", "retry-after: 7"))
    answer = await client.ask(chat())
    assert (answer.status, answer.error["code"]) == (503, "upstream_busy")
    assert 7 <= int(answer.headers["retry-after"]) <= 9


async def test_replica_that_shuts_down_soon_gets_no_requests(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    async with Capture() as other:
        health = "health: {failures: 2, interval: 100s, open: 100s}"
        gw = await gateway(rules(capture.url, other.url, pool=f"router: round-robin, {health}"))
        client = await connect(gw.url)
        capture.answer = lambda call: Answer(REFUSALS["500, shut down"])
        for _ in range(10):
            assert (await client.ask(chat())).status == 200
        assert len(capture.calls) == 2
        (pool,) = gw.controller.snapshot(monotonic()).pools
        assert [replica.state for replica in pool.replicas] == [ReplicaState.DOWN, ReplicaState.UP]
