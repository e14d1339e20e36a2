"""Row 2: a client that leaves, in any way and any phase of its request, frees the replica within 1 s.

Every phase is one that would last for ever: the replica answers only as far as the test says, and every timeout of
the gateway is longer than the test.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import cast

import pytest

from gateway.app import Gateway

from .capture import STREAM_HEAD, Call, Capture, by_default, chunk, never, token
from .conftest import Connect, GatewayFactory
from .policies import rules
from .raw import Client, chat
from .state import held, queued
from .waiting import until

LIMIT_S = 1.0

LEAVE: dict[str, Callable[[Client], object]] = {
    "fin": Client.fin,
    "rst": Client.rst,
    "half-close": Client.half_close,
    "pipelined": lambda client: client.send(chat(content="pipelined")),
    "pipelined-then-fin": lambda client: (client.send(chat(content="pipelined")), client.fin()),
    "pipelined-then-half-close": lambda client: (client.send(chat(content="pipelined")), client.half_close()),
}
both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
ROLE = chunk(b'data: {"id":"c-1","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n')
WHOLE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9000000\r\n\r\n"


def start(stream: bool) -> bytes:
    """The beginning of an answer, without a token."""
    return STREAM_HEAD + ROLE if stream else WHOLE_HEAD + b'{"id":"c-1",'


async def sent_by_each(gw: Gateway, capture: Capture, connect: Connect, stream: bool) -> dict[str, tuple[Client, Call]]:
    """A client for each way to leave, and its request at the replica."""
    clients = {}
    for way in LEAVE:
        clients[way] = await connect(gw.url)
        clients[way].send(chat(stream=stream, content=way))
    await capture.until(lambda: len(capture.calls) == len(LEAVE))
    calls = {way: next(c for c in capture.calls if f'"content":"{way}"'.encode() in c.body) for way in LEAVE}
    return {way: (clients[way], calls[way]) for way in LEAVE}


async def aborted_after_s(capture: Capture, call: Call) -> float:
    """Seconds until the gateway closes the connection; inf if it does not."""
    try:
        return await capture.until(lambda: call.aborted, timeout_s=5 * LIMIT_S)
    except TimeoutError:
        return math.inf


async def leave_and_see(gw: Gateway, capture: Capture, requests: dict[str, tuple[Client, Call]]) -> None:
    for way, (client, call) in requests.items():
        assert not call.aborted, f"{way}: too early"
        LEAVE[way](client)
        assert await aborted_after_s(capture, call) <= LIMIT_S, way
    await until(lambda: not held(gw), LIMIT_S, seen=lambda: held(gw))
    assert len(capture.calls) == len(requests), "what was pipelined is not served"


@both
async def test_abort_during_prefill_reaches_the_replica(
    gateway: GatewayFactory, capture: Capture, connect: Connect, stream: bool
) -> None:
    capture.answer = never
    gw = await gateway(rules(capture.url))
    requests = await sent_by_each(gw, capture, connect, stream)
    await leave_and_see(gw, capture, requests)


@both
async def test_abort_before_the_first_visible_byte_reaches_the_replica(
    gateway: GatewayFactory, capture: Capture, connect: Connect, stream: bool
) -> None:
    capture.answer = lambda call: call.send(start(stream))
    gw = await gateway(rules(capture.url))
    requests = await sent_by_each(gw, capture, connect, stream)
    await leave_and_see(gw, capture, requests)


@both
async def test_abort_during_the_answer_reaches_the_replica(
    gateway: GatewayFactory, capture: Capture, connect: Connect, stream: bool
) -> None:
    # A whole answer is passed on early only if it is longer than 1 MB.
    more = token("shown") if stream else b"x" * 2_000_000
    capture.answer = lambda call: call.send(start(stream) + more)
    gw = await gateway(rules(capture.url))
    requests = await sent_by_each(gw, capture, connect, stream)
    for client, _ in requests.values():
        assert (await client.head())[0] == 200
        while b"shown" not in (shown := await client.chunk()) and not shown.endswith(b"x"):
            pass
    await leave_and_see(gw, capture, requests)


@both
async def test_abort_of_a_client_that_does_not_read_reaches_the_replica(
    gateway: GatewayFactory, capture: Capture, connect: Connect, stream: bool
) -> None:
    """The client does not read: the gateway's buffers are full, and it stops reading the replica's answer."""
    gw = await gateway(rules(capture.url))
    piece = token("x" * 4000) if stream else b"x" * 4000

    async def pour(call: Call) -> None:
        """Send until bytes stay in this side's buffer, because the gateway has stopped reading."""
        transport = cast(asyncio.Transport, call.connection.transport)
        call.send(start(stream) + piece * 400)
        while not (transport.is_closing() or transport.get_write_buffer_size() > 4_000_000):
            call.send(piece * 50)
            await asyncio.sleep(0)

    for way, leave in LEAVE.items():
        pouring: list[asyncio.Task[None]] = []
        capture.answer = lambda call, pouring=pouring: pouring.append(asyncio.create_task(pour(call)))
        capture.calls.clear()
        client = await connect(gw.url, receive_buffer=4096)
        client.send(chat(stream=stream))
        await capture.until(lambda: capture.calls)
        async with asyncio.timeout(10):
            await pouring[0]
        (call,) = capture.calls
        assert not call.aborted
        leave(client)
        assert await aborted_after_s(capture, call) <= LIMIT_S, way
        await client.close()
    await until(lambda: not held(gw), seen=lambda: held(gw))


@both
async def test_abort_in_the_queue_leaves_the_queue(
    gateway: GatewayFactory, capture: Capture, connect: Connect, stream: bool
) -> None:
    capture.answer = never
    gw = await gateway(rules(capture.url, slots=1, tier="timeouts: {queue: 60s}"))
    occupant = await connect(gw.url)
    occupant.send(chat(content="occupant"))
    await capture.until(lambda: capture.calls)
    for way, leave in LEAVE.items():
        client = await connect(gw.url)
        client.send(chat(stream=stream, content=way))
        await until(lambda: queued(gw) == 1)
        leave(client)
        assert await until(lambda: queued(gw) == 0) <= LIMIT_S, way
    # The slot becomes free, and no client that left is served in it.
    capture.answer = by_default
    capture.calls[0].send(by_default(capture.calls[0]).data)
    assert (await occupant.response()).status == 200
    assert (await occupant.ask(chat(content="the next"))).status == 200
    assert [b"occupant" in call.body for call in capture.calls] == [True, False]
    occupant.fin()
    await until(lambda: not held(gw), LIMIT_S, seen=lambda: held(gw))


@both
async def test_abort_during_the_connect_closes_the_connection(
    gateway: GatewayFactory, connect: Connect, unanswering: str, stream: bool
) -> None:
    gw = await gateway(rules(unanswering, pool="connect_timeout: 60s, health: {interval: 60s}"))
    for way, leave in LEAVE.items():
        client = await connect(gw.url)
        client.send(chat(stream=stream))
        await until(lambda: gw.api.upstreams.calls == 1, seen=lambda: held(gw))
        leave(client)
        assert await until(lambda: not held(gw), seen=lambda: held(gw)) <= LIMIT_S, way


@both
async def test_abort_stops_the_generation_of_the_engine(
    gateway: GatewayFactory, emulator: Callable[..., object], connect: Connect, stream: bool
) -> None:
    fleet = await emulator(profile="default", time_scale=1.0)
    (replica,) = fleet.replicas
    gw = await gateway(rules(*fleet.urls))
    for way, leave in LEAVE.items():
        client = await connect(gw.url)
        client.send(chat(stream=stream, max_tokens=4000, min_tokens=4000))
        await replica.until(lambda r: r.running == 1)
        if stream:
            await client.head()
        leave(client)
        assert await until(lambda: not (replica.running or replica.in_flight)) <= LIMIT_S, way
    assert replica.finished["abort"] == len(LEAVE)


async def test_client_that_sends_only_line_ends_does_not_count_as_gone(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    capture.answer = never
    gw = await gateway(rules(capture.url))
    client = await connect(gw.url)
    client.send(chat())
    await capture.until(lambda: capture.calls)
    client.send(b"\r\n\r\n")
    # A later request on another connection is handled later.
    other = await connect(gw.url)
    assert (await other.ask(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")).status == 200
    (call,) = capture.calls
    assert not call.aborted
    call.send(by_default(call).data)
    assert (await client.response()).status == 200
