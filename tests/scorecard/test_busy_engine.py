"""Tokens prove life: late checks do not end a stream, and pings do not keep a stopped one alive."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from gateway.core.results import Outcome, Reason
from gateway.core.snapshot import ReplicaState
from gateway.fleet.fault import ReadFault
from gateway.fleet.target import Reading
from gateway.wire.errors.reasons import ROWS

from .capture import STREAM_HEAD, Call, Capture, chunk, never, token
from .conftest import Connect, GatewayFactory
from .policies import rules
from .raw import chat
from .waiting import until

OFTEN = "health: {interval: 50ms, timeout: 300ms, failures: 2, open: 1h}"


async def test_streaming_replica_stays_up_although_its_health_checks_are_late(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url, pool=OFTEN))
    client = await connect(gw.url)
    capture.answer = never
    client.send(chat(stream=True))
    await capture.until(lambda: capture.calls)
    capture.calls[0].send(STREAM_HEAD)
    streaming = asyncio.create_task(_stream(capture.calls[0]))
    await until(lambda: gw.controller.snapshot(0.0).pools[0].replicas[0].held_tokens > 20)
    capture.is_late = True
    await until(lambda: gw.fleet.reports()[0].failures.get((Reading.HEALTH, ReadFault.TIMEOUT), 0) >= 4)
    (replica,) = gw.controller.snapshot(0.0).pools[0].replicas
    assert (replica.state, replica.failures, gw.handler.ready) == (ReplicaState.UP, 0, True)
    streaming.cancel()
    with suppress(asyncio.CancelledError):
        await streaming
    await until(lambda: not gw.handler.ready)


async def _stream(call: Call) -> None:
    """More frequent than progress calls, and frequent enough for each check."""
    while True:
        call.send(token("Hi"))
        await asyncio.sleep(0.005)


async def test_stream_of_pings_alone_ends_at_the_idle_timeout(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url, slots=1, tier="timeouts: {idle: 300ms, total: 1h}"))
    client = await connect(gw.url)
    capture.answer = never
    client.send(chat(stream=True))
    await capture.until(lambda: capture.calls)
    call = capture.calls[0]
    call.send(STREAM_HEAD + token("Hi"))
    pinging = asyncio.create_task(_ping(call))
    response = await client.response()
    pinging.cancel()
    assert response.events[-1]["error"]["message"] == ROWS[Reason.IDLE_TIMEOUT].message
    await capture.until(lambda: call.aborted)
    assert gw.metrics.lanes["free", "main"].requests["emulated", Outcome.TIMEOUT, Reason.IDLE_TIMEOUT] == [1]


async def _ping(call: Call) -> None:
    empty = (b"{}", b'{"content":""}', b'{"content":null}', b'{"role":"assistant"}', b'{"tool_calls":[]}')
    pings = [b": ping\n\n", b"event: ping\ndata: {}\n\n"] + [
        b'data: {"choices":[{"index":0,"delta":%b,"finish_reason":null}]}\n\n' % delta for delta in empty
    ]
    while True:
        for ping in pings:
            call.send(chunk(ping))
            await asyncio.sleep(0.01)
