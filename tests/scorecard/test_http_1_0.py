"""HTTP/1.0 clients: no chunks, and the end of the connection is the end of the answer."""

from __future__ import annotations

from .capture import STREAM_HEAD, Answer, Capture, Then, token, whole
from .conftest import Connect, GatewayFactory
from .policies import rules
from .raw import CHAT, Client, chat_body, request


async def ask(
    client: Client, *lines: str, stream: bool = False, host: bool = True
) -> tuple[int, dict[str, str], bytes]:
    data = request(CHAT, chat_body(stream=stream), *lines, version="HTTP/1.0")
    client.send(data if host else data.replace(b"Host: localhost\r\n", b""))
    status, headers = await client.head()
    return status, headers, await client.rest()


async def test_http_1_0_whole_answer_has_a_length_and_no_chunks(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url))
    for lines in ((), ("Connection: keep-alive",), ("Connection: close",)):
        status, headers, body = await ask(await connect(gw.url), *lines, host=False)
        assert status == 200
        assert headers["content-length"] == str(len(body))
        assert "transfer-encoding" not in headers


async def test_http_1_0_stream_ends_with_the_connection(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url))
    status, headers, body = await ask(await connect(gw.url), stream=True)
    assert status == 200
    assert "transfer-encoding" not in headers
    assert "content-length" not in headers
    assert body.startswith(b"data: {")
    assert body.endswith(b"data: [DONE]\n\n")


async def test_http_1_0_answer_too_long_to_hold_is_not_chunked(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    text = b'{"choices":[],"text":"%b"}' % (b"x" * 3_000_000)
    capture.answer = lambda call: Answer(whole(text))
    gw = await gateway(rules(capture.url))
    status, headers, body = await ask(await connect(gw.url))
    assert status == 200
    assert "transfer-encoding" not in headers
    assert body == text


async def test_http_1_0_stream_that_breaks_ends_in_an_error(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    """Here the end of the connection proves nothing, so only the event tells."""
    capture.answer = lambda call: Answer(STREAM_HEAD + token("Hi"), Then.CLOSE)
    gw = await gateway(rules(capture.url))
    status, _, body = await ask(await connect(gw.url), stream=True)
    assert status == 200
    events = body.split(b"\n\n")
    assert b'"error"' in events[-2]
    assert events[-1] == b""
    assert b"[DONE]" not in body


async def test_http_1_0_refusal_closes_the_connection(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url))
    client = await connect(gw.url)
    client.send(b"POST /nowhere HTTP/1.0\r\n\r\n")
    response = await client.response()
    assert (response.status, response.headers["connection"]) == (404, "close")
    assert await client.rest() == b""
