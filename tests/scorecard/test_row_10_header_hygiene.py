"""Row 10: only known and well-formed headers of a client reach a replica, and none of a replica reaches a client."""

from __future__ import annotations

import pytest

from .capture import DONE, STREAM_HEAD, Answer, Capture, token, whole
from .conftest import Connect, GatewayFactory
from .policies import rules
from .raw import CHAT, chat, chat_body, head

KEY = "the-key-of-a-client"
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UPSTREAM = ["host", "content-type", "accept", "accept-encoding", "x-request-id", "content-length"]
"""Every header that a replica gets, in order; `authorization` before the request id where its pool has a key."""

HOSTILE = (
    f"Authorization: Bearer {KEY}",
    "Connection: keep-alive, X-Hop, Content-Length, X-Request-Id",
    "X-Hop: hop-by-hop",
    "Keep-Alive: timeout=600",
    "Proxy-Connection: keep-alive",
    "Proxy-Authorization: Basic Zm9vOmJhcg==",
    "TE: trailers",
    "Cookie: session=1",
    "Accept: */*",
    "Accept-Encoding: gzip, br",
    "Forwarded: for=10.0.0.1",
    "X-Forwarded-For: 10.0.0.1",
    "X-Forwarded-Host: evil",
    "X-Real-IP: 10.0.0.1",
    "X-HTTP-Method-Override: DELETE",
    "X-Original-URL: /admin",
    "X-Rewrite-URL: /admin",
    # the gateway's own headers, sent by a client
    "X-Tailgate-Tier: premium",
    "X_Tailgate_Tier: premium",
    "X-Tier: premium",
    "X_Tier: premium",
    "X-Tailgate-Max-Tokens: 1000000",
    # headers that engines and other gateways obey
    "X-Vllm-Priority: -1",
    "X-Override-Priority: 100",
    "X-data-parallel-rank: 0",
    "X_data_parallel_rank: 0",
    "X-Session-ID: 1",
    "X-SMG-Routing-Key: 1",
    "endpoint-load-metrics-format: JSON",
    "x-llm-d-inference-objective: critical",
    "x-gateway-inference-objective: critical",
    "x-slo-ttft-ms: 1",
    "x-stainless-retry-count: 0",
    "OpenAI-Organization: org",
    "anthropic-beta: context-1m",
)


async def test_replica_gets_only_headers_that_the_gateway_sets(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url, keys={KEY: "acme"}, pool="api_key: of-the-pool"))
    client = await connect(gw.url)
    assert (await client.ask(chat(*HOSTILE))).status == 200
    (call,) = capture.calls
    assert [name for name, _ in call.headers] == [*UPSTREAM[:4], "authorization", *UPSTREAM[4:]]
    assert call.header("authorization") == ["Bearer of-the-pool"]
    assert call.header("host") == [capture.url.removeprefix("http://")]
    assert call.header("content-length") == [str(len(call.body))]
    assert KEY.encode() not in call.head + call.body


@pytest.mark.parametrize(
    "trailer", [f"Authorization: Bearer {KEY}", "Host: evil", "X-Tier: premium", "X-Request-Id: mine"]
)
async def test_request_trailers_are_ignored(
    gateway: GatewayFactory, capture: Capture, connect: Connect, trailer: str
) -> None:
    gw = await gateway(rules(capture.url, keys={KEY: "acme"}))
    body = chat_body()
    chunked = head(CHAT, "Transfer-Encoding: chunked", "Trailer: Authorization", f"x-api-key: {KEY}")
    client = await connect(gw.url)
    response = await client.ask(chunked + b"%x\r\n%b\r\n0\r\n%b\r\n\r\n" % (len(body), body, trailer.encode()))
    assert response.status == 200
    assert [name for name, _ in capture.calls[0].headers] == UPSTREAM
    # a trailer is not a credential, either
    without = head(CHAT, "Transfer-Encoding: chunked")
    other = await connect(gw.url)
    response = await other.ask(without + b"%x\r\n%b\r\n0\r\n%b\r\n\r\n" % (len(body), body, trailer.encode()))
    assert response.status == 401
    assert len(capture.calls) == 1


async def test_trace_context_is_passed_on_only_if_it_is_well_formed(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url))
    client = await connect(gw.url)
    for given, wanted in (
        ((f"traceparent: {TRACEPARENT}", "tracestate: a=1"), ([TRACEPARENT], ["a=1"])),
        ((f"traceparent: {TRACEPARENT}",), ([TRACEPARENT], [])),
        ((f"traceparent: {TRACEPARENT}", "tracestate: " + "x" * 513), ([TRACEPARENT], [])),
        (("tracestate: a=1",), ([], [])),
        (("traceparent: 00-xyz", "tracestate: a=1"), ([], [])),
        ((f"traceparent: {TRACEPARENT}", "Connection: TraceParent"), ([], [])),
        ((f"traceparent: {TRACEPARENT}", "tracestate: a=1", "Connection: TE , tracestate"), ([TRACEPARENT], [])),
        ((f"traceparent: {TRACEPARENT}", "Connection: te", "Connection: traceparent"), ([], [])),
    ):
        assert (await client.ask(chat(*given))).status == 200
        call = capture.calls[-1]
        assert (call.header("traceparent"), call.header("tracestate")) == wanted, given


STRANGE = ("", "a b", "a\tb", "é", "x" * 129, "a,b", "<script>", "${jndi:ldap://evil}", "id;x=1", '"quoted"')


async def test_harmless_request_id_is_kept(gateway: GatewayFactory, capture: Capture, connect: Connect) -> None:
    gw = await gateway(rules(capture.url))
    client = await connect(gw.url)
    for request_id in STRANGE:
        response = await client.ask(chat(f"X-Request-Id: {request_id}"))
        assert response.headers["x-request-id"].startswith("tg-"), request_id
        (sent,) = capture.calls[-1].header("x-request-id")
        assert sent.startswith(response.headers["x-request-id"] + "-"), "made unique, for engines that use it"
    response = await client.ask(chat("X-Request-Id: my-own.id:1"))
    assert response.headers["x-request-id"] == "my-own.id:1"
    assert capture.calls[-1].header("x-request-id")[0].startswith("my-own.id:1-")


OURS = {
    "content-type",
    "content-length",
    "transfer-encoding",
    "cache-control",
    "x-accel-buffering",
    "x-request-id",
    "x-tailgate-pool",
    "x-tailgate-replica",
    "x-tailgate-tier",
    "server-timing",
}


@pytest.mark.parametrize("stream", [False, True])
async def test_no_header_of_a_replica_reaches_a_client(
    gateway: GatewayFactory, capture: Capture, connect: Connect, stream: bool
) -> None:
    lines = (
        "server: uvicorn",
        "date: Thu, 01 Jan 1970 00:00:00 GMT",
        "connection: keep-alive, x-hop",
        "x-hop: 1",
        "x-request-id: of-the-replica",
        "x-tailgate-tier: premium",
        "access-control-allow-origin: *",
        "location: http://10.0.0.1/",
        "strict-transport-security: max-age=0",
        "trailer: x-after",
    )
    streamed = STREAM_HEAD.replace(b"\r\n\r\n", "\r\n".join(["", *lines, "", ""]).encode(), 1)
    after = b"0\r\nx-after: 1\r\ncontent-length: 5\r\n\r\n"
    capture.answer = lambda call: Answer(
        streamed + token("Hi", "stop") + DONE + after if stream else whole(b"", "200 OK", *lines)
    )
    gw = await gateway(rules(capture.url))
    client = await connect(gw.url)
    for _ in range(2):
        response = await client.ask(chat(stream=stream))
        assert response.whole
        assert set(response.headers) <= OURS
        assert response.headers["x-tailgate-tier"] == "free"
        assert response.headers["x-request-id"].startswith("tg-")
