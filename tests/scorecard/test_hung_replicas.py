"""A replica that hangs and fails its health checks loses the requests that it has not begun to answer."""

from __future__ import annotations

import pytest

from .capture import Capture, never
from .conftest import Connect, GatewayFactory
from .policies import rules
from .raw import chat

CHECKED = "router: round-robin, health: {failures: 2, interval: 20ms, open: 100s}"
FOR_EVER = "timeouts: {ttft: 600s, idle: 600s, total: 600s}"


@pytest.mark.parametrize("stream", [False, True])
async def test_request_at_a_hung_replica_is_served_by_another(
    gateway: GatewayFactory, capture: Capture, connect: Connect, stream: bool
) -> None:
    async with Capture() as other:
        gw = await gateway(rules(capture.url, other.url, pool=CHECKED, tier=FOR_EVER))
        client = await connect(gw.url)
        capture.answer = never
        client.send(chat(stream=stream))
        await capture.until(lambda: capture.calls)
        capture.well = False
        assert (await client.response()).status == 200
        await capture.until(lambda: capture.calls[0].aborted)


async def test_request_at_a_hung_only_replica_is_a_503(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url, pool=CHECKED, tier=FOR_EVER))
    client = await connect(gw.url)
    capture.answer = never
    client.send(chat())
    await capture.until(lambda: capture.calls)
    capture.well = False
    answer = await client.response()
    assert (answer.status, answer.error["code"]) == (503, "upstream_unreachable")
    assert int(answer.headers["retry-after"]) >= 1


async def test_request_stays_at_a_slow_replica_whose_checks_succeed(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url, pool=CHECKED, tier=FOR_EVER))
    client = await connect(gw.url)
    capture.answer = never
    client.send(chat())
    await capture.until(lambda: capture.calls)
    checked = len(capture.probes)
    await capture.until(lambda: len(capture.probes) >= checked + 5)
    assert not capture.calls[0].aborted
