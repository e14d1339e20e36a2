"""Row 5: the Host header and its substitutes decide neither access nor the bytes that go upstream."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from .capture import Capture
from .conftest import Connect, GatewayFactory
from .policies import rules
from .raw import CHAT, chat_body, head

KEY = "sk-of-the-test-0123456789"
HOSTS = (
    *("evil", "evil:80", "127.0.0.1", "localhost", "localhost:9090", "[::1]", "[::1", "a b", "a,b", "a;b", "a/b"),
    *("gateway/v1/models?x=", "gateway#", "gateway?", "user:pass@gateway", "gateway:99999", "gateway:-1", "gateway:"),
    *("/health", "../../health", "%2e%2e", "a\tb", "\xff\xfe", "x" * 8000, "", " ", "gateway\\@evil", "0", "-"),
    *("health", "http://gateway/health", "gateway:80:80", "\u2100".encode().decode("latin-1"), "a\x0bb"),
)
# Headers that some proxies rewrite and some frameworks read.
ALIASES = (
    *("X-Forwarded-Host: 127.0.0.1", "X-Forwarded-For: 127.0.0.1", "X-Forwarded-Proto: https", "X-Real-IP: 127.0.0.1"),
    *("Forwarded: for=127.0.0.1;host=evil", "X-Original-URL: /health", "X-Rewrite-URL: /health", "X-Host: evil"),
    *("X-HTTP-Method-Override: GET", "X-Forwarded-Prefix: /health", "X-Forwarded-User: admin", "Via: 1.1 evil"),
)
# A head without exactly one Host is not HTTP/1.1.
NOT_ONE = (
    ("Host: a", "Host: b"),
    ("Host: a", "Host: a"),
    ("Host: a", "host: a"),
    (),
    ("Host : a",),
    ("Host: a", " b"),
    ("X: y", "Host\t: a"),
    ("Host:a\x00b",),
)


async def test_host_header_changes_neither_access_nor_the_forwarded_request(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url, keys={KEY: "acme"}))
    body = chat_body()
    framing = f"Content-Length: {len(body)}"
    served = 0
    heads = [(f"Host: {host}",) for host in HOSTS] + [("Host: gateway", alias) for alias in ALIASES]
    for lines in [*heads, *NOT_ONE]:
        for path in (CHAT, "/v1/models"):
            method = "POST" if path == CHAT else "GET"
            for key, let_in in (("", False), (f"Authorization: Bearer {KEY}x", False), (f"x-api-key: {KEY}", True)):
                client = await connect(gw.url)
                keys = [key] if key else []
                client.send(head(path, *lines, *keys, framing, "Connection: close", method=method, host="") + body)
                try:
                    status = (await client.response()).status
                except (asyncio.IncompleteReadError, ConnectionError):
                    status = 400
                assert status in ((200, 400) if let_in else (401, 400)), (lines, key, status)
                if lines in NOT_ONE:
                    assert status == 400, lines
                served += status == 200 and path == CHAT
                await client.close()
    assert len(capture.calls) == served >= 20
    authority = urlsplit(capture.url).netloc
    sent = {"host", "content-type", "accept", "accept-encoding", "x-request-id", "content-length"}
    for call in capture.calls:
        assert call.header("host") == [authority]
        assert {name for name, _ in call.headers} == sent
