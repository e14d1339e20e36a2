"""Row 7: sockets that send nothing, or never finish, are closed by the deadline, and disturb no other client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic

from gateway.app import Gateway

from . import raw
from .capture import Capture
from .conftest import Connect, GatewayFactory
from .policies import rules
from .raw import CHAT, Client, chat, chat_body, head, request
from .sockets import room_for
from .waiting import SOAK, until

ATTACKERS = 1_000 if SOAK else 300
"""Number of attackers of each kind."""
RECEIVE_TIMEOUT_S = 1.0
SHORT_S = 0.3
GRACE_S = 5.0
"""How late a deadline may be on a busy machine; without deadlines the connections would stay for ever."""

HALF_HEAD = head(CHAT, "Content-Length: 100000")[:-2]
HALF_BODY = head(CHAT, "Content-Length: 100000") + b'{"model": "emu'
HALF_CHUNK = head(CHAT, "Transfer-Encoding: chunked") + b'400\r\n{"model": "emu'
KINDS: dict[str, bytes] = {"idle": b"", "head": HALF_HEAD, "body": HALF_BODY, "chunk": HALF_CHUNK}


@asynccontextmanager
async def honest(gw: Gateway, users: int = 4) -> AsyncIterator[Callable[[], int]]:
    """Users whose every request must succeed, on old connections and on new ones, for as long as the block runs."""
    done = 0
    over = asyncio.Event()

    async def use(stream: bool) -> None:
        nonlocal done
        kept = await raw.connect(gw.url)
        while not over.is_set():
            fresh = await raw.connect(gw.url)
            for client in (kept, fresh):
                response = await client.ask(chat(stream=stream))
                assert (response.status, response.whole) == (200, True), response
            done += 1
            await fresh.close()
        await kept.close()

    async with asyncio.TaskGroup() as group:
        for number in range(users):
            group.create_task(use(stream=bool(number % 2)))
        yield lambda: done
        over.set()


async def test_thousand_slow_sockets_leave_the_gateway_serving(gateway: GatewayFactory, capture: Capture) -> None:
    gw = await gateway(rules(capture.url), receive_timeout_s=RECEIVE_TIMEOUT_S)
    ends: dict[str, list[bytes]] = {kind: [] for kind in KINDS}
    times: list[float] = []

    async def attack(kind: str, first: bytes) -> None:
        start = monotonic()
        client = await raw.connect(gw.url)
        client.timeout_s = 30.0
        client.send(first)
        ends[kind].append(await client.rest())
        times.append(monotonic() - start)
        await client.close()

    with room_for(2 * len(KINDS) * ATTACKERS):
        async with honest(gw) as served:
            attackers = [attack(kind, first) for kind, first in KINDS.items() for _ in range(ATTACKERS)]
            await asyncio.gather(*attackers)
            before = served()
            await until(lambda: served() > before + 20)
        await until(lambda: gw.limits.connections == 0)
    assert before > 0
    assert max(times) < RECEIVE_TIMEOUT_S + GRACE_S
    # None was closed early, and clients that had begun a request got the reason.
    assert min(times) > RECEIVE_TIMEOUT_S * 0.9
    assert ends["idle"] == [b""] * ATTACKERS
    for kind in ("head", "body", "chunk"):
        assert all(
            end.startswith(b"HTTP/1.1 408 ") and b"x-tailgate-reason: receive-timeout" in end for end in ends[kind]
        )


async def test_bytes_sent_one_by_one_do_not_extend_the_receive_timeout(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    """Single bytes now and then do not extend the deadline."""
    gw = await gateway(rules(capture.url), receive_timeout_s=SHORT_S)

    async def drip(client: Client, byte: bytes) -> None:
        while True:
            client.send(byte)
            await asyncio.sleep(0.02)

    async def attack(first: bytes, byte: bytes) -> bytes:
        client = await connect(gw.url)
        client.timeout_s = SHORT_S + GRACE_S
        client.send(first)
        dripping = asyncio.create_task(drip(client, byte))
        try:
            return await client.rest()
        finally:
            dripping.cancel()
            await client.close()

    *dripped, line_ends = await asyncio.gather(
        attack(HALF_HEAD + b"X: ", b"a"),
        attack(HALF_HEAD, b"X: y\r\n"),
        attack(HALF_BODY, b" "),
        attack(HALF_CHUNK, b" "),
        attack(head(CHAT, "Transfer-Encoding: chunked"), b"1\r\n \r\n"),
        attack(head(CHAT, "Transfer-Encoding: chunked") + b"1;", b"a"),
        attack(head(CHAT, "Transfer-Encoding: chunked") + b"0\r\n", b"X: y\r\n"),
        attack(b"", b"\r\n"),
    )
    assert all(end.startswith(b"HTTP/1.1 408 ") for end in dripped)
    assert line_ends == b"" or line_ends.startswith(b"HTTP/1.1 408 ")
    assert not capture.calls
    await until(lambda: gw.limits.connections == 0)


async def test_kept_connections_are_closed_when_idle(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url), receive_timeout_s=60.0, keep_alive_s=SHORT_S)
    clients = [await connect(gw.url) for _ in range(50)]
    for client in clients:
        assert (await client.ask(chat())).status == 200
        client.timeout_s = SHORT_S + GRACE_S
    assert set(await asyncio.gather(*(client.rest() for client in clients))) == {b""}
    await until(lambda: gw.limits.connections == 0)


async def test_partial_second_request_has_the_same_receive_deadline(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url), receive_timeout_s=SHORT_S)
    client = await connect(gw.url)
    assert (await client.ask(chat())).status == 200
    response = await client.ask(HALF_BODY)
    assert (response.status, response.reason) == (408, "receive-timeout")
    assert response.headers["connection"] == "close"
    assert await client.rest() == b""


async def test_slow_answer_does_not_hit_the_receive_deadline(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    """The deadlines for clients do not end a request at a slow replica."""
    gw = await gateway(rules(capture.url), receive_timeout_s=SHORT_S, keep_alive_s=SHORT_S)
    capture.answer = lambda call: None
    client = await connect(gw.url)
    client.send(chat())
    await capture.until(lambda: capture.calls)
    # Another connection, opened later, was closed as idle: its deadline was after the first one's.
    idle = await connect(gw.url)
    assert await idle.rest() == b""
    capture.calls[0].send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
    assert (await client.response()).status == 200


async def test_slow_clients_at_the_connection_limit_are_closed_at_the_deadline(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    """Slow clients may take all connections of the limit, but not beyond the deadline."""
    gw = await gateway(rules(capture.url), receive_timeout_s=SHORT_S, max_connections=20)
    for number in range(20):
        (await connect(gw.url)).send(HALF_HEAD if number % 2 else b"")
    await until(lambda: gw.limits.connections == 20)
    refused = await connect(gw.url)
    refused.send(chat())
    assert await refused.rest() == b""

    async def served() -> bool:
        client: Client = await raw.connect(gw.url)
        client.send(request(CHAT, chat_body(), "Connection: close"))
        answer = await client.rest()
        await client.close()
        return answer.startswith(b"HTTP/1.1 200 ")

    start = monotonic()
    while not await served():
        assert monotonic() - start < SHORT_S + GRACE_S
