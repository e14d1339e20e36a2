"""After every kind of error the connection is either usable, or announced as closed and closed."""

from __future__ import annotations

import itertools

import pytest

from tests.interpreted import interpreted

from .capture import STREAM_HEAD, Answer, Call, Capture, Then, by_default, token, whole
from .conftest import Connect, GatewayFactory
from .policies import rules
from .raw import CHAT, Client, Response, chat, chat_body, head, request

KEY = "sk-of-the-test-0123456789"
MINE = f"x-api-key: {KEY}"
TIMEOUTS = "timeouts: {queue: 200ms, ttft: 200ms, total: 1s}"


def error(status: int) -> Answer:
    """A replica's refusal."""
    return Answer(whole(b'{"error":{"message":"no","type":"BadRequestError","code":400}}', f"{status} No"))


# Answers of the replica, by prompt.
REPLICA: dict[str, Answer | None] = {
    "400": error(400),
    "404": error(404),
    "422": error(422),
    "500": error(500),
    "503": error(503),
    "cut in the head": Answer(b"HTTP/1.1 200 OK\r\ncontent-le", Then.CLOSE),
    "cut in the body": Answer(whole()[:-5], Then.CLOSE),
    "reset": Answer(b"", Then.RESET),
    "garbage": Answer(b"\x00\x01 no HTTP\r\n\r\n", Then.CLOSE),
    "stream cut before a token": Answer(STREAM_HEAD, Then.CLOSE),
    "stream cut in its head": Answer(STREAM_HEAD[:30], Then.RESET),
    "no answer": None,
}


def requests() -> dict[str, bytes]:
    """All requests that get an error, by name."""
    body = chat_body()
    made = {
        "not JSON": request(CHAT, b"{", MINE),
        "empty": request(CHAT, b"", MINE),
        "wrong type": chat(MINE, max_tokens="5"),
        "no such model": chat(MINE, model="other"),
        "prompt too long": chat(MINE, content="word " * 4000),
        "no such path": request("/nowhere", body, MINE),
        "wrong method": request("/v1/models", body, MINE),
        "no key": request(CHAT, body),
        "unknown key": request(CHAT, body, "x-api-key: sk-other"),
        "two keys": request(CHAT, body, MINE, MINE),
        "two hosts": request(CHAT, body, MINE, "Host: other"),
        "a content encoding": request(CHAT, body, MINE, "Content-Encoding: br"),
        "a corrupt body": request(CHAT, body, MINE, "Content-Encoding: gzip"),
        "an unknown expectation": request(CHAT, body, MINE, "Expect: x"),
        "HTTP/2": request(CHAT, body, MINE, version="HTTP/2.0"),
        "no such model to look at": request("/v1/models/other", None, MINE),
        "a body too large": request(CHAT, b" " * 70_001, MINE),
        "chunks too large": head(CHAT, MINE, "Transfer-Encoding: chunked") + b"11171\r\n" + b" " * 70_001 + b"\r\n",
        "a header too large": head(CHAT, MINE, "X: " + "x" * 70_000),
    }
    for prompt in REPLICA:
        made[f"replica: {prompt}"] = chat(MINE, content=prompt, stream=prompt.startswith("stream"))
    return made


def replica(call: Call) -> Answer | None:
    """A replica with the fault that the prompt names."""
    for prompt, answer in REPLICA.items():
        if f'"content":"{prompt}"'.encode() in call.body:
            return answer
    return by_default(call)


async def test_connection_after_an_error_serves_the_next_request_or_announces_its_end(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    capture.answer = replica
    policy = rules(
        capture.url, keys={KEY: "acme"}, tier=TIMEOUTS, pool="max_prompt_tokens: 1000, health: {failures: 99}"
    )
    gw = await gateway(policy, max_body_bytes=70_000, max_header_bytes=65536)
    numbers = itertools.count()
    usable = set()

    async def ask(client: Client, data: bytes) -> Response:
        """With a unique id, which the answer must carry."""
        rid = f"id-{next(numbers)}"
        response = await client.ask(data.replace(b"\r\n", f"\r\nX-Request-Id: {rid}\r\n".encode(), 1))
        assert response.headers["x-request-id"] == rid
        return response

    for name, data in requests().items():
        client = await connect(gw.url)
        assert (await ask(client, chat(MINE))).status == 200
        response = await ask(client, data)
        assert 400 <= response.status < 600, name
        assert response.error["message"]
        assert response.reason
        if response.headers.get("connection") == "close":
            assert await client.rest() == b"", name
            continue
        usable.add(name)
        assert (await ask(client, chat(MINE))).status == 200, name
        assert (await ask(client, chat(MINE, stream=True))).whole, name
    # The connection is closed only if the end of the request is in doubt or not awaited.
    given_up = set(requests()) - usable
    assert given_up == {
        *("two keys", "two hosts", "a content encoding", "an unknown expectation", "HTTP/2"),
        *("a body too large", "chunks too large", "a header too large"),
    }


async def test_connection_stays_usable_over_and_under_a_rate_limit(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url, tier="limits: {requests: 2/min}"))
    client = await connect(gw.url)
    statuses = [(await client.ask(chat())).status for _ in range(5)]
    assert statuses == [200, 200, 429, 429, 429]
    assert (await client.ask(request("/health"))).status == 200


async def test_connection_stays_usable_after_a_queue_timeout(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    capture.answer = lambda call: by_default(call) if len(capture.calls) > 1 else None
    gw = await gateway(rules(capture.url, slots=1, queue=1, tier="timeouts: {queue: 100ms}"))
    occupant = await connect(gw.url)
    occupant.send(chat())
    await capture.until(lambda: capture.calls)
    client = await connect(gw.url)
    for _ in range(3):
        response = await client.ask(chat())
        assert (response.status, response.reason) == (504, "queue-timeout")
        assert float(response.headers["retry-after"]) >= 1
    capture.calls[0].send(whole())
    assert (await occupant.response()).status == 200
    assert (await client.ask(chat())).status == 200


async def test_answer_to_garbage_does_not_use_the_id_of_the_last_request(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url))
    for data in (b"\x00garbage\r\n\r\n", b"GET /\x01 HTTP/1.1\r\n\r\n", b"G@T / HTTP/1.1\r\n\r\n"):
        client = await connect(gw.url)
        anthropic = ("x-request-id: the-first", "anthropic-version: 2023-06-01")
        first = await client.ask(request("/v1/messages", b"{}", *anthropic))
        assert (first.status, first.headers["x-request-id"]) == (400, "the-first")
        second = await client.ask(data)
        assert second.status == 400
        assert second.headers["x-request-id"].startswith("tg-")
        assert "type" not in second.json()
        await client.close()


@interpreted
async def test_bug_of_the_gateway_is_a_500(
    gateway: GatewayFactory, capture: Capture, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(*_: object) -> None:
        raise KeyError("a bug")

    gw = await gateway(rules(capture.url))
    monkeypatch.setattr(gw.handler, "check", check)
    client = await connect(gw.url)
    response = await client.ask(chat())
    assert (response.status, response.reason, response.headers["connection"]) == (500, "internal", "close")
    assert "KeyError" not in response.error["message"]
    assert "a bug" not in response.error["message"]
    monkeypatch.undo()
    client = await connect(gw.url)
    assert (await client.ask(chat())).status == 200


async def test_a_stream_that_ends_in_an_error_leaves_its_connection_usable(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url, pool="health: {failures: 100}"))
    client = await connect(gw.url)
    for _ in range(3):
        capture.answer = lambda call: Answer(STREAM_HEAD + token("Hi"), Then.CLOSE)
        response = await client.ask(chat(stream=True))
        assert (response.status, response.whole) == (200, True)
        assert "error" in response.events[-1]
        capture.answer = by_default
        response = await client.ask(chat(stream=True))
        assert (response.status, response.whole) == (200, True)
        assert response.events[-1] == "[DONE]"
