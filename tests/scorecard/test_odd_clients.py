"""Clients that are slow, sloppy or strange, within HTTP and just outside it."""

from __future__ import annotations

import asyncio

from .capture import Capture, never
from .conftest import Connect, GatewayFactory
from .policies import rules
from .raw import CHAT, chat, chat_body, head, request
from .state import held
from .waiting import until


async def test_request_sent_byte_by_byte_is_served(gateway: GatewayFactory, capture: Capture, connect: Connect) -> None:
    gw = await gateway(rules(capture.url))
    client = await connect(gw.url)
    for stream in (False, True, False):
        for byte in chat(stream=stream):
            client.send(bytes([byte]))
            await asyncio.sleep(0)
        response = await client.response()
        assert (response.status, response.whole) == (200, True)
    assert len(capture.calls) == 3


async def test_line_ends_before_and_between_requests_are_skipped(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url), receive_timeout_s=0.3)
    client = await connect(gw.url)
    assert (await client.ask(b"\r\n\r\n" + chat())).status == 200
    client.send(b"\r\n")
    # They do not begin a request with a deadline: in the meantime another connection times out.
    other = await connect(gw.url)
    assert (await other.ask(b"GET /")).status == 408
    assert (await client.ask(b"\r\n" + chat())).status == 200
    # Some old clients send an extra line end after a body, with it or later.
    assert (await client.ask(chat() + b"\r\n")).status == 200
    assert (await client.ask(chat())).status == 200


async def test_body_longer_than_its_length_is_refused(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    """Extra bytes are not a request: with the body they get an error; late ones close the connection."""
    gw = await gateway(rules(capture.url))
    client = await connect(gw.url)
    response = await client.ask(chat() + b"}")
    assert (response.status, response.headers["connection"]) == (400, "close")
    await client.close()
    assert not capture.calls
    capture.answer = never
    client = await connect(gw.url)
    client.send(chat())
    await capture.until(lambda: capture.calls)
    client.send(b"}")
    assert await client.rest() == b""
    await capture.until(lambda: capture.calls[0].aborted)
    await until(lambda: not held(gw))


async def test_body_that_ends_too_soon_reaches_no_replica(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url))
    body = chat_body()
    cut = request(CHAT, body)[:-1]
    chunked = head(CHAT, "Transfer-Encoding: chunked") + b"%x\r\n%b" % (len(body), body)
    for data in (cut, chunked, chunked + b"\r\n", chunked + b"\r\n0\r\n"):
        for leave in ("half_close", "fin", "rst"):
            client = await connect(gw.url)
            client.send(data)
            getattr(client, leave)()
            if leave == "half_close":
                assert await client.rest() == b""
    await until(lambda: not held(gw), seen=lambda: held(gw))
    assert not capture.calls


async def test_head_request_gets_no_body(gateway: GatewayFactory, capture: Capture, connect: Connect) -> None:
    """A client takes bytes after the head of an answer to HEAD for the next answer."""
    gw = await gateway(rules(capture.url))
    for path, expected in (("/health", 200), ("/ready", 200), ("/v1/models", 200), (CHAT, 405), ("/nowhere", 404)):
        client = await connect(gw.url)
        client.send(head(path, method="HEAD"))
        status, headers = await client.head()
        assert status == expected
        if headers.get("connection") == "close":
            assert await client.rest() == b""
        else:
            assert (await client.ask(chat())).status == 200


OTHER_PROTOCOLS = (
    ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"),
    ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: AA==", "Sec-WebSocket-Version: 13"),
    ("Connection: Upgrade", "Upgrade: TLS/1.0"),
    ("Upgrade: h2c",),
)


async def test_upgrade_header_is_ignored(gateway: GatewayFactory, capture: Capture, connect: Connect) -> None:
    """By RFC 9110, 7.8. Java's client asks for h2c with its first request."""
    gw = await gateway(rules(capture.url))
    for lines in OTHER_PROTOCOLS:
        client = await connect(gw.url)
        body = chat_body()
        chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        chunked = head(CHAT, "Transfer-Encoding: chunked", *lines) + chunks
        for data in (chat(*lines), chunked):
            assert (await client.ask(data)).status == 200, lines
        # A GET that asks for a WebSocket is useless without one.
        for data in [request("/v1/models", None, *lines)] if "Upgrade: websocket" not in lines else []:
            assert (await client.ask(data)).status == 200, lines
        for byte in chat(*lines):
            client.send(bytes([byte]))
            await client.drain()
        response = await client.response()
        assert response.status == 200
        assert "upgrade" not in response.headers
        await client.close()
    bodies = {call.body for call in capture.calls}
    assert len(bodies) == 1
    assert len(capture.calls) == 3 * len(OTHER_PROTOCOLS)


async def test_opening_a_websocket_is_answered_at_once_with_426(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    """Codex opens one on /v1/responses, and falls back to HTTP after this answer."""
    gw = await gateway(rules(capture.url))
    for path, upgrade in (
        ("/v1/responses", "websocket"),
        ("/v1/responses?a=b", "WebSocket"),
        ("/v1/realtime", "h2c, websocket"),
    ):
        client = await connect(gw.url)
        lines = (
            "Connection: keep-alive, Upgrade",
            f"Upgrade: {upgrade}",
            "Sec-WebSocket-Key: AA==",
            "X-Request-Id: mine",
        )
        response = await client.ask(head(path, *lines, method="GET"))
        assert (response.status, response.reason) == (426, "no-websockets"), path
        assert response.headers["upgrade"] == "HTTP/1.1"
        assert response.headers["x-request-id"] == "mine"
        assert "HTTP" in response.error["message"]
        assert await client.rest() == b""
    client = await connect(gw.url)
    websocket = ("Connection: Upgrade", "Upgrade: websocket", "anthropic-version: 2023-06-01")
    assert (await client.ask(head("/v1/messages", *websocket, method="GET"))).json()["type"] == "error"
    assert not capture.traffic


async def test_connect_is_refused_with_400(gateway: GatewayFactory, connect: Connect, capture: Capture) -> None:
    gw = await gateway(rules(capture.url))
    for lines in ("", "Upgrade: websocket\r\nConnection: Upgrade\r\n"):
        client = await connect(gw.url)
        client.send(f"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n{lines}\r\n".encode())
        assert (await client.rest()).startswith(b"HTTP/1.1 400 ")


async def test_unannounced_http_2_and_tls_are_refused_with_400(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url))
    for data in (
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 100,
        b"\x80",
    ):
        client = await connect(gw.url)
        client.send(data)
        assert (await client.rest()).startswith(b"HTTP/1.1 400 ")


async def test_client_that_never_reads_its_refusal_is_closed(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    """A client that sends beyond its last answer is read for a moment, then cut off."""
    gw = await gateway(rules(capture.url))
    client = await connect(gw.url)
    client.send(b"GARBAGE\r\n\r\n")
    sent = 0
    while not client.writer.transport.is_closing():
        client.send(b"x" * 1024)
        sent += 1
        await asyncio.sleep(0.005)
        assert sent < 2000
    await until(lambda: gw.limits.connections == 0)
