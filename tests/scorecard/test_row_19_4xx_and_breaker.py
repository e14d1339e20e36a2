"""Row 19: bad requests never open a breaker; an open one lets a probe through, and recovers."""

from __future__ import annotations

import asyncio
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
BY_TIME = "health: {failures: 3, interval: 100s, open: 60ms}"
BY_CHECK = "health: {failures: 3, interval: 20ms, open: 100s}"
"""An open breaker tries again after enough time, or after a health check that passes."""


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
    await until(lambda: [n for (_, _, kind), n in gw.metrics.oddities.items() if kind is Oddity.LARGE_TRAILERS] == [5])
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


async def _opened(gw: Gateway, capture: Capture, client: Client) -> None:
    """Break the replica until it gets no requests."""
    capture.answer = _broken
    # A check that passes between two of them resets the count.
    for _ in range(1000):
        assert (await client.ask(chat())).error["code"] == "upstream_truncated"
        if _states(gw)[0][0] is not ReplicaState.UP:
            return
    raise AssertionError("it stays closed")


async def test_an_open_breaker_keeps_requests_away_and_then_asks_for_one_success(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url, pool="health: {failures: 3, interval: 100s, open: 100s}"))
    client = await connect(gw.url)
    await _opened(gw, capture, client)
    seen = len(capture.calls)
    refused = await client.ask(chat())
    assert (refused.status, refused.error["code"]) == (503, "no_replicas")
    assert int(refused.headers["retry-after"]) >= 1
    assert len(capture.calls) == seen


@pytest.mark.parametrize("health", [BY_TIME, BY_CHECK], ids=["by time", "by check"])
async def test_a_half_open_breaker_recovers(
    gateway: GatewayFactory, capture: Capture, connect: Connect, health: str
) -> None:
    gw = await gateway(rules(capture.url, pool=health))
    clients = [await connect(gw.url) for _ in range(5)]
    await _opened(gw, capture, clients[0])
    await until(lambda: _states(gw)[0][0] is ReplicaState.PROBING)

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


@pytest.mark.parametrize("health", [BY_TIME, BY_CHECK], ids=["by time", "by check"])
async def test_failed_probe_reopens_the_breaker(
    gateway: GatewayFactory, capture: Capture, connect: Connect, health: str
) -> None:
    gw = await gateway(rules(capture.url, pool=health))
    client = await connect(gw.url)
    await _opened(gw, capture, client)
    for _ in range(3):
        await until(lambda: _states(gw)[0][0] is ReplicaState.PROBING)
        seen = len(capture.calls)
        assert (await client.ask(chat())).status == 502
        assert len(capture.calls) == seen + 1
    capture.answer = by_default
    await until(lambda: _states(gw)[0][0] is ReplicaState.PROBING)
    assert (await client.ask(chat())).status == 200
    assert _states(gw) == [(ReplicaState.UP, 0)]
