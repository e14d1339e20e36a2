"""Row 19: bad requests never open a breaker; an open one lets a probe through, and recovers."""

from __future__ import annotations

import asyncio
import re
from time import monotonic

import pytest

from gateway.app import Gateway
from gateway.core.snapshot import ReplicaState
from gateway.wire.answers.oddity import Oddity

from .capture import (
    DONE,
    LAST_CHUNK,
    STREAM_HEAD,
    Answer,
    Call,
    Capture,
    Then,
    by_default,
    chunk,
    completion,
    token,
    whole,
)
from .conftest import Connect, EmulatorFactory, GatewayFactory
from .policies import rules
from .raw import Client, Response, chat
from .waiting import until

CLIENTS = 10
REQUESTS = 1000
CHECKED = "health: {failures: 3, interval: 20ms, open: 100s}"
"""A replica that is down is tried again after a health check that passes."""
ERROR = b'{"error":{"message":"it broke","type":"InternalServerError","code":%d}}'
FAILURES = {
    "500": Answer(whole(ERROR % 500, "500 Internal Server Error")),
    "501": Answer(whole(ERROR % 501, "501 Not Implemented")),
    "502": Answer(whole(ERROR % 502, "502 Bad Gateway")),
    "504": Answer(whole(ERROR % 504, "504 Gateway Timeout")),
    "error event": Answer(STREAM_HEAD + chunk(b"data: " + ERROR % 500 + b"\n\n") + LAST_CHUNK),
    "abort event": Answer(STREAM_HEAD + token("Hi") + token("", "abort") + DONE + LAST_CHUNK),
    "cut event stream": Answer(STREAM_HEAD + token("Hi"), Then.RESET),
    "reset": Answer(b"", Then.RESET),
}
"""What bodies of a bad client make engines answer."""


def _states(gw: Gateway) -> list[tuple[ReplicaState, int]]:
    """State and consecutive failures of every replica."""
    (pool,) = gw.controller.snapshot(monotonic()).pools
    return [(replica.state, replica.failures) for replica in pool.replicas]


async def _repeated(client: Client, request: bytes, times: int) -> list[Response]:
    return [await client.ask(request) for _ in range(times)]


async def test_a_thousand_400s_leave_the_breakers_closed(
    gateway: GatewayFactory, emulator: EmulatorFactory, connect: Connect
) -> None:
    replicas = await emulator(replicas=2)
    gw = await gateway(rules(*replicas.urls, pool="health: {failures: 1, interval: 100s}"))
    clients = [await connect(gw.url) for _ in range(CLIENTS)]
    too_long = chat(content="word " * 6000)
    answers = await asyncio.gather(*(_repeated(client, too_long, REQUESTS // CLIENTS) for client in clients))
    errors = [answer.error for some in answers for answer in some]
    assert len(errors) == REQUESTS
    assert {error["code"] for error in errors} == {"context_length_exceeded"}
    assert sum(replica.received_total for replica in replicas.replicas) == REQUESTS, "the gateway refused by itself"
    assert _states(gw) == [(ReplicaState.UP, 0)] * 2
    assert not gw.metrics.upstream_errors
    assert (await clients[0].ask(chat(max_tokens=2))).status == 200


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_answers_with_three_thousand_trailer_fields_leave_the_breaker_closed(
    gateway: GatewayFactory, capture: Capture, connect: Connect, stream: bool
) -> None:
    ends = LAST_CHUNK[:-2] + b"x: y\r\n" * 3000 + b"\r\n"
    chunked = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    streamed = STREAM_HEAD + token("Hi", "stop") + DONE
    said = (streamed if stream else chunked + chunk(completion())) + ends
    capture.answer = lambda call: Answer(said)
    gw = await gateway(rules(capture.url, pool="health: {failures: 1, interval: 100s}"))
    client = await connect(gw.url)
    for _ in range(5):
        answer = await client.ask(chat(stream=stream))
        assert (answer.status, answer.whole) == (200, True)
        assert b'"Hi"' in answer.body
    if not stream:  # a stream has ended at its [DONE], before the trailers
        await until(
            lambda: [n for (_, _, kind), n in gw.metrics.oddities.items() if kind is Oddity.LARGE_TRAILERS] == [5]
        )
    assert _states(gw) == [(ReplicaState.UP, 0)]
    assert not gw.metrics.upstream_errors


STATUSES = {
    "400 Bad Request": 400,
    "401 Unauthorized": 502,
    "403 Forbidden": 502,
    "404 Not Found": 404,
    "405 Method Not Allowed": 502,
    "413 Content Too Large": 413,
    "422 Unprocessable Entity": 400,
    "429 Too Many Requests": 503,
    "503 Service Unavailable": 503,
}
"""Refusals of a replica, and what the client sees of them."""


async def test_client_error_statuses_never_count_as_replica_failures(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url, pool="health: {failures: 1, interval: 100s}"))
    client = await connect(gw.url)
    for status, seen in STATUSES.items():
        capture.answer = lambda call, status=status: Answer(whole(b'{"error":{"message":"no","code":1}}', status))
        for stream in (False, True):
            answers = await _repeated(client, chat(stream=stream), 10)
            assert {answer.status for answer in answers} == {seen}, status
        failed = sum(gw.metrics.upstream_errors.values())
        gw.metrics.upstream_errors.clear()
        assert failed == (20 if seen >= 500 else 0), "what a client did wrong is no failure of the replica"
    assert _states(gw) == [(ReplicaState.UP, 0)]


def _broken(call: Call) -> Answer:
    return Answer(b"HTTP/1.1 200 OK\r\n", Then.RESET)


async def _down(gw: Gateway, capture: Capture) -> None:
    """Fail checks until the replica gets no requests."""
    capture.well = False
    await until(lambda: _states(gw)[0][0] is ReplicaState.DOWN)


async def _half_open(gw: Gateway, capture: Capture) -> None:
    """Checks pass again, but the gateway's own probe does not."""
    await _down(gw, capture)
    capture.well = True
    capture.statuses["/v1/models"] = "503 Service Unavailable"
    await until(lambda: _states(gw)[0][0] is ReplicaState.PROBING)


@pytest.mark.parametrize("kind", [*FAILURES])
async def test_failed_answers_of_the_only_replica_leave_it_in_service(
    gateway: GatewayFactory, capture: Capture, connect: Connect, kind: str
) -> None:
    """Nothing shows whether the replica or the requests are at fault, and there is no other to ask."""
    gw = await gateway(rules(capture.url, keys={"a": "good", "b": "bad"}, pool="health: {failures: 3, interval: 100s}"))
    client = await connect(gw.url)
    for number in range(20):
        capture.answer = lambda call: FAILURES[kind]
        await client.ask(chat("x-api-key: b", content=f"bad {number}", stream="event" in kind))
        capture.answer = by_default
        assert (await client.ask(chat("x-api-key: a"))).status == 200
    assert _states(gw)[0][0] is ReplicaState.UP


@pytest.mark.parametrize("kind", [*FAILURES])
async def test_bodies_that_fail_everywhere_take_no_answer_from_another_tenant(
    gateway: GatewayFactory, capture: Capture, connect: Connect, kind: str
) -> None:
    async with Capture() as second, Capture() as third:
        replicas = (capture, second, third)
        for replica in replicas:
            replica.answer = lambda call: FAILURES[kind] if b"poison" in call.body else by_default(call)
        pool = "health: {failures: 3, interval: 100s}, router: round-robin"
        gw = await gateway(rules(*(r.url for r in replicas), keys={"a": "good", "b": "bad"}, pool=pool))
        client, bad = await connect(gw.url), await connect(gw.url)
        served = 0
        for number in range(50):
            for again in range(3):
                await bad.ask(chat("x-api-key: b", content=f"poison {number} {again}", stream="event" in kind))
            served += (await client.ask(chat("x-api-key: a"))).status == 200
        assert served >= 49
        assert [state for state, _ in _states(gw)] == [ReplicaState.UP] * 3


async def test_replica_that_fails_alone_is_ejected_and_state_says_why(
    gateway: GatewayFactory, capture: Capture, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    async with Capture() as second:
        gw = await gateway(
            rules(capture.url, second.url, pool="health: {failures: 3, interval: 100s}, router: round-robin")
        )
        client = await connect(gw.url)
        for number in range(20):
            assert (await client.ask(chat(content=f"well {number}"))).status == 200
        capture.answer = lambda call: FAILURES["500"]
        failed = 0
        for number in range(60):
            failed += (await client.ask(chat(content=f"broken {number}"))).status != 200
        health = gw.controller.snapshot(monotonic()).pools[0].replicas[0].health
        assert health.out == "failing"
        assert re.match(r"\d x HTTP 500 on /v1/chat/completions, last \d+ s ago", health.last_error)
        assert failed <= 6
        gw.sweeper.log_states()
        assert re.search(r"\d x HTTP 500 on /v1/chat/completions: it failed \d times in a row, its pool 0", caplog.text)


async def test_replica_that_is_down_gets_no_requests(
    gateway: GatewayFactory, capture: Capture, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    gw = await gateway(rules(capture.url, pool=CHECKED))
    client = await connect(gw.url)
    await _down(gw, capture)
    seen = len(capture.calls)
    refused = await client.ask(chat())
    assert (refused.status, refused.error["code"]) == (503, "no_replicas")
    assert int(refused.headers["retry-after"]) >= 1
    assert len(capture.calls) == seen
    gw.sweeper.log_states()
    assert "3 x health check failed: status: answered 503; it gets" in caplog.text


async def test_replica_is_back_without_a_request_by_the_gateways_own_probe(
    gateway: GatewayFactory, capture: Capture
) -> None:
    gw = await gateway(rules(capture.url, pool=CHECKED))
    await _down(gw, capture)
    capture.well = True
    await until(lambda: _states(gw) == [(ReplicaState.UP, 0)])
    assert not capture.calls, "no completion: the policy allows none"


async def test_a_half_open_breaker_recovers(gateway: GatewayFactory, capture: Capture, connect: Connect) -> None:
    gw = await gateway(rules(capture.url, pool=CHECKED))
    clients = [await connect(gw.url) for _ in range(5)]
    await _half_open(gw, capture)

    # A bad request neither closes the breaker nor delays the next try.
    capture.answer = lambda call: Answer(whole(b'{"error":{"message":"no","code":400}}', "400 Bad Request"))
    assert [a.status for a in await _repeated(clients[0], chat(), 20)] == [400] * 20
    assert _states(gw)[0][0] is ReplicaState.PROBING

    # One request at a time: the others wait for its outcome.
    capture.calls.clear()
    capture.answer = lambda call: None
    for client in clients:
        client.send(chat())
    await capture.until(lambda: capture.calls)
    await until(lambda: gw.controller.snapshot(monotonic()).pools[0].queued == 4)
    (probe,) = capture.calls
    capture.answer = by_default
    probe.send(whole())
    probe.finish()
    assert [(await client.response()).status for client in clients] == [200] * 5
    assert _states(gw) == [(ReplicaState.UP, 0)]


async def test_failed_probe_reopens_the_breaker(gateway: GatewayFactory, capture: Capture, connect: Connect) -> None:
    gw = await gateway(rules(capture.url, pool=CHECKED))
    client = await connect(gw.url)
    await _half_open(gw, capture)
    capture.answer = _broken
    for _ in range(3):
        await until(lambda: _states(gw)[0][0] is ReplicaState.PROBING)
        seen = len(capture.calls)
        assert (await client.ask(chat())).status == 502
        assert len(capture.calls) == seen + 1
    capture.answer = by_default
    await until(lambda: _states(gw)[0][0] is ReplicaState.PROBING)
    assert (await client.ask(chat())).status == 200
    assert _states(gw)[0][0] is ReplicaState.UP
