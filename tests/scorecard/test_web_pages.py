"""Pages in a browser can do nothing with a gateway without keys, unless they are listed."""

from __future__ import annotations

import pytest

from gateway.policy.builtin import builtin

from .capture import Capture
from .conftest import Connect, EmulatorFactory, GatewayFactory
from .policies import rules
from .raw import CHAT, Client, Response, chat_body, head

KEY = "sk-of-the-test-0123456789"
PAGE = "https://chat.example"
OURS = ("localhost", "LOCALHOST:8080", "127.0.0.1", "127.0.0.1:9", "127.8.9.10:65535", "[::1]", "[::1]:8080")
FOREIGN = (
    *("evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "localhost.", ""),
    *("evil.example:127.0.0.1", "10.0.0.1", "0.0.0.0", "[::]", "127.1", "2130706433", "0x7f.0.0.1", "localhost:"),
    *("localhost:x", "localhost@evil.example", "evil.example#localhost", "localhost,evil.example", "\xb2localhost"),
    *("x.localhost", "[::1", "::1]", "127.0.0.1:\xb2"),
)


def listen(fields: str) -> str:
    return f"listen: {{{fields}}}\n"


async def post(client: Client, *lines: str, host: str = "localhost", body: bytes | None = None) -> Response:
    """A request that a page can send without a preflight: text/plain."""
    body = chat_body() if body is None else body
    lines = (*lines, "Content-Type: text/plain;charset=UTF-8", f"Content-Length: {len(body)}")
    return await client.ask(head(CHAT, *lines, host=host) + body)


async def test_a_gateway_without_keys_answers_only_to_hosts_of_loopback(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    client = await connect((await gateway(rules(capture.url))).url)
    for host in (*OURS, *OURS):
        assert (await post(client, host=host)).status == 200, host
    assert len(capture.calls) == 2 * len(OURS)
    for host in FOREIGN:
        # "" is a Host header without a value, not a request without the header.
        response = await post(client, *(() if host else ("Host:",)), host=host)
        assert (response.status, response.reason) == (403, "host-not-allowed"), host
        assert response.error["type"] == "permission_error"
        assert repr(host) in response.error["message"]
        assert "`listen.names`" in response.error["message"]
    assert len(capture.calls) == 2 * len(OURS)


async def test_listed_host_name_is_served_with_any_port(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    client = await connect((await gateway(rules(capture.url) + listen("names: [GPU-box.internal]"))).url)
    for host in ("gpu-box.internal", "GPU-BOX.internal:8080", "localhost"):
        assert (await post(client, host=host)).status == 200, host
    assert (await post(client, host="evil.internal")).status == 403


@pytest.mark.parametrize("origin", ["https://evil.example", "http://localhost:3000", "null", "", "http://localhost.:1"])
async def test_a_web_page_reaches_no_replica_under_a_policy_without_keys(
    gateway: GatewayFactory, capture: Capture, connect: Connect, origin: str
) -> None:
    client = await connect((await gateway(rules(capture.url))).url)
    response = await post(client, f"Origin: {origin}", host="localhost:8080")
    assert (response.status, response.reason) == (403, "origin-not-allowed")
    assert "access-control-allow-origin" not in response.headers
    assert "`listen.origins`" in response.error["message"]
    assert not capture.calls


async def test_refused_page_and_host_are_told_the_option_that_allows_them(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    client = await connect((await gateway(builtin([capture.url]))).url)
    page = await post(client, "Origin: app://obsidian.md")
    assert "`tailgate serve --origin app://obsidian.md`" in page.error["message"]
    host = await post(client, host="backend:8080")
    assert "`tailgate serve --name backend`" in host.error["message"]
    odd = await post(client, "Origin: http://`rm`")
    assert "`tailgate serve --origin`" in odd.error["message"]


@pytest.mark.parametrize(
    ("listed", "served", "refused"),
    [
        (
            "http://localhost:*",
            ["http://localhost:3000", "http://localhost", "http://LOCALHOST:5173"],
            "http://localhost.evil:3",
        ),
        ("http://localhost:*", ["http://localhost:1"], "https://localhost:1"),
        ("http://localhost:*", ["http://localhost:1"], "http://localhost:1.evil.example"),
        ("app://", ["app://obsidian.md", "app://-"], "apps://obsidian.md"),
        ("app://obsidian.md", ["app://obsidian.md"], "app://other"),
    ],
)
async def test_page_is_allowed_without_a_policy_by_port_and_by_scheme(
    gateway: GatewayFactory, capture: Capture, connect: Connect, listed: str, served: list[str], refused: str
) -> None:
    client = await connect((await gateway(builtin([capture.url], origins=[listed]))).url)
    for origin in served:
        answer = await post(client, f"Origin: {origin}")
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, origin)
    assert (await post(client, f"Origin: {refused}")).status == 403


async def test_name_of_a_proxys_upstream_is_allowed_without_a_policy(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    client = await connect((await gateway(builtin([capture.url], names=["backend"]))).url)
    assert (await post(client, host="backend")).status == 200
    assert (await post(client, host="other")).status == 403


async def test_error_for_a_foreign_web_page_has_the_format_of_the_path(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    client = await connect((await gateway(rules(capture.url))).url)
    response = await client.ask(head("/v1/messages", "Origin: https://evil.example", "Content-Length: 2") + b"{}")
    assert response.json()["type"] == "error"
    assert response.error["type"] == "permission_error"


async def test_web_page_of_the_same_host_or_a_listed_one_is_served_without_keys(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    client = await connect((await gateway(rules(capture.url) + listen(f"origins: ['{PAGE}:443']"))).url)
    assert (await post(client, "Origin: http://localhost:8080", host="localhost:8080")).status == 200
    assert (await post(client, f"Origin: {PAGE}")).status == 200
    assert (await post(client, f"Origin: {PAGE}:8443")).status == 403
    assert (await post(client, "Origin: http://evil.example:8080", host="evil.example:8080")).status == 403
    assert (await post(client, f"Origin: {PAGE}", "Origin: https://evil.example")).status == 400


async def test_any_host_and_any_web_page_with_a_key_is_served(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    client = await connect((await gateway(rules(capture.url, keys={KEY: "acme"}))).url)
    lines = ("Origin: https://evil.example", f"Authorization: Bearer {KEY}")
    assert (await post(client, *lines, host="evil.example")).status == 200
    assert (await post(client, lines[0], host="evil.example")).status == 401


async def test_web_page_of_an_open_gateway_is_served_only_if_its_host_is_listed(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    open_to_all = "open_on_any_address: true"
    unlisted = await connect((await gateway(rules(capture.url) + listen(open_to_all), host="0.0.0.0")).url)
    assert (await post(unlisted, host="gpu.example")).status == 200
    response = await post(unlisted, "Origin: http://gpu.example", host="gpu.example")
    assert (response.status, response.reason) == (403, "origin-not-allowed")
    policy = rules(capture.url) + listen(f"{open_to_all}, names: [gpu.example]")
    listed = await connect((await gateway(policy, host="0.0.0.0")).url)
    for host in ("gpu.example", "10.1.2.3:8080", "localhost"):
        assert (await post(listed, host=host)).status == 200, host
    assert (await post(listed, host="evil.example")).status == 403
    assert (await post(listed, "Origin: http://gpu.example", host="gpu.example")).status == 200


async def test_health_and_readiness_answer_to_any_host(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    client = await connect((await gateway(rules(capture.url))).url)
    assert (await client.ask(head("/health", method="GET", host="pod.svc"))).status == 200
    assert (await client.ask(head("/v1/models", method="GET", host="pod.svc"))).status == 403


async def test_http_1_0_request_without_a_host_is_served(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    client = await connect((await gateway(rules(capture.url))).url)
    assert (await client.ask(head("/v1/models", method="GET", host="", version="HTTP/1.0"))).status == 200


PREFLIGHT = ("Access-Control-Request-Method: POST", "Access-Control-Request-Headers: authorization,x-stainless-os")


async def preflight(client: Client, origin: str, *lines: str, path: str = CHAT, host: str = "localhost") -> Response:
    client.send(head(path, f"Origin: {origin}", *(lines or PREFLIGHT), method="OPTIONS", host=host))
    status, headers = await client.head()
    length = int(headers.get("content-length", 0))
    return Response(status, headers, await client.reader.readexactly(length))


async def test_cors_preflight_of_a_listed_page_needs_no_key(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url, keys={KEY: "acme"}) + listen(f"origins: ['{PAGE}']"))
    client = await connect(gw.url)
    for path in (CHAT, "/v1/models", "/chat/completions"):
        answer = await preflight(client, PAGE, path=path)
        assert answer.status == 204
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert answer.headers["access-control-allow-methods"] == "GET, POST"
        assert answer.headers["access-control-allow-headers"] == "authorization,x-stainless-os"
        assert int(answer.headers["access-control-max-age"]) > 0
        assert answer.headers["vary"] == "origin"
        assert not {"content-length", "transfer-encoding", "access-control-allow-credentials"} & set(answer.headers)
    for asked in ("a" * 2000, "a\xe9", "", "a: b"):
        answer = await preflight(client, PAGE, f"Access-Control-Request-Headers: {asked}")
        assert answer.headers["access-control-allow-headers"].startswith("authorization, content-type"), asked
    foreign = await preflight(client, "https://evil.example")
    assert (foreign.status, foreign.headers["x-tailgate-reason"]) == (403, "origin-not-allowed")
    assert "access-control-allow-origin" not in foreign.headers
    assert not capture.traffic


def readable(response: Response, origin: str = PAGE) -> bool:
    """Whether a page may read the answer, and its headers."""
    found = response.headers.get("access-control-allow-origin")
    assert found is None or response.headers["access-control-expose-headers"] == "*"
    return found == origin


async def test_web_page_of_a_listed_origin_can_read_answers_and_errors(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    limits = "limits: {requests: 3/min}"
    gw = await gateway(rules(capture.url, keys={KEY: "acme"}, tier=limits) + listen(f"origins: ['{PAGE}']"))
    client = await connect(gw.url)
    page, key = f"Origin: {PAGE}", f"Authorization: Bearer {KEY}"
    for response, status in (
        (await post(client, page, key), 200),
        (await client.ask(head("/v1/models", page, key, method="GET")), 200),
        (await client.ask(head("/v1/models/none", page, key, method="GET")), 404),
        (await post(client, page), 401),
        (await post(client, page, key, body=b"{}"), 400),
        (await client.ask(head("/nowhere", page, method="GET")), 404),
        (await client.ask(head(CHAT, page, method="GET")), 405),
        (await post(client, page, key), 200),
        (await post(client, page, key), 200),
        (await post(client, page, key), 429),
    ):
        assert response.status == status
        assert readable(response), status
    assert not readable(await post(client, "Origin: https://evil.example", key))
    assert not readable(await post(client, key))
    # Requests that are refused before they are complete, and bytes that are not a request.
    for data in (
        head(CHAT, page, "Content-Length: 99999999999"),
        head(CHAT, page, "Content-Length: 3", "X: y\x00"),
        head(CHAT, page, "X: " + "y" * 70_000),
        head(CHAT, page, "Connection: Upgrade", "Upgrade: websocket", method="GET"),
    ):
        response = await (await connect(gw.url)).ask(data)
        assert response.status >= 400
        assert readable(response), response


async def test_a_web_page_of_a_listed_origin_can_read_a_stream(
    gateway: GatewayFactory, emulator: EmulatorFactory, connect: Connect
) -> None:
    emulated = await emulator()
    policy = rules(emulated.urls[0]) + listen(f"origins: ['{PAGE}']")
    client = await connect((await gateway(policy)).url)
    response = await post(client, f"Origin: {PAGE}", body=chat_body(stream=True))
    assert response.status == 200
    assert readable(response)
    assert response.events[-1] == "[DONE]"


async def test_wildcard_origin_admits_every_page_with_a_key(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url, keys={KEY: "acme"}) + listen("origins: ['*']"))
    client = await connect(gw.url)
    for origin in (PAGE, "null", "a\xe9 b"):
        assert (await preflight(client, origin)).headers["access-control-allow-origin"] == "*"
        assert readable(await post(client, f"Origin: {origin}", f"Authorization: Bearer {KEY}"), "*")
        assert (await post(client, f"Origin: {origin}")).status == 401


async def test_web_page_under_a_foreign_host_name_gets_no_preflight_without_keys(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    client = await connect((await gateway(rules(capture.url) + listen(f"origins: ['{PAGE}']"))).url)
    assert (await preflight(client, PAGE)).status == 204
    answer = await preflight(client, PAGE, host="evil.example")
    assert (answer.status, answer.headers["x-tailgate-reason"]) == (403, "host-not-allowed")


async def test_reload_changes_the_allowed_web_pages(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    from gateway.policy import load_text

    gw = await gateway(rules(capture.url))
    client = await connect(gw.url)
    page = f"Origin: {PAGE}"
    assert (await post(client, page)).status == 403
    gw.reloads.configure(load_text(rules(capture.url) + listen(f"names: [a.example], origins: ['{PAGE}']"), "p.yaml"))
    assert (await post(client, page, host="a.example")).status == 200
    gw.reloads.configure(load_text(rules(capture.url), "p.yaml"))
    assert (await post(client, host="a.example")).status == 403
