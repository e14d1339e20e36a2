"""`Expect: 100-continue`: a client learns of a refusal before it sends the body."""

from __future__ import annotations

from .capture import Capture
from .conftest import Connect, GatewayFactory
from .policies import rules
from .raw import CHAT, chat_body, head

KEY = "sk-of-the-test-0123456789"
MINE = f"x-api-key: {KEY}"
ASKS = "Expect: 100-continue"


async def test_expect_continue_gets_a_100(gateway: GatewayFactory, capture: Capture, connect: Connect) -> None:
    gw = await gateway(rules(capture.url))
    client = await connect(gw.url)
    body = chat_body()
    for expect in (ASKS, "expect: 100-Continue"):
        client.send(head(CHAT, expect, f"Content-Length: {len(body)}"))
        assert await client.head() == (100, {})
        client.send(body)
        assert (await client.response()).status == 200
    client.send(head(CHAT, ASKS, "Transfer-Encoding: chunked"))
    assert await client.head() == (100, {})
    client.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
    assert (await client.response()).status == 200


async def test_client_that_sends_its_body_before_the_100_is_served(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url))
    client = await connect(gw.url)
    body = chat_body()
    for _ in range(2):
        assert (await client.ask(head(CHAT, ASKS, f"Content-Length: {len(body)}") + body)).status == 200


REFUSED = (
    ("/nowhere", (ASKS, "Content-Length: 9"), 404),
    ("/v1/models", (ASKS, "Content-Length: 9"), 405),
    (CHAT, (ASKS, "Content-Length: 9"), 401),
    (CHAT, (ASKS, "Content-Length: 9", "x-api-key: sk-wrong"), 401),
    (CHAT, (ASKS, "Content-Length: 99999999999", MINE), 413),
    (CHAT, (ASKS, "Content-Length: 9", "Content-Encoding: br", MINE), 415),
    (CHAT, ("Expect: 200-ok", "Content-Length: 9", MINE), 417),
    (CHAT, ("Expect: ", "Content-Length: 9", MINE), 417),
    (CHAT, ("Expect: 100-continue, x", "Content-Length: 9", MINE), 417),
    (CHAT, (ASKS, ASKS, "Content-Length: 9", MINE), 400),
)


async def test_refused_request_gets_no_100_continue(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url, keys={KEY: "acme"}))
    for path, lines, status in REFUSED:
        client = await connect(gw.url)
        client.send(head(path, *lines))
        got, headers = await client.head()
        # The connection cannot be reused: the body may or may not follow.
        assert (got, headers["connection"]) == (status, "close"), (path, lines)
        await client.rest()
        await client.close()
    assert not capture.calls


async def test_expect_continue_of_http_1_0_is_ignored(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    """RFC 9110, 10.1.1: the expectation of an HTTP/1.0 client is ignored, since it would not understand a 100."""
    gw = await gateway(rules(capture.url))
    client = await connect(gw.url)
    body = chat_body()
    client.send(head(CHAT, ASKS, f"Content-Length: {len(body)}", version="HTTP/1.0") + body)
    assert (await client.head())[0] == 200
