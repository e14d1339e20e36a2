"""Playbooks of answers: from a replica's bytes to the client's."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from gateway.core.commands import Cancel, Commit, Cut, Dispatch, Refuse
from gateway.core.deadlines import PROGRESS_EVERY_S
from gateway.core.policy import Caps, Limits, Policy, RepetitionSpec
from gateway.core.results import AttemptOutcome, HedgeResult, Reason
from gateway.wire.answers.oddity import Oddity
from gateway.wire.http.framing import ChunkReader
from tests.core.made import policy, pool, tier
from tests.interpreted import interpreted
from tests.proxy.playbook import (
    CHUNKED,
    DONE,
    HI,
    LAST,
    ROLE,
    STOP,
    STREAMED,
    THERE,
    Called,
    ClientIs,
    Do,
    Exactly,
    FromClient,
    FromReplica,
    Leaves,
    Now,
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
    delta,
    head,
    post,
    sized,
    stream,
    whole,
)

pytestmark = interpreted

TWO = (Dispatch(1, 1, "r1", 0), Dispatch(1, 2, "r2", 0))
UNSIZED = head("connection: close")


def rules(**more: Any) -> Policy:
    return policy(pool("p", "r1", "r2"), tier("std", **more))


COMMENTS = rules(keep_alive_s=8.0)
ASSEMBLED = rules(caps=Caps(aggregate=True))

PLAYBOOKS: dict[str, tuple[Policy | None, list[Step]]] = {
    "whole answer is passed on with its length": (
        None,
        [
            FromClient(post()),
            ToReplica(b"POST /v1/chat/completions HTTP/1.1\r\n", b"\r\n\r\n{", b'"messages"'),
            Called("arrive 1", "sent 1"),
            FromReplica(whole()),
            ToClient(b"HTTP/1.1 200 OK\r\n", b"x-tailgate-replica: r1", b"x-request-id: id-1", b"hello"),
            Called("finish 1 complete"),
            ClientIs("open"),
        ],
    ),
    "whole answer in pieces is shown once it is whole": (
        None,
        [FromClient(post()), FromReplica(whole()[:60]), ToClient(), FromReplica(whole()[60:]), ToClient(b"hello")],
    ),
    "whole answer in chunks gets a length": (
        None,
        [
            FromClient(post()),
            FromReplica(head("transfer-encoding: chunked", kind="application/json")),
            FromReplica(chunk(whole().partition(b"\r\n\r\n")[2]) + LAST),
            ToClient(b"content-length: ", b"hello"),
        ],
    ),
    "whole answer without a length ends with its connection": (
        None,
        [
            FromClient(post()),
            FromReplica(head("connection: close", kind="application/json") + whole().partition(b"\r\n\r\n")[2]),
            ToClient(),
            ReplicaCloses(),
            ToClient(b"hello"),
        ],
    ),
    "stream in one read is passed on to its end": (
        None,
        [FromClient(stream()), FromReplica(STREAMED), ToClient(b"text/event-stream", HI, STOP, DONE, LAST)],
    ),
    "stream head is held until the first content": (
        None,
        [
            FromClient(stream()),
            FromReplica(CHUNKED + chunk(ROLE)),
            ToClient(),
            FromReplica(chunk(HI)),
            Called("arrive 1", "sent 1", "first_token 1"),
            ToClient(b"200 OK", b"transfer-encoding: chunked\r\n\r\n", chunk(ROLE), chunk(HI)),
            FromReplica(chunk(THERE)),
            Exactly(chunk(THERE)),
            FromReplica(chunk(STOP) + chunk(DONE) + LAST),
            Exactly(chunk(STOP), chunk(DONE), LAST),
        ],
    ),
    "plain chunks are passed on as they came, and progress is told": (
        None,
        [
            FromClient(stream()),
            FromReplica(CHUNKED + chunk(HI)),
            ToClient(HI),
            FromReplica(chunk(THERE)),
            Exactly(chunk(THERE)),
            Wait(PROGRESS_EVERY_S),
            Called("progress 1"),
            FromReplica(chunk(STOP) + chunk(DONE) + LAST),
        ],
    ),
    "chunk split over two reads is passed on whole": (
        None,
        [
            FromClient(stream()),
            FromReplica(CHUNKED + chunk(HI)),
            ToClient(HI),
            FromReplica(chunk(THERE)[:20]),
            ToClient(),
            FromReplica(chunk(THERE)[20:]),
            ToClient(THERE),
            FromReplica(chunk(STOP) + chunk(DONE) + LAST),
        ],
    ),
    "event split over two chunks is passed on whole": (
        None,
        [
            FromClient(stream()),
            FromReplica(CHUNKED + chunk(HI)),
            ToClient(HI),
            FromReplica(chunk(THERE[:-2])),
            ToClient(),
            FromReplica(chunk(THERE[-2:])),
            Exactly(chunk(THERE)),
            FromReplica(chunk(STOP) + chunk(DONE) + LAST),
            Exactly(chunk(STOP), chunk(DONE), LAST),
        ],
    ),
    "event whose second chunk looks like a plain event is passed on whole": (
        None,
        [
            FromClient(stream()),
            FromReplica(CHUNKED + chunk(HI)),
            ToClient(HI),
            FromReplica(chunk(b"event: message\n")),
            ToClient(),
            FromReplica(chunk(THERE)),
            Exactly(chunk(b"event: message\n" + THERE)),
            FromReplica(chunk(THERE)),
            Exactly(chunk(THERE)),
            FromReplica(chunk(STOP) + chunk(DONE) + LAST),
        ],
    ),
    "plain event after [DONE] is dropped": (
        None,
        [
            FromClient(stream()),
            FromReplica(CHUNKED + chunk(HI)),
            ToClient(HI),
            FromReplica(chunk(STOP) + chunk(DONE)),
            Exactly(chunk(STOP), chunk(DONE), LAST),
            FromReplica(chunk(THERE) + LAST),
            ToClient(),
        ],
    ),
    "plain event after [DONE] in the first read is dropped": (
        None,
        [
            FromClient(stream()),
            FromReplica(CHUNKED + chunk(HI) + chunk(STOP) + chunk(DONE)),
            ToClient(HI, STOP, DONE, LAST),
            FromReplica(chunk(THERE) + LAST),
            ToClient(),
        ],
    ),
    "stream without [DONE] is complete with its finish reason": (
        None,
        [FromClient(stream()), FromReplica(CHUNKED + chunk(HI) + chunk(STOP) + LAST), ToClient(HI, STOP, LAST)],
    ),
    "last event without its blank line is mended": (
        None,
        [FromClient(stream()), FromReplica(CHUNKED + chunk(HI) + chunk(STOP.rstrip()) + LAST), ToClient(STOP, LAST)],
    ),
    "half an event at the end is dropped and counted": (
        None,
        [
            FromClient(stream()),
            FromReplica(CHUNKED + chunk(HI) + chunk(STOP) + chunk(b'data: {"id') + LAST),
            ToClient(STOP, LAST),
            Odd(Oddity.HALF_EVENT),
        ],
    ),
    "stream to an HTTP/1.0 client has no chunks and closes": (
        None,
        [
            FromClient(post(version="1.0", stream=True)),
            FromReplica(CHUNKED + chunk(HI)),
            ToClient(b"\r\n\r\n" + HI),
            FromReplica(chunk(THERE)),
            Exactly(THERE),
            FromReplica(chunk(STOP) + chunk(DONE) + LAST),
            Exactly(STOP, DONE),
            ClientIs("closed"),
        ],
    ),
    "usage that the client did not ask for is kept from it": (
        None,
        [
            FromClient(stream()),
            ToReplica(b'"stream_options"'),
            FromReplica(CHUNKED + chunk(HI) + chunk(STOP)),
            ToClient(HI, STOP),
            FromReplica(chunk(b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}\n\n')),
            ToClient(),
            FromReplica(chunk(DONE) + LAST),
            Exactly(chunk(DONE), LAST),
        ],
    ),
    "another model name is replaced by the asked one in a stream": (
        None,
        [
            FromClient(stream()),
            FromReplica(CHUNKED + chunk(delta("Hi", model="other"))),
            ToClient(HI),
            FromReplica(chunk(delta(" there", model="other"))),
            Exactly(chunk(THERE)),
            FromReplica(chunk(delta("", "stop", model="other")) + chunk(DONE) + LAST),
            ToClient(STOP),
        ],
    ),
    "another model name is replaced in a whole answer": (
        None,
        [FromClient(post()), FromReplica(whole(model="other")), ToClient(b'"model": "m"')],
    ),
    "comments begin a stream that is silent for long, and the answer follows": (
        COMMENTS,
        [
            FromClient(stream()),
            Wait(9.0),
            ToClient(b"200 OK", b": keep-alive\n\n"),
            FromReplica(CHUNKED + chunk(HI)),
            Exactly(chunk(HI)),
            Wait(9.0),
            ToClient(b": keep-alive\n\n"),
            FromReplica(chunk(STOP) + chunk(DONE) + LAST),
            ToClient(STOP, LAST),
        ],
    ),
    "error after a comment is an event and the connection stays": (
        COMMENTS,
        [
            FromClient(stream()),
            Wait(9.0),
            ToClient(b": keep-alive\n\n"),
            Now(Refuse(1, Reason.TTFT_TIMEOUT), Cancel(1, 1), 1),
            ToClient(b"data: ", b'"error"', LAST),
            ClientIs("open"),
            ReplicaIs("aborted"),
        ],
    ),
    "engine's error after a comment is an event": (
        COMMENTS,
        [
            FromClient(stream()),
            Wait(9.0),
            ToClient(b": keep-alive\n\n"),
            FromReplica(sized('{"error":{"message":"too long"}}', "400 Bad Request")),
            ToClient(b"data: ", b"too long", LAST),
        ],
    ),
    "whole answer after a comment comes as events": (
        COMMENTS,
        [FromClient(stream()), Wait(9.0), FromReplica(whole()), ToClient(b"keep-alive", b"data: ", b"hello", LAST)],
    ),
    "comment to an HTTP/1.0 client has no chunk": (
        COMMENTS,
        [
            FromClient(post(version="1.0", stream=True)),
            Wait(9.0),
            ToClient(b"\r\n\r\n: keep-alive\n\n"),
            FromReplica(CHUNKED + chunk(HI) + chunk(STOP) + chunk(DONE) + LAST),
            Exactly(HI, STOP, DONE),
        ],
    ),
    "attempt that fails before commit is retried without the client's knowing": (
        None,
        [
            On("finish", Dispatch(1, 2, "r2", 0)),
            FromClient(stream()),
            FromReplica(CHUNKED + chunk(ROLE)),
            ReplicaCloses(error=ConnectionResetError()),
            Called("finish 1 truncated"),
            ToClient(),
            ToReplica(b"POST /v1/chat/completions", at=2),
            FromReplica(STREAMED, at=2),
            ToClient(b"x-tailgate-replica: r2", HI, DONE, LAST),
        ],
    ),
    "hedge that speaks first wins and the other is cancelled": (
        None,
        [
            On("arrive", *TWO),
            On("first_token", Commit(1, 2, HedgeResult.WON), Cancel(1, 1)),
            FromClient(stream()),
            FromReplica(CHUNKED + chunk(HI), at=2),
            ToClient(b"x-tailgate-replica: r2", b"x-tailgate-hedged: won", HI),
            ReplicaIs("aborted", at=1),
            Called("finish 1 cancelled"),
            FromReplica(chunk(STOP) + chunk(DONE) + LAST, at=2),
            ToClient(STOP, LAST),
        ],
    ),
    "hedge that is late loses and is cancelled": (
        None,
        [
            On("arrive", *TWO),
            On("first_token", Commit(1, 1, HedgeResult.LOST), Cancel(1, 2)),
            FromClient(stream()),
            FromReplica(CHUNKED + chunk(HI), at=1),
            ToClient(b"x-tailgate-replica: r1", b"x-tailgate-hedged: lost", HI),
            ReplicaIs("aborted", at=2),
            FromReplica(chunk(STOP) + chunk(DONE) + LAST, at=1),
            ToClient(STOP, LAST),
        ],
    ),
    "stream that breaks off after commit ends in an error event": (
        None,
        [
            FromClient(stream()),
            FromReplica(CHUNKED + chunk(HI)),
            ToClient(HI),
            ReplicaCloses(),
            Called("finish 1 truncated"),
            ToClient(b"data: ", b'"error"', LAST),
            ClientIs("open"),
        ],
    ),
    "engine that fails inside a committed stream ends it with its words": (
        None,
        [
            FromClient(stream()),
            FromReplica(CHUNKED + chunk(HI)),
            ToClient(HI),
            FromReplica(chunk(b'data: {"error":{"message":"out of memory","type":"server_error","code":500}}\n\n')),
            ToClient(b'"error"', b"out of memory", LAST),
            ReplicaIs("aborted"),
        ],
    ),
    "engine that fails before any content is an error with a status": (
        None,
        [
            FromClient(stream()),
            FromReplica(CHUNKED + chunk(b'data: {"error":{"message":"oops","type":"server_error","code":500}}\n\n')),
            ToClient(b"HTTP/1.1 502", b"oops"),
            Called("finish 1 failed"),
        ],
    ),
    "engine that rejects inside a stream before commit is a 400": (
        None,
        [
            FromClient(stream()),
            FromReplica(CHUNKED + chunk(b'data: {"error":{"message":"bad","type":"BadRequestError","code":400}}\n\n')),
            Called("finish 1 rejected"),
            ToClient(b"HTTP/1.1 400", b"bad"),
        ],
    ),
    "cut after commit ends the stream as incomplete": (
        None,
        [
            FromClient(stream()),
            FromReplica(CHUNKED + chunk(HI)),
            ToClient(HI),
            Now(Cut(1, Reason.TOTAL_TIMEOUT, 3), Cancel(1, 1), 1),
            ToClient(b'"finish_reason":"length"', DONE, LAST),
            ReplicaIs("aborted"),
            ClientIs("open"),
        ],
    ),
    "error inside an event too long to hold begins a new one": (
        None,
        [
            FromClient(stream()),
            FromReplica(CHUNKED + chunk(HI)),
            FromReplica(chunk(b'data: {"choices":[{"index":0,"delta":{"content":"' + b"x" * 600_000)),
            FromReplica(chunk(b"x" * 600_000)),
            FromReplica(chunk(b"xxx")),
            ToClient(HI, b"xxx"),
            Now(Refuse(1, Reason.IDLE_TIMEOUT), Cancel(1, 1), 1),
            ToClient(b"\n\n", b'"error"', LAST),
        ],
    ),
    "cut to an HTTP/1.0 client has no last chunk": (
        None,
        [
            FromClient(post(version="1.0", stream=True)),
            FromReplica(CHUNKED + chunk(HI)),
            ToClient(HI),
            Now(Cut(1, Reason.TOTAL_TIMEOUT, 3), Cancel(1, 1), 1),
            ToClient(b'"finish_reason":"length"', DONE),
            ClientIs("closed"),
        ],
    ),
    "stream is put together for a client that wants none": (
        ASSEMBLED,
        [
            FromClient(post()),
            ToReplica(b'"stream":true'),
            FromReplica(STREAMED),
            ToClient(b"application/json", b"content-length: ", b'"content":"Hi"'),
        ],
    ),
    "stream that is put together is cut short as a whole answer": (
        ASSEMBLED,
        [
            FromClient(post()),
            FromReplica(CHUNKED + chunk(ROLE) + chunk(HI)),
            ToClient(),
            Now(Cut(1, Reason.TOTAL_TIMEOUT, 3), Cancel(1, 1), 1),
            ToClient(b"200 OK", b'"content":"Hi"'),
        ],
    ),
    "stream that cannot be put together is unreadable": (
        ASSEMBLED,
        [
            FromClient(post()),
            FromReplica(CHUNKED + chunk(ROLE) + chunk(b"data: {nonsense\n\n") + chunk(DONE) + LAST),
            ToClient(b"HTTP/1.1 502"),
        ],
    ),
    "refusal by the controller says when to come back": (
        None,
        [
            On("arrive", Refuse(1, Reason.QUEUE_FULL, 2.5), 1),
            FromClient(stream()),
            ToClient(b"HTTP/1.1 429", b"retry-after: 3\r\nretry-after-ms: 2500"),
            ClientIs("open"),
        ],
    ),
    "limits of the tenant are told with the answer": (
        rules(limits=Limits(requests_per_min=60.0)),
        [
            Do(lambda play: setattr(play.controller, "remaining", ((60.0, 59.0, 1.0), None))),
            FromClient(post()),
            FromReplica(whole()),
            ToClient(b"x-ratelimit-remaining-requests: 59"),
        ],
    ),
    "replica that the policy has no more is unreachable": (
        None,
        [
            On("arrive", Dispatch(1, 1, "gone", 0)),
            FromClient(post()),
            Called("finish 1 unreachable"),
            ToClient(b"HTTP/1.1 502"),
        ],
    ),
    "output cap that was lowered is told": (
        None,
        [
            On("arrive", Dispatch(1, 1, "r1", 7, degraded=True)),
            FromClient(post(max_tokens=20)),
            ToReplica(b'"max_tokens":7'),
            FromReplica(whole()),
            ToClient(b"x-tailgate-max-tokens: 7", b"x-tailgate-degraded: max_tokens"),
        ],
    ),
    "fields that were dropped are told": (
        None,
        [FromClient(post(frobnicate=1)), FromReplica(whole()), ToClient(b"x-tailgate-changed: frobnicate")],
    ),
    "answer that goes in circles is told to the controller": (
        rules(repetition=RepetitionSpec(50, 3)),
        [
            FromClient(stream()),
            FromReplica(CHUNKED + chunk(HI)),
            *[FromReplica(chunk(delta("round and round we go, "))) for _ in range(20)],
            Called("repeats 1"),
            FromReplica(chunk(STOP) + chunk(DONE) + LAST),
        ],
    ),
    "replica that refuses stream_options is asked again without": (
        None,
        [
            FromClient(stream()),
            ToReplica(b"stream_options"),
            FromReplica(sized('{"error":{"message":"stream_options: unknown field"}}', "400 Bad Request")),
            Do(lambda play: _without(play.loop.wires[0].out)),
            FromReplica(STREAMED),
            ToClient(HI, DONE, LAST),
            FromClient(stream()),
            Do(lambda play: _without(play.loop.wires[0].out)),
            FromReplica(STREAMED),
            ToClient(HI, DONE, LAST),
        ],
    ),
    "whole answer that is too large to hold is committed early": (
        None,
        [
            FromClient(post()),
            FromReplica(head("content-length: 1100055", kind="application/json") + b'{"id":"c","model":"other","x":"'),
            ToClient(),
            FromReplica(b"x" * 1_100_000),
            Called("full 1"),
            ToClient(b"transfer-encoding: chunked", b'"model":"m"', b"xxx"),
            FromReplica(b'","choices":[{}]}' + b" " * 7),
            ToClient(b'","choices":[{}]}', LAST),
        ],
    ),
    "committed whole answer that breaks off closes the client": (
        None,
        [
            FromClient(post()),
            FromReplica(head("content-length: 1200000", kind="application/json") + b"{" + b"x" * 1_100_000),
            ToClient(b"xxx"),
            ReplicaCloses(),
            ClientIs("aborted"),
        ],
    ),
    "stream without content that is too large to hold is committed early": (
        None,
        [
            FromClient(stream()),
            FromReplica(CHUNKED),
            *[FromReplica(chunk(b": " + b"c" * 200_000 + b"\n\n")) for _ in range(6)],
            Called("full 1"),
            ToClient(b"ccc"),
            FromReplica(chunk(HI)),
            Called("first_token 1"),
            ToClient(HI),
            FromReplica(chunk(STOP) + chunk(DONE) + LAST),
        ],
    ),
    "answer of two hundred that is no JSON is passed on and counted": (
        None,
        [
            FromClient(post()),
            FromReplica(sized("not json")),
            ToClient(b"200 OK", b"not json"),
            Odd(Oddity.UNREADABLE_ANSWER),
        ],
    ),
    "bug during a command is a 500 and the rest of the commands is done": (
        None,
        [
            On("arrive", Dispatch(1, 1, "r1", 0)),
            FromClient(post()),
            Now(Commit(1, 99)),
            ToClient(b"HTTP/1.1 500"),
            ReplicaIs("aborted"),
            Do(lambda play: play.meter.bugs.clear()),
        ],
    ),
    "two clients are answered on one connection to the replica, one after the other": (
        None,
        [
            FromClient(post()),
            FromReplica(whole()),
            ToClient(b"hello"),
            FromClient(post()),
            ToReplica(b"POST", b"POST"),
            FromReplica(whole("again")),
            ToClient(b"again"),
            Do(lambda play: _is(len(play.loop.wires), 1)),
        ],
    ),
    "client that leaves a hedged request closes both attempts": (
        None,
        [
            On("arrive", *TWO),
            FromClient(stream()),
            Leaves,
            Called("leave 1 client-gone", "finish 1 cancelled", "finish 2 cancelled"),
            ReplicaIs("aborted", at=1),
            ReplicaIs("aborted", at=2),
        ],
    ),
}


def _is(given: object, wanted: object) -> None:
    assert given == wanted


def _without(out: bytes) -> None:
    assert b"stream_options" not in out.rpartition(b"POST /v1")[2]


@pytest.mark.parametrize("name", PLAYBOOKS)
def test_playbook_of_an_answer_sends_the_expected_bytes(name: str, play: Callable[..., Play]) -> None:
    rules, steps = PLAYBOOKS[name]
    play(rules)(*steps)


REPRS: dict[str, tuple[list[Step], str]] = {
    "that waits": ([FromClient(stream())], "nothing shown; .*Attempt 1.*at r1: waiting.*request sent"),
    "in a head": ([FromClient(stream()), FromReplica(b"HTTP/1.1 2")], "waiting.*in a head, 10 bytes"),
    "that is held": (
        [FromClient(stream()), FromReplica(CHUNKED + chunk(ROLE))],
        "held, status 200, 0 tokens.*in chunks",
    ),
    "that is committed": (
        [FromClient(stream()), FromReplica(CHUNKED + chunk(HI))],
        "committed to attempt 1.*committed, status 200, 1 tokens.*in chunks",
    ),
    "with a length": (
        [FromClient(post()), FromReplica(whole()[:-7])],
        "nothing shown.*held, status 200.*in a body, 7 bytes to come",
    ),
}


@pytest.mark.parametrize("name", REPRS)
def test_repr_says_the_state_of_an_answer(name: str, play: Callable[..., Play]) -> None:
    steps, said = REPRS[name]
    played = play()(*steps)
    (exchange,) = played.exchanges
    shown = f"{exchange!r} {played.loop.wires[0].protocol!r}"
    assert re.search(said, shown), shown
    assert "(id-1) /v1/chat/completions of anonymous in std" in shown


def test_repr_says_that_a_connection_is_idle_or_closed(play: Callable[..., Play]) -> None:
    played = play()(FromClient(post()), FromReplica(whole()))
    assert repr(played.loop.wires[0].protocol) == "<UpstreamConnection to r1: idle, for None>"
    played(ReplicaCloses())
    assert repr(played.loop.wires[0].protocol) == "<UpstreamConnection to r1: closed, for None>"


@pytest.mark.parametrize("cuts_chunks", [True, False], ids=["reads cut chunks", "reads are whole chunks"])
def test_streamed_payload_does_not_depend_on_how_the_replica_cuts_chunks_and_reads(
    play: Callable[..., Play], cuts_chunks: bool
) -> None:
    random = Random(1)
    said = b"".join([ROLE, HI, *[THERE] * 4, b"event: message\n" + THERE, *[THERE] * 4, STOP, DONE])
    for replica in range(1, 101):
        framed = [chunk(piece) for piece in _cut(said, random)]
        reads = _cut(b"".join(framed), random) if cuts_chunks else framed
        played = play()(FromClient(stream()), *(FromReplica(data, replica) for data in (CHUNKED, *reads, LAST)))
        _, _, body = played.client.out.partition(b"\r\n\r\n")
        assert b"".join(ChunkReader().feed(body)) == said, reads


def _cut(data: bytes, random: Random) -> list[bytes]:
    """Pieces of `data`: mostly whole events, some cut at any place."""
    ends = [match.end() for match in re.finditer(b"\n\n", data)]
    places = {place for place in ends if random.random() < 0.8} | {random.randrange(1, len(data)) for _ in range(5)}
    return [data[begin:end] for begin, end in pairwise(sorted({0, *places, len(data)}))]


def _progress(played: Play) -> int:
    return played.controller.calls.count("progress 1")


def test_progress_is_reported_once_per_interval_in_which_chunks_arrived(play: Callable[..., Play]) -> None:
    played = play()(FromClient(stream()), FromReplica(CHUNKED + chunk(HI)), Wait(10 * PROGRESS_EVERY_S))
    assert not _progress(played)  # the first token alone is no progress
    played(FromReplica(chunk(THERE)), FromReplica(chunk(THERE)), Wait(0.9 * PROGRESS_EVERY_S))
    assert not _progress(played)
    played(FromReplica(chunk(THERE)), Wait(0.1 * PROGRESS_EVERY_S))
    assert _progress(played) == 1
    played(Wait(10 * PROGRESS_EVERY_S))
    assert _progress(played) == 1
    played(FromReplica(chunk(THERE)[:20]), FromReplica(chunk(THERE)[20:]), Wait(PROGRESS_EVERY_S))
    assert _progress(played) == 2


def test_closed_driver_reports_no_progress(play: Callable[..., Play]) -> None:
    played = play()(FromClient(stream()), FromReplica(CHUNKED + chunk(HI)), FromReplica(chunk(THERE)))
    played.driver.close()
    played(Wait(PROGRESS_EVERY_S))
    assert not _progress(played)


def test_progress_of_an_ended_answer_is_not_reported(play: Callable[..., Play]) -> None:
    played = play()(FromClient(stream()), FromReplica(CHUNKED + chunk(HI)), FromReplica(chunk(THERE)))
    played(FromReplica(chunk(STOP) + chunk(DONE) + LAST), Wait(PROGRESS_EVERY_S))
    assert played.controller.calls[-1] == "finish 1 complete"
    assert not _progress(played)


@pytest.mark.parametrize("answer", [whole(), sized("{}", "400 Bad Request")])
def test_hedge_that_cannot_connect_while_an_answer_waits_for_its_commit_changes_no_time(
    answer: bytes, play: Callable[..., Play]
) -> None:
    play()(
        Do(lambda play: play.loop.refuses.update(r2=TimeoutError())),
        On("arrive", *TWO),
        On("finish"),
        On("finish"),
        FromClient(post()),
        FromReplica(answer),
        Wait(3.0),
        Now(Commit(1, 1, HedgeResult.LOST), 1),
        ToClient(b"server-timing: queue;dur=0.00, replica;dur=3000.00"),
    )


STATUSES = {
    "404 Not Found": (b"HTTP/1.1 404", AttemptOutcome.REJECTED),
    "422 Unprocessable": (b"HTTP/1.1 400", AttemptOutcome.REJECTED),
    "413 Too Large": (b"HTTP/1.1 413", AttemptOutcome.REJECTED),
    "401 Unauthorized": (b"HTTP/1.1 502", AttemptOutcome.REJECTED),
    "429 Too Many": (b"HTTP/1.1 502", AttemptOutcome.BUSY),
    "500 Oops": (b"HTTP/1.1 502", AttemptOutcome.FAILED),
}


@pytest.mark.parametrize("status", STATUSES)
def test_engine_error_becomes_a_status_of_the_gateway(status: str, play: Callable[..., Play]) -> None:
    said, end = STATUSES[status]
    played = play()(FromClient(post()), FromReplica(sized('{"error":{"message":"no"}}', status)), ToClient(said))
    assert played.controller.results[0].end is end
