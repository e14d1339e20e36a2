"""Playbooks of replicas: connections that fail, and bytes that are not an answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.core.commands import Dispatch
from gateway.core.results import AttemptOutcome
from gateway.wire.answers.oddity import Oddity
from tests.interpreted import interpreted
from tests.proxy.playbook import (
    CHUNKED,
    DONE,
    HI,
    LAST,
    STOP,
    STREAMED,
    Called,
    ClientIs,
    Do,
    FromClient,
    FromReplica,
    Leaves,
    Odd,
    On,
    Play,
    ReplicaCloses,
    ReplicaIs,
    Step,
    ToClient,
    ToReplica,
    Wait,
    chunk,
    head,
    post,
    sized,
    stream,
    whole,
)

pytestmark = interpreted

ASK = FromClient(post())
SERVED: list[Step] = [ASK, FromReplica(whole()), ToClient(b"hello")]


def _refuses(error: Exception) -> Do:
    return Do(lambda play: play.loop.refuses.update(r1=error))


def _wires(count: int) -> Do:
    def check(play: Play) -> None:
        assert len(play.loop.wires) == count

    return Do(check)


PLAYBOOKS: dict[str, list[Step]] = {
    "replica that cannot be reached is told": [
        _refuses(ConnectionRefusedError()),
        ASK,
        Called("finish 1 unreachable"),
        ToClient(b"HTTP/1.1 502"),
    ],
    "replica that does not accept in time is told": [
        _refuses(TimeoutError()),
        ASK,
        Wait(3.0),
        Called("finish 1 connect-timeout"),
    ],
    "unreachable replica is made good by another": [
        On("finish", Dispatch(1, 2, "r2", 0)),
        _refuses(OSError()),
        ASK,
        FromReplica(whole()),
        ToClient(b"x-tailgate-replica: r2"),
    ],
    "connection that closes without a byte is a reset": [
        ASK,
        ReplicaCloses(error=ConnectionResetError()),
        Called("finish 1 reset"),
        ToClient(b"HTTP/1.1 502"),
    ],
    "answer that breaks off in its head is truncated": [
        ASK,
        FromReplica(b"HTTP/1.1 200 OK\r\ncont"),
        ReplicaCloses(),
        Called("finish 1 truncated"),
    ],
    "answer that breaks off in its body is truncated": [
        ASK,
        FromReplica(whole()[:-5]),
        ReplicaCloses(),
        Called("finish 1 truncated"),
    ],
    "body without a length that is reset is truncated": [
        ASK,
        FromReplica(head("connection: close", kind="application/json") + b"{"),
        ReplicaCloses(error=ConnectionResetError()),
        Called("finish 1 truncated"),
    ],
    "stream without a length that has no end is truncated": [
        FromClient(stream()),
        FromReplica(head("connection: close") + HI),
        ToClient(HI),
        ReplicaCloses(),
        Called("finish 1 truncated"),
        ToClient(b'"error"', LAST),
    ],
    "stream without a length that has its end is complete": [
        FromClient(stream()),
        FromReplica(head("connection: close") + HI + STOP + DONE),
        ReplicaCloses(),
        Called("finish 1 complete"),
        ToClient(HI, STOP, DONE, LAST),
    ],
    "stream that ends without a finish reason is unreadable": [
        FromClient(stream()),
        FromReplica(CHUNKED + chunk(HI) + LAST),
        Called("finish 1 unreadable"),
        ToClient(HI, b'"error"', LAST),
        Odd(Oddity.NO_END),
    ],
    "interim answers before the head are skipped": [
        ASK,
        FromReplica(b"HTTP/1.1 100 Continue\r\n\r\n"),
        FromReplica(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + whole()),
        ToClient(b"200 OK", b"hello"),
    ],
    "answer that changes protocol is truncated": [
        ASK,
        FromReplica(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n"),
        Called("finish 1 truncated"),
        ReplicaIs("aborted"),
    ],
    "answer that is not HTTP is truncated": [
        ASK,
        FromReplica(b"SSH-2.0-OpenSSH\r\n"),
        Called("finish 1 truncated"),
        ReplicaIs("aborted"),
    ],
    "head in pieces is read": [
        ASK,
        *[FromReplica(bytes([byte])) for byte in whole()],
        ToClient(b"hello"),
    ],
    "head that is too large is unreadable and counted": [
        ASK,
        FromReplica(b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000),
        Called("finish 1 unreadable"),
        Odd(Oddity.LARGE_HEAD),
    ],
    "head with too large a field is unreadable": [
        ASK,
        FromReplica(head("x: " + "y" * 200_000) + b"{}"),
        Called("finish 1 unreadable"),
    ],
    "chunk size that is no number is truncated": [
        FromClient(stream()),
        FromReplica(CHUNKED + b"zz\r\n"),
        Called("finish 1 truncated"),
    ],
    "trailers after the last chunk are dropped": [
        FromClient(stream()),
        FromReplica(STREAMED[:-2] + b"x-trailer: a\r\n\r\n"),
        ToClient(HI, DONE, LAST),
        ReplicaIs("open"),
    ],
    "trailers without end are counted and the connection closed": [
        FromClient(stream()),
        FromReplica(STREAMED[:-2] + b"x: " + b"y" * 200_000),
        ToClient(HI, DONE, LAST),
        Odd(Oddity.LARGE_TRAILERS),
        ReplicaIs("aborted"),
    ],
    "bytes behind the answer close the connection": [
        ASK,
        FromReplica(whole() + b"x"),
        ToClient(b"hello"),
        ReplicaIs("aborted"),
    ],
    "bytes behind the last chunk close the connection": [
        FromClient(stream()),
        FromReplica(STREAMED + b"x"),
        ToClient(DONE, LAST),
        ReplicaIs("aborted"),
    ],
    "bytes on an idle connection close it and are counted": [
        *SERVED,
        FromReplica(b"HTTP/1.1 408 Request Timeout\r\n\r\n"),
        ReplicaIs("aborted"),
        Odd(Oddity.NOT_IDLE),
    ],
    "connection: close is not used again": [
        ASK,
        FromReplica(whole("a", "200 OK", "connection: close")),
        ToClient(b'"content": "a"'),
        ReplicaIs("aborted"),
        ASK,
        _wires(2),
        FromReplica(whole(), at=2),
    ],
    "connection that was idle for long is not used again": [
        *SERVED,
        Wait(4.9),
        ASK,
        _wires(2),
        FromReplica(whole(), at=2),
    ],
    "connection that closes while idle is forgotten": [
        *SERVED,
        ReplicaCloses(),
        ASK,
        _wires(2),
        FromReplica(whole(), at=2),
    ],
    "connection that closes as it is used again is told as such, and the next attempt gets a new one": [
        *SERVED,
        ASK,
        On("finish", Dispatch(2, 3, "r1", 0)),
        ReplicaCloses(),
        Called("finish 2 idle-closed"),
        ToReplica(b"POST /v1/chat/completions", at=2),
        FromReplica(whole("again"), at=2),
        ToClient(b"again"),
    ],
    "connection that closes some time after it was used again is a reset": [
        *SERVED,
        ASK,
        Wait(0.02),
        ReplicaCloses(),
        Called("finish 2 reset"),
        ToClient(b"HTTP/1.1 502"),
    ],
    "answer without a body is passed on and counted as odd": [
        ASK,
        FromReplica(sized("")),
        Called("finish 1 complete"),
        ToClient(b"HTTP/1.1 200", b"content-length: 0"),
        Odd(Oddity.UNREADABLE_ANSWER),
    ],
    "stream without an event is unreadable": [
        FromClient(stream()),
        FromReplica(CHUNKED + LAST),
        Called("finish 1 unreadable"),
        ToClient(b"HTTP/1.1 502"),
    ],
    "stream of comments first is a stream": [
        FromClient(stream()),
        FromReplica(CHUNKED + chunk(b":")),
        FromReplica(chunk(b" hello\n\n") + chunk(HI) + chunk(STOP) + chunk(DONE) + LAST),
        ToClient(HI, DONE, LAST),
    ],
    "whole answer to a stream is passed on as it is": [FromClient(stream()), FromReplica(whole()), ToClient(b"hello")],
    "engine that gave up inside a whole answer is truncated": [
        ASK,
        FromReplica(sized('{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"abort"}]}')),
        Called("finish 1 truncated"),
    ],
    "engine's error inside an answer of two hundred is an error": [
        ASK,
        FromReplica(sized('{"error":{"message":"oops","code":500}}')),
        Called("finish 1 failed"),
        ToClient(b"HTTP/1.1 502", b"oops"),
    ],
    "answer without choices is counted as odd": [
        ASK,
        FromReplica(sized('{"id":"c","object":"chat.completion","usage":{}}')),
        Odd(Oddity.UNREADABLE_ANSWER),
    ],
    "large error is read to a limit": [
        ASK,
        FromReplica(head("content-length: 200000", status="400 Bad") + b"x" * 100_000),
        FromReplica(b"x" * 100_000),
        Called("finish 1 rejected"),
        ToClient(b"HTTP/1.1 400"),
    ],
    "replica that left the policy ends its calls and is closed": [
        ASK,
        Do(lambda play: play.upstreams.configure([])),
        ReplicaIs("open"),
        FromReplica(whole()),
        ToClient(b"hello"),
        Wait(1.0),
        ReplicaIs("aborted"),
    ],
    "policy with the same replicas keeps their connections": [
        *SERVED,
        Do(lambda play: play.upstreams.configure(play.handler.policy.pools.values())),
        ASK,
        _wires(1),
        FromReplica(whole()),
        ToClient(b"hello"),
    ],
    "head that comes after the client has left closes nothing twice": [
        ASK,
        Leaves,
        FromReplica(whole()),
        ClientIs("closed"),
        ReplicaIs("aborted"),
    ],
}


@pytest.mark.parametrize("name", PLAYBOOKS)
def test_playbook_of_a_replica_sends_the_expected_bytes(name: str, play: Callable[..., Play]) -> None:
    play()(*PLAYBOOKS[name])


LINES: dict[str, tuple[list[Step], str]] = {
    "replica that cannot be reached": (
        [_refuses(ConnectionRefusedError("nobody listens")), ASK],
        "replica r1 cannot be reached: nobody listens; the request goes to another replica, or fails: "
        "check that an engine listens at http://r1:8000",
    ),
    "answer that is not HTTP": (
        [ASK, FromReplica(b"SSH-2.0-OpenSSH\r\n")],
        "replica r1 sent an answer that is not HTTP: the answer does not begin with HTTP/; the request goes to "
        "another replica, or fails: check that an engine listens at http://r1:8000",
    ),
    "stream that breaks off": (
        [FromClient(stream()), FromReplica(head("connection: close") + HI), ReplicaCloses()],
        "replica r1 broke off an answer after 1 tokens: the connection was closed; the request goes to another "
        "replica, or its client gets an error: see the engine's log",
    ),
}


@pytest.mark.parametrize("name", LINES)
def test_failure_log_line_says_replica_event_cause_and_next_step(
    name: str, play: Callable[..., Play], caplog: pytest.LogCaptureFixture
) -> None:
    steps, line = LINES[name]
    caplog.set_level("INFO", "tailgate.upstream")
    play()(*steps)
    assert [record.getMessage() for record in caplog.records if record.name == "tailgate.upstream"] == [line]


def test_answers_that_are_not_http_get_one_log_line_a_minute(
    play: Callable[..., Play], caplog: pytest.LogCaptureFixture
) -> None:
    played = play()
    for wait_s in (0.0, 0.0, 60.0):
        played(Wait(wait_s))
        played.client = played.connect()
        played(ASK)
        played(FromReplica(b"SSH-2.0-OpenSSH\r\n", at=len(played.loop.wires)))
    lines = [record.getMessage() for record in caplog.records if record.name == "tailgate.upstream"]
    assert [line.partition("listens at ")[2] for line in lines] == [
        "http://r1:8000",
        "http://r1:8000 (1 more like it since the last line)",
    ]


def test_failures_are_counted_by_replica(play: Callable[..., Play]) -> None:
    played = play()(ASK, ReplicaCloses(error=ConnectionResetError()))
    assert played.meter.errors == [("r1", AttemptOutcome.RESET)]
