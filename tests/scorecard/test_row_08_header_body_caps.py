"""Row 8: heads and bodies beyond the caps are refused while they arrive, and cost no memory.

The client is in the same process, so the measured memory includes it; it sends one small buffer again and again.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import sys
from pathlib import Path

import pytest

from gateway.policy import PolicyErrors, load_text
from gateway.proxy.callers import callers_of

from .capture import Capture
from .conftest import Connect, GatewayFactory
from .policies import rules
from .raw import CHAT, Client, Response, chat_body, head, request
from .waiting import SOAK, until

MB = 2**20
MAX_RSS_GROWTH = 20 * MB
HEAD_MB = 60 if SOAK else 30
BODY_MB = 1024 if SOAK else 40
CAPS = {"max_header_bytes": 65536, "max_body_bytes": 4 * MB}
PIECE = b"x" * 65536


def rss() -> int:
    """Resident bytes of this process."""
    if sys.platform != "linux":
        pytest.skip("memory is read from /proc")
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def flood(client: Client, first: bytes, piece: bytes, megabytes: int) -> tuple[Response, int]:
    """Send all of it, unless cut off. Returns the answer, and the growth of memory."""
    before, most = rss(), 0
    client.send(first)
    for number in range(megabytes * MB // len(piece)):
        if client.writer.transport.is_closing():
            break
        client.send(piece)
        with contextlib.suppress(ConnectionError):
            await client.drain()
        if not number % 16:
            # The other side needs a turn, and may now hold the most.
            await asyncio.sleep(0)
            most = max(most, rss() - before)
    return await client.response(), most


GET = b"GET /health HTTP/1.1\r\nHost: a\r\n"
HEADS = {
    "one long value": (GET + b"X: ", PIECE),
    "one long value of a header that is read": (GET + b"Authorization: Bearer ", PIECE),
    "one long name": (GET, PIECE),
    "one long path": (b"GET /", PIECE),
    "one long query": (b"GET /health?", PIECE),
    "many headers": (GET, b"X: y\r\n" * 8192),
    "many names": (GET, b"".join(b"X%d: y\r\n" % number for number in range(8192))),
    "one that is read, many times": (GET, b"x-api-key: y\r\n" * 4096),
    "spaces": (GET + b"X:", b" " * 65536),
    "behind line ends": (b"\r\n\r\n" + GET, b"X: y\r\n" * 8192),
}


async def test_endless_head_is_refused_with_431(gateway: GatewayFactory, capture: Capture, connect: Connect) -> None:
    gw = await gateway(rules(capture.url), **CAPS)
    for kind, (first, piece) in HEADS.items():
        client = await connect(gw.url)
        response, grown = await flood(client, first, piece, HEAD_MB)
        assert (response.status, response.reason) == (431, "headers-too-large"), kind
        assert response.headers["connection"] == "close"
        assert grown < MAX_RSS_GROWTH, kind
        await client.close()
    await until(lambda: gw.limits.connections == 0)


async def test_endless_method_is_refused(gateway: GatewayFactory, capture: Capture, connect: Connect) -> None:
    gw = await gateway(rules(capture.url), **CAPS)
    client = await connect(gw.url)
    response, _ = await flood(client, b"", b"G" * 65536, 1)
    assert response.status == 400


CHUNKED = head(CHAT, "Transfer-Encoding: chunked")
BODIES = {
    "a length": (head(CHAT, f"Content-Length: {BODY_MB * MB}"), PIECE, 413),
    "a length beyond all bounds": (head(CHAT, f"Content-Length: {2**63 - 1}"), PIECE, 413),
    "chunks": (CHUNKED, b"10000\r\n%b\r\n" % PIECE, 413),
    "one chunk": (CHUNKED + b"7fffffffffffffff\r\n", PIECE, 413),
    "chunks of one byte": (CHUNKED, b"1\r\nx\r\n" * 8192, 413),
    "chunks of two bytes": (CHUNKED, b"2\r\nxy\r\n" * 8192, 413),
    "a chunk extension": (CHUNKED + b"1;", PIECE, 431),
    "chunk extensions": (CHUNKED, b"1;%b\r\nx\r\n" % PIECE[:1000] * 64, 431),
    "a chunk size": (CHUNKED, b"0" * 65536, 431),
    "a trailer": (CHUNKED + b"0\r\nX: ", PIECE, 431),
    "a trailer's name": (CHUNKED + b"0\r\n", PIECE, 431),
    "trailers": (CHUNKED + b"0\r\n", b"X: y\r\n" * 8192, 431),
    "a body for a path that is not there": (
        head("/nowhere", "Transfer-Encoding: chunked"),
        b"10000\r\n%b\r\n" % PIECE,
        404,
    ),
}


async def test_endless_body_is_refused(gateway: GatewayFactory, capture: Capture, connect: Connect) -> None:
    gw = await gateway(rules(capture.url), **CAPS)
    for kind, (first, piece, status) in BODIES.items():
        client = await connect(gw.url)
        response, grown = await flood(client, first, piece, BODY_MB)
        assert response.status == status, (kind, response)
        assert response.headers["connection"] == "close"
        assert grown < MAX_RSS_GROWTH, kind
        await client.close()
    assert not capture.calls
    await until(lambda: gw.limits.connections == 0)


@pytest.mark.parametrize("length", [True, False], ids=["length", "chunks"])
async def test_client_that_stops_sending_its_large_body_reads_the_answer(
    gateway: GatewayFactory, capture: Capture, connect: Connect, length: bool
) -> None:
    """A client that reads while it sends gets the answer in the middle, then the end."""
    gw = await gateway(rules(capture.url), **CAPS)
    client = await connect(gw.url)
    client.send(head(CHAT, f"Content-Length: {BODY_MB * MB}") if length else CHUNKED + b"7fffffff\r\n")
    answer = asyncio.create_task(client.response())
    while not answer.done():
        client.send(PIECE)
        await client.drain()
        await asyncio.sleep(0)
    assert answer.result().status == 413
    assert answer.result().reason == "body-too-large"
    assert await client.rest() == b""
    assert not client.was_reset


async def test_a_body_over_the_limit_is_refused_before_it_comes(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url), max_body_bytes=4096)
    client = await connect(gw.url)
    response = await client.ask(head(CHAT, "Content-Length: 4097"))
    assert (response.status, response.reason) == (413, "body-too-large")
    assert "4096" in response.error["message"]


async def test_body_limit_comes_from_the_policy_and_follows_a_reload(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    policy = rules(capture.url)
    wide = load_text(policy + "listen: {max_body: 8KiB}\n", "p.yaml")
    gw = await gateway(policy, max_body_bytes=4096, max_receiving_bytes=2 * MB)
    client = await connect(gw.url)
    body = chat_body(content="x" * 5000)
    response = await client.ask(request(CHAT, body))
    assert (response.status, response.reason) == (413, "body-too-large")
    assert "4096 bytes (`listen.max_body` of the policy)" in response.error["message"]
    gw.reloads.configure(wide)
    client = await connect(gw.url)
    assert (await client.ask(request(CHAT, body))).status == 200
    assert (await client.ask(head(CHAT, "Content-Length: 8193"))).status == 413
    with pytest.raises(PolicyErrors, match=r"listen\.max_body is 3145728 bytes.*TAILGATE_MAX_RECEIVING_BYTES"):
        gw.reloads.configure(load_text(policy + "listen: {max_body: 3MiB}\n", "p.yaml"))
    client = await connect(gw.url)
    assert (await client.ask(request(CHAT, body))).status == 200
    gw.reloads.configure(load_text(policy, "p.yaml"))
    client = await connect(gw.url)
    assert (await client.ask(request(CHAT, body))).status == 413


async def test_relay_takes_one_body_of_the_policys_size_though_its_part_of_the_bound_is_less(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    policy = rules(capture.url)
    gw = await gateway(policy, max_body_bytes=4096, max_receiving_bytes=4096)  # the settings of a relay among many
    wide = load_text(policy + "listen: {max_body: 1MiB}\n", "p.yaml")
    gw.api.configure(wide, callers_of(wide))
    client = await connect(gw.url)
    assert (await client.ask(request(CHAT, chat_body(content="x" * 100_000)))).status == 200


async def test_request_at_the_size_limit_is_served_and_one_byte_more_is_refused(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    """The bounds themselves: the last byte that fits, and the first that does not."""
    gw = await gateway(rules(capture.url), max_header_bytes=2048, max_body_bytes=4096)
    for over, status in ((0, 200), (1, 431)):
        top = head(CHAT, "Content-Length: 100", "X: ")
        body = chat_body().ljust(100)
        top = head(CHAT, "Content-Length: 100", "X: " + "x" * (2048 + over - len(top)))
        # In one piece, cut before the last byte of the head, and after line ends, which are not counted.
        for data in ((top + body,), (top[:-1], top[-1:] + body), (b"\r\n\r\n" + top + body,)):
            client = await connect(gw.url)
            for piece in data:
                client.send(piece)
                await asyncio.sleep(0)
            assert (await client.response()).status == status
    for over, status in ((0, 200), (1, 413)):
        body = chat_body().ljust(4096 + over)
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(body[i : i + 999]), body[i : i + 999]) for i in range(0, 4097, 999))
        for whole in (request(CHAT, body), CHUNKED + chunks + b"0\r\n\r\n"):
            client = await connect(gw.url)
            assert (await client.ask(whole)).status == status
    tiny = CHUNKED + b"".join(b"1\r\n%c\r\n" % byte for byte in chat_body().ljust(4096)) + b"0\r\n\r\n"
    client = await connect(gw.url)
    assert (await client.ask(tiny)).status == 200
    assert len({call.body for call in capture.calls}) == 1


async def test_many_bodies_at_once_are_held_only_for_known_keys(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    """Clients without a key cannot make the gateway hold bytes."""
    gw = await gateway(rules(capture.url, keys={"sk-known-0123456789": "acme"}), max_body_bytes=4 * MB)
    before = rss()
    clients = [await connect(gw.url) for _ in range(40)]
    for client in clients:
        client.send(head(CHAT, f"Content-Length: {4 * MB}", "Authorization: Bearer sk-unknown"))
        for _ in range(60):
            client.send(PIECE)
            await client.drain()
    grown = rss() - before
    assert grown < MAX_RSS_GROWTH
    for client in clients:
        client.send(PIECE * 4)
        assert (await client.response()).status == 401


@pytest.mark.parametrize("length", [True, False], ids=["length", "chunks"])
async def test_held_bodies_of_all_clients_have_a_common_limit(
    gateway: GatewayFactory, capture: Capture, connect: Connect, length: bool
) -> None:
    """Requests beyond the bound are refused, to be retried soon; others, and small ones, are served."""
    gw = await gateway(rules(capture.url), max_body_bytes=4 * MB, max_receiving_bytes=5 * MB)
    body = chat_body(content="x" * (2 * MB))
    framed = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    whole = request(CHAT, body) if length else head(CHAT, "Transfer-Encoding: chunked") + framed
    begun = [await connect(gw.url) for _ in range(2)]
    for client in begun:
        client.send(whole[:-100])
    await until(lambda: gw.limits.part_bytes > 4 * MB - 1000)
    for _ in range(3):
        third = await connect(gw.url)
        third.send(whole[:-100])
        refused = await third.response()
        assert (refused.status, refused.reason, refused.headers["retry-after"]) == (503, "receiving-full", "1")
        assert "x-should-retry" not in refused.headers
    small = await connect(gw.url)
    assert (await small.ask(request(CHAT, chat_body()))).status == 200
    for client in begun:
        client.send(whole[-100:])
        assert (await client.response()).status == 200
    assert not gw.limits.parts
    left = await connect(gw.url)
    left.send(whole[:-100])
    await until(lambda: gw.limits.parts)
    await left.close()
    await until(lambda: not gw.limits.parts)
    assert gw.limits.part_bytes == 0
