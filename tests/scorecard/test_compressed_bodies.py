"""Request bodies in a content encoding: decoded within the body limit, or refused with a reason."""

from __future__ import annotations

import asyncio
import gzip
import json

import pytest

from gateway.app import Gateway
from tests.wire.encoded import ENCODERS

from .capture import Capture
from .conftest import Connect, GatewayFactory
from .policies import rules
from .raw import CHAT, Client, Response, chat, chat_body, head
from .waiting import DEADLINE_S, until

LIMIT = 2**20


async def send(client: Client, coding: str, body: bytes, *lines: str) -> Response:
    return await client.ask(head(CHAT, f"Content-Encoding: {coding}", f"Content-Length: {len(body)}", *lines) + body)


@pytest.mark.parametrize("name", ENCODERS)
async def test_a_compressed_body_reaches_the_replica_as_a_plain_one(
    gateway: GatewayFactory, capture: Capture, connect: Connect, name: str
) -> None:
    if name == "zstd":
        pytest.importorskip("zstandard")
    client = await connect((await gateway(rules(capture.url))).url)
    coding, encode = ENCODERS[name]
    for content in ("Hello", "x" * 700_000):
        assert (await send(client, coding.decode().title(), encode(chat_body(content=content)))).status == 200
        call = capture.calls[-1]
        assert json.loads(call.body)["messages"][0]["content"] == content
        assert call.header("content-encoding") == []
    assert (await client.ask(chat())).status == 200


async def test_compressed_chunked_body_and_identity_encoding_are_accepted(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    client = await connect((await gateway(rules(capture.url))).url)
    body = gzip.compress(chat_body())
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    lines = ("Content-Encoding: x-gzip", "Transfer-Encoding: chunked")
    assert (await client.ask(head(CHAT, *lines) + chunks)).status == 200
    assert (await send(client, "identity", chat_body())).status == 200


async def test_body_limit_applies_to_the_decompressed_body(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    client = await connect((await gateway(rules(capture.url), max_body_bytes=LIMIT)).url)
    fits = chat_body(content="x" * (LIMIT - 200))
    assert (await send(client, "gzip", gzip.compress(fits))).status == 200
    for size in (LIMIT + 1, 100 * LIMIT):
        response = await send(client, "gzip", gzip.compress(bytes(size)))
        assert (response.status, response.reason) == (413, "body-too-large")
        assert str(LIMIT) in response.error["message"]
    assert len(capture.calls) == 1


async def test_decompressed_bytes_count_as_held_body_bytes(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url), max_body_bytes=LIMIT, max_receiving_bytes=LIMIT)
    client = await connect(gw.url)
    # Another client's body, still incomplete.
    other = await connect(gw.url)
    other.send(head(CHAT, f"Content-Length: {LIMIT}") + bytes(LIMIT // 2))
    await until(lambda: gw.limits.part_bytes >= LIMIT // 2)
    body = gzip.compress(chat_body(content="x" * (LIMIT * 3 // 4)))
    response = await send(client, "gzip", body)
    assert (response.status, response.reason) == (503, "receiving-full")
    other.rst()
    await until(lambda: not gw.limits.parts)
    assert (await send(client, "gzip", body)).status == 200
    assert not gw.limits.parts


EMPTY = gzip.compress(b"{}", mtime=0)
CORRUPT = {
    "nothing": b"",
    "the magic number alone": b"\x1f\x8b",
    "plain text": b"plain text",
    "cut short": EMPTY[:-1],
    "two members": EMPTY * 2,
}


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize("body", list(CORRUPT.values()), ids=list(CORRUPT))
async def test_corrupt_compressed_body_is_a_400_that_says_so(
    gateway: GatewayFactory, capture: Capture, connect: Connect, coding: str, body: bytes
) -> None:
    client = await connect((await gateway(rules(capture.url))).url)
    response = await send(client, coding, body)
    assert (response.status, response.reason) == (400, "bad-request")
    assert response.error["message"].startswith(f"The body is not valid {coding}")
    assert (await client.ask(chat())).status == 200


@pytest.mark.parametrize("coding", ["br", "gzip, gzip", "deflate, gzip", "compress", "gzip;q=1", "\xe9"])
async def test_unknown_content_encoding_is_a_415_that_lists_the_known_ones(
    gateway: GatewayFactory, capture: Capture, connect: Connect, coding: str
) -> None:
    client = await connect((await gateway(rules(capture.url))).url)
    response = await send(client, coding, b"{}")
    assert (response.status, response.reason) == (415, "unsupported-encoding")
    assert response.headers["accept-encoding"] == "gzip, deflate, zstd"
    assert "Content-Encoding" in response.error["message"]
    assert not capture.traffic


async def begin_decoding(gw: Gateway, client: Client, body: bytes) -> None:
    """Send a body, and return during its decoding."""
    client.send(head(CHAT, "Content-Encoding: gzip", f"Content-Length: {len(body)}") + body)
    loop = asyncio.get_running_loop()
    begun = loop.create_future()

    def look() -> None:
        # Checked in every turn, like the decoding: a check every few milliseconds would miss it.
        if gw.limits.parts:
            begun.set_result(None)
        else:
            loop.call_soon(look)

    look()
    async with asyncio.timeout(DEADLINE_S):
        await begun


async def test_client_that_leaves_while_its_body_is_decoded_leaves_no_state(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url))
    body = gzip.compress(chat_body(content="x" * (8 * LIMIT)))
    for leave in (Client.rst, Client.fin):
        client = await connect(gw.url)
        await begin_decoding(gw, client, body)
        leave(client)
        await until(lambda: not gw.limits.connections)
        assert not gw.limits.parts
    assert not capture.calls


async def test_other_requests_are_served_while_a_large_body_is_decoded(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url))
    large, small = await connect(gw.url), await connect(gw.url)
    await begin_decoding(gw, large, gzip.compress(bytes(15 * LIMIT)))
    assert (await small.ask(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")).status == 200
    assert gw.limits.parts, "the small one came first"
    assert (await large.response()).status == 400
