"""Playbooks of clients: odd requests, slow readers, many at once, and those that leave."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable
from dataclasses import replace

import pytest

from gateway.core.policy import Caps, Key, Model, Policy
from gateway.core.results import Callback, Reason
from gateway.proxy.client_writer import WRITE_HIGH_WATER_BYTES
from tests.core.made import policy, pool, tier
from tests.interpreted import interpreted
from tests.proxy.playbook import (
    CHUNKED,
    DONE,
    HI,
    LAST,
    STOP,
    STREAMED,
    THERE,
    Called,
    ClientIs,
    Do,
    Drains,
    Exactly,
    FromClient,
    FromReplica,
    Leaves,
    Play,
    Reads,
    ReplicaIs,
    Stalls,
    Step,
    ToClient,
    ToReplica,
    Wait,
    body,
    chunk,
    delta,
    post,
    stream,
    whole,
)

pytestmark = interpreted

KEYS = {digest: Key(digest, "acme", "std") for digest in [hashlib.sha256(b"secret").digest()]}
KEYED = replace(policy(pool("p", "r1"), tier("std")), keys=KEYS)
PAGES = replace(policy(pool("p", "r1"), tier("std")), origins=("http://page.example",))
ANY_PAGE = replace(policy(pool("p", "r1"), tier("std")), origins=("*",))
NAMED = replace(policy(pool("p", "r1"), tier("std")), host_names=("gate.example",))
COUNT = "/v1/messages/count_tokens"
MESSAGES = "/v1/messages"
LONG = delta("x" * 30_000)
SLOW: list[Step] = [
    FromClient(stream()),
    FromReplica(CHUNKED + chunk(HI)),
    ToClient(HI),
    Stalls,
    FromReplica(chunk(LONG)),
]
END = FromReplica(chunk(STOP) + chunk(DONE) + LAST)


def get(path: str, *lines: str, method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "host: localhost", *lines, "", ""]).encode()


LEAVES = Do(lambda play: setattr(play.handler, "leaving", True))
"""The drain is announced."""

PLAYBOOKS: dict[str, tuple[Policy | None, list[Step]]] = {
    "request byte by byte is one request": (
        None,
        [*[FromClient(bytes([byte])) for byte in post()], Called("arrive 1"), FromReplica(whole()), ToClient(b"hello")],
    ),
    "request body in chunks is put together": (
        None,
        [
            FromClient(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"),
            FromClient(chunk(body()[:10])),
            FromClient(chunk(body()[10:20]) + chunk(body()[20:])),
            Called(),
            FromClient(b"0\r\nx-trailer: a\r\n\r\n"),
            Called("arrive 1"),
            FromReplica(whole()),
            ToClient(b"hello"),
        ],
    ),
    "line ends between requests are ignored": (
        None,
        [FromClient(b"\r\n\r\n"), FromClient(post()), FromReplica(whole()), ToClient(b"hello"), FromClient(b"\r\n")],
    ),
    "second request on a connection is served after the first": (
        None,
        [
            FromClient(post()),
            FromReplica(whole()),
            ToClient(b"hello"),
            FromClient(stream()),
            FromReplica(STREAMED),
            ToClient(HI, LAST),
        ],
    ),
    "two requests in one read close the connection": (
        None,
        [FromClient(post() + post()), ClientIs("aborted"), Called()],
    ),
    "bytes during an answer close the connection and the attempt": (
        None,
        [
            FromClient(post()),
            FromClient(b"x"),
            ClientIs("aborted"),
            ReplicaIs("aborted"),
            Called("leave 1 client-gone"),
        ],
    ),
    "line ends during an answer are ignored": (
        None,
        [FromClient(post()), FromClient(b"\r\n"), FromReplica(whole()), ToClient(b"hello")],
    ),
    "client that leaves before the answer closes the attempt": (
        None,
        [FromClient(post()), Leaves, Called("leave 1 client-gone", "finish 1 cancelled"), ReplicaIs("aborted")],
    ),
    "client that shuts its sending side has left": (
        None,
        [
            FromClient(post()),
            Do(lambda play: play.protocol.eof_received()),
            Called("leave 1 client-gone"),
            ReplicaIs("aborted"),
        ],
    ),
    "client that leaves inside a stream closes the attempt": (
        None,
        [
            FromClient(stream()),
            FromReplica(CHUNKED + chunk(HI)),
            Leaves,
            Called("finish 1 cancelled"),
            ReplicaIs("aborted"),
        ],
    ),
    "client that leaves before the connection is made cancels it": (
        None,
        [
            Do(lambda play: play.loop.refuses.update(r1=TimeoutError())),
            FromClient(post()),
            Leaves,
            Called("leave 1 client-gone", "finish 1 cancelled"),
            Do(lambda play: _is(play.loop.wires, [])),
        ],
    ),
    "client that sends half a request and leaves holds nothing": (None, [FromClient(post()[:-5]), Leaves]),
    "slow reader pauses its replica and gets everything once it reads": (
        None,
        [
            *SLOW,
            ReplicaIs("paused"),
            Called("paused 1"),
            Reads,
            Called("resumed 1"),
            ReplicaIs("open"),
            END,
            ToClient(LONG, STOP, DONE, LAST),
        ],
    ),
    "slow reader of little is not waited for": (
        None,
        [
            FromClient(stream()),
            FromReplica(CHUNKED + chunk(HI)),
            Stalls,
            FromReplica(chunk(delta("x" * 5000))),
            ReplicaIs("open"),
            FromReplica(chunk(THERE)),
            Reads,
            END,
            ToClient(THERE, STOP, LAST),
        ],
    ),
    "reader that takes nothing is given up": (
        None,
        [*SLOW, Wait(21.0), ClientIs("aborted"), Called("leave 1 client-stalled", "finish 1 cancelled")],
    ),
    "reader that takes nothing of a whole answer is closed": (
        None,
        [
            FromClient(post()),
            Stalls,
            FromReplica(whole("x" * 30_000)),
            ClientIs("open"),
            Wait(27.0),
            ClientIs("aborted"),
        ],
    ),
    "reader that is slow and steady is not given up": (
        None,
        [
            *SLOW,
            Wait(15.0),
            Do(lambda play: setattr(play.client, "unsent", play.client.unsent - WRITE_HIGH_WATER_BYTES)),
            Wait(10.0),
            ClientIs("open"),
            Reads,
            END,
            ToClient(LONG, STOP, LAST),
        ],
    ),
    "slow reader that is gone frees its replica": (None, [*SLOW, Leaves, ReplicaIs("aborted")]),
    "stalled client whose stream has ended is not read until it has taken that": (
        None,
        [
            *SLOW[:-1],
            FromReplica(chunk(LONG) + chunk(STOP) + chunk(DONE) + LAST),
            Do(lambda play: _is(play.client.reading, False)),
            Reads,
            Do(lambda play: _is(play.client.reading, True)),
            FromClient(post()),
            FromReplica(whole()),
            ToClient(LAST, b"hello"),
        ],
    ),
    "idle connection is closed after its time": (
        None,
        [FromClient(post()), FromReplica(whole()), Wait(6.0), ClientIs("closed")],
    ),
    "connection that sends nothing is closed without a word": (None, [Wait(11.0), ToClient(), ClientIs("closed")]),
    "request that is not whole in time is a 408": (
        None,
        [
            FromClient(post()[:-5]),
            Wait(11.0),
            ToClient(b"HTTP/1.1 408", b"connection: close"),
            FromClient(b"more"),
            ToClient(),
            Wait(3.0),
            ClientIs("aborted"),
        ],
    ),
    "head that is not whole in time is a 408": (
        None,
        [FromClient(b"POST /v1/mess"), Wait(11.0), ToClient(b"HTTP/1.1 408")],
    ),
    "connection: close is closed after the answer": (
        None,
        [FromClient(post(None, "connection: close")), FromReplica(whole()), ToClient(b"hello"), ClientIs("closed")],
    ),
    "gateway that is about to drain says that it closes, and does": (
        None,
        [
            FromClient(stream()),
            LEAVES,
            FromReplica(STREAMED),
            ToClient(b"HTTP/1.1 200", b"connection: close\r\n", LAST),
            ClientIs("closed"),
        ],
    ),
    "gateway that is about to drain says so in errors": (
        None,
        [LEAVES, FromClient(post(b"{")), ToClient(b"HTTP/1.1 400", b"connection: close\r\n"), ClientIs("closed")],
    ),
    "gateway that is about to drain says so in its own answers": (
        None,
        [
            LEAVES,
            FromClient(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n"),
            ToClient(b"HTTP/1.1 200", b"connection: close\r\n"),
            ClientIs("closed"),
        ],
    ),
    "stream that began before the drain was announced keeps its connection until then": (
        None,
        [
            FromClient(stream()),
            FromReplica(CHUNKED + chunk(HI)),
            LEAVES,
            FromReplica(chunk(STOP) + chunk(DONE) + LAST),
            ToClient(b"HTTP/1.1 200", LAST),
            ClientIs("open"),
        ],
    ),
    "draining gateway closes after the answer": (
        None,
        [FromClient(post()), Drains, FromReplica(whole()), ToClient(b"hello"), ClientIs("closed")],
    ),
    "shutdown closes an idle connection and leaves a busy one": (
        None,
        [
            FromClient(post()),
            Do(lambda play: play.protocol.shutdown()),
            ClientIs("open"),
            FromReplica(whole()),
            Do(lambda play: play.protocol.shutdown()),
            ClientIs("closed"),
        ],
    ),
    "shutdown of everything refuses what is under way": (
        None,
        [
            FromClient(post()),
            Do(lambda play: play.driver.shut()),
            ToClient(b"HTTP/1.1 500"),
            Called("shut ", "fail 1"),
        ],
    ),
    "abort of all connections ends their requests": (
        None,
        [
            FromClient(post()),
            Do(lambda play: play.limits.abort_all()),
            ClientIs("aborted"),
            Called("leave 1 client-gone"),
        ],
    ),
    "expect: 100-continue is answered before the body": (
        None,
        [
            FromClient(post(None, "expect: 100-continue")[: -len(body())]),
            Exactly(b"HTTP/1.1 100 Continue\r\n\r\n"),
            FromClient(body()),
            FromReplica(whole()),
            ToClient(b"200 OK"),
        ],
    ),
    "expect: 100-continue of a refused path is refused before the body": (
        None,
        [FromClient(post(None, "expect: 100-continue", path="/nowhere")[: -len(body())]), ToClient(b"HTTP/1.1 404")],
    ),
    "upgrade to h2c is ignored": (
        None,
        [
            FromClient(post(None, "connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAA")),
            FromReplica(whole()),
            ToClient(b"200 OK"),
        ],
    ),
    "WebSocket is refused with what to go on with": (
        None,
        [
            FromClient(get("/v1/responses", "connection: Upgrade", "upgrade: websocket")),
            ToClient(b"HTTP/1.1 426", b"upgrade: HTTP/1.1"),
        ],
    ),
    "CONNECT is refused": (
        None,
        [FromClient(b"CONNECT host:443 HTTP/1.1\r\nhost: host:443\r\n\r\n"), ToClient(b"HTTP/1.1 400", b"CONNECT")],
    ),
    "body that grows beyond the limit in chunks is a 413": (
        None,
        [
            FromClient(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"),
            FromClient(chunk(b"x" * 3000)),
            FromClient(chunk(b"x" * 3000)),
            ToClient(b"HTTP/1.1 413", b"connection: close"),
        ],
    ),
    "chunk extensions without end are refused": (
        None,
        [
            FromClient(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"),
            *[FromClient(b"1;" + b"e" * 400 + b"\r\nx\r\n") for _ in range(15)],
            ToClient(b"HTTP/1.1 431", b"chunk extensions"),
        ],
    ),
    "compressed body is decoded": (
        None,
        [
            FromClient(post(gzip.compress(body()), "content-encoding: gzip")),
            ToReplica(b'"messages"'),
            FromReplica(whole()),
        ],
    ),
    "body that is not compressed as it says is a 400": (
        None,
        [FromClient(post(b"nonsense", "content-encoding: gzip")), ToClient(b"HTTP/1.1 400", b"gzip")],
    ),
    "compressed body beyond the limit is a 413": (
        None,
        [FromClient(post(gzip.compress(b" " * 5000), "content-encoding: gzip")), ToClient(b"HTTP/1.1 413")],
    ),
    "unknown content encoding is a 415": (
        None,
        [FromClient(post(None, "content-encoding: rot13")), ToClient(b"HTTP/1.1 415", b"accept-encoding: ")],
    ),
    "client that leaves while its body is decoded holds nothing": (
        None,
        [FromClient(post(gzip.compress(b" " * 3900), "content-encoding: gzip")), Leaves],
    ),
    "count of tokens is an estimate where nobody counts": (
        None,
        [FromClient(post(path=COUNT)), ToClient(b"200 OK", b"request-id: id-1", b'{"input_tokens":')],
    ),
    "count of tokens of an unknown model is a 404": (
        None,
        [FromClient(post(path=COUNT, model="nobody")), ToClient(b"HTTP/1.1 404", b"nobody")],
    ),
    "count of tokens of nonsense is a 400": (None, [FromClient(post(b"{", path=COUNT)), ToClient(b"HTTP/1.1 400")]),
    "count of tokens of a forbidden model is a 403": (
        policy(pool("p", "r1"), tier("std", pools=("other",))),
        [FromClient(post(path=COUNT)), ToClient(b"HTTP/1.1 403")],
    ),
    "key that is known is served": (
        KEYED,
        [FromClient(post(None, "authorization: Bearer secret")), FromReplica(whole()), ToClient(b"200 OK")],
    ),
    "key that is unknown is a 401": (
        KEYED,
        [FromClient(post(None, "authorization: Bearer x")), ToClient(b"HTTP/1.1 401")],
    ),
    "request without a key is a 401": (KEYED, [FromClient(post()), ToClient(b"HTTP/1.1 401")]),
    "error in Anthropic's path has Anthropic's form": (
        KEYED,
        [FromClient(post(path=MESSAGES)), ToClient(b"HTTP/1.1 401", b'{"type":"error"')],
    ),
    "name of a host that is not this one is refused": (
        None,
        [
            FromClient(post().replace(b"host: localhost", b"host: evil.example")),
            ToClient(b"HTTP/1.1 403", b"evil.example"),
        ],
    ),
    "name of a host that the policy lists is served": (
        NAMED,
        [
            FromClient(post().replace(b"host: localhost", b"host: gate.example")),
            FromReplica(whole()),
            ToClient(b"200 OK"),
        ],
    ),
    "page that is not listed is refused": (
        PAGES,
        [FromClient(post(None, "origin: http://evil.example")), ToClient(b"HTTP/1.1 403", b"evil.example")],
    ),
    "page that is listed may read the answer": (
        PAGES,
        [
            FromClient(post(None, "origin: http://page.example")),
            FromReplica(whole()),
            ToClient(b"access-control-allow-origin: http://page.example"),
        ],
    ),
    "page of the same host is served": (
        None,
        [FromClient(post(None, "origin: http://localhost")), FromReplica(whole()), ToClient(b"200 OK")],
    ),
    "every page may read where all are listed": (
        ANY_PAGE,
        [
            FromClient(get("/v1/models", "origin: http://localhost")),
            ToClient(b"200 OK", b"access-control-allow-origin: *"),
        ],
    ),
    "preflight of a listed page is a 204": (
        PAGES,
        [
            FromClient(
                get("/v1/models", "origin: http://page.example", "access-control-request-method: GET", method="OPTIONS")
            ),
            ToClient(b"HTTP/1.1 204", b"access-control-allow-origin"),
        ],
    ),
    "preflight of another page is a 403": (
        PAGES,
        [FromClient(get("/v1/models", "origin: http://evil.example", method="OPTIONS")), ToClient(b"HTTP/1.1 403")],
    ),
    "target with a host in it is read as its path": (
        None,
        [FromClient(post(path="http://localhost/v1/chat/completions?a=b")), FromReplica(whole()), ToClient(b"200 OK")],
    ),
    "readiness follows the fleet": (
        None,
        [
            FromClient(get("/ready")),
            ToClient(b"200 OK", b'"ready"'),
            Do(lambda play: setattr(play.controller, "is_up", False)),
            FromClient(get("/ready")),
            ToClient(b"HTTP/1.1 503", b"not ready"),
        ],
    ),
    "bug in a callback of the parser is a 500": (
        None,
        [
            Do(lambda play: setattr(play.handler, "check", None)),
            FromClient(post()),
            ToClient(b"HTTP/1.1 500"),
            Do(lambda play: _bugs(play, Callback.CLIENT)),
        ],
    ),
    "bug before the request is made is a 500 and closes": (
        None,
        [
            Do(lambda play: setattr(play.handler, "enter", None)),
            FromClient(post()),
            ToClient(b"HTTP/1.1 500", b"connection: close"),
            ClientIs("closed"),
            Do(lambda play: _bugs(play, Callback.CLIENT)),
        ],
    ),
}


def _is(given: object, wanted: object) -> None:
    assert given == wanted


def _bugs(play: Play, *bugs: Callback) -> None:
    assert play.meter.bugs == list(bugs)
    play.meter.bugs.clear()


@pytest.mark.parametrize("name", PLAYBOOKS)
def test_playbook_of_a_client_sends_the_expected_bytes(name: str, play: Callable[..., Play]) -> None:
    rules, steps = PLAYBOOKS[name]
    play(rules)(*steps)


REFUSED: dict[str, tuple[bytes, bytes]] = {
    "nonsense": (b"nonsense\r\n\r\n", b"HTTP/1.1 400"),
    "head beyond the limit": (get("/health", "x: " + "y" * 3000), b"HTTP/1.1 431"),
    "head beyond the limit without an end": (b"GET /health HTTP/1.1\r\nx: " + b"y" * 3000, b"HTTP/1.1 431"),
    "body beyond the limit": (post(b"x" * 5000), b"HTTP/1.1 413"),
    "two lengths": (post(None, "content-length: 1"), b"HTTP/1.1 400"),
    "length and chunks": (post(None, "transfer-encoding: chunked"), b"HTTP/1.1 400"),
    "no host": (b"GET /health HTTP/1.1\r\n\r\n", b"HTTP/1.1 400"),
    "body that is no JSON": (post(b"{"), b"HTTP/1.1 400"),
    "model that does not exist": (post(model="nobody"), b"HTTP/1.1 404"),
    "objectives that are no numbers": (post(None, "x-tailgate-ttft: soon"), b"HTTP/1.1 "),
    "path that does not exist": (get("/nowhere"), b"HTTP/1.1 404"),
    "wrong method of a POST": (get("/v1/chat/completions"), b"HTTP/1.1 405"),
    "wrong method of a GET": (post(path="/health"), b"HTTP/1.1 405"),
    "model of the list that does not exist": (get("/v1/models/nobody"), b"HTTP/1.1 404"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_request_is_refused_without_asking_a_replica(name: str, play: Callable[..., Play]) -> None:
    data, status = REFUSED[name]
    played = play()(FromClient(data))
    if name != "objectives that are no numbers":
        played(ToClient(status), Called())


ANSWERED = {
    "health": (get("/health"), b'{"status":"ok"}'),
    "models": (get("/v1/models"), b'"object":"list"'),
    "one model": (get("/v1/models/m"), b'"id":"m"'),
}


@pytest.mark.parametrize("name", ANSWERED)
def test_get_request_is_answered_without_asking_a_replica(name: str, play: Callable[..., Play]) -> None:
    data, said = ANSWERED[name]
    play()(FromClient(data), ToClient(b"200 OK", said), ClientIs("open"), Called())


def test_answer_to_head_has_no_body(play: Callable[..., Play]) -> None:
    played = play()(FromClient(get("/health", method="HEAD")))
    assert played.client.out.endswith(b"\r\n\r\n")


def test_connections_beyond_the_limit_are_closed_at_once(play: Callable[..., Play]) -> None:
    played = play(max_connections=1)
    extra = played.connect()
    assert extra.state == "aborted"
    played(ClientIs("open"))


def test_bytes_held_for_the_bodies_of_all_clients_have_a_common_limit(play: Callable[..., Play]) -> None:
    played = play(max_receiving_bytes=1000)
    played(FromClient(post(b"x" * 3000)[:-500]), ToClient(b"HTTP/1.1 503"))
    assert played.meter.early == [Reason.RECEIVING_FULL]


BIG = [{"role": "user", "content": "x" * 5000}]
ROOM = {"max_body_bytes": 8000, "max_receiving_bytes": 6000}


def test_body_counts_until_the_answer_begins(play: Callable[..., Play]) -> None:
    played = play(**ROOM)(FromClient(stream(messages=BIG)), Called("arrive 1"))
    assert played.limits.part_bytes > 5000
    played(FromReplica(CHUNKED + chunk(HI)), ToClient(HI))
    assert played.limits.part_bytes == 0, "a stream of any length holds no body"
    played(END, ToClient(LAST))


@pytest.mark.parametrize(
    ("steps", "status"),
    [([FromReplica(whole())], b"200 OK"), ([FromReplica(whole(status="400 Bad Request"))], b"400")],
    ids=["answered", "refused by the engine"],
)
def test_body_of_a_whole_answer_counts_until_its_end(
    play: Callable[..., Play], steps: list[Step], status: bytes
) -> None:
    played = play(**ROOM)(FromClient(post(messages=BIG)), Called("arrive 1"))
    assert played.limits.part_bytes > 5000
    played(*steps, ToClient(status))
    assert played.limits.part_bytes == 0


def test_bodies_of_running_requests_leave_no_room_for_more_of_their_tenant(play: Callable[..., Play]) -> None:
    played = play(**ROOM)(FromClient(post(messages=BIG)), Called("arrive 1"))
    first, second = played.client, played.connect()
    second.protocol.data_received(post(messages=BIG))
    assert b"503" in second.out
    assert played.limits.parts.keys() == {first.protocol}
    played(Do(lambda _: second.abort()), Leaves, Called("leave 1 client-gone", "finish 1 cancelled"))
    assert played.limits.part_bytes == 0


def test_catch_all_model_answers_404_to_a_name_that_its_catalog_lacks(play: Callable[..., Play]) -> None:
    rules = policy(pool("p", "r1"), tier("std"), models=[Model("*", ("p",), any_name=True)])
    play(rules)(FromClient(post(model="nobody")), ToClient(b"HTTP/1.1 404"))


def test_request_without_a_model_may_come_again_while_no_replica_has_listed_one(play: Callable[..., Play]) -> None:
    rules = policy(pool("p", "r1"), tier("std"), models=[Model("*", ("p",), any_name=True)])
    play(rules)(FromClient(post(model="")), ToClient(b"HTTP/1.1 503", b"no replica has listed its models yet"))


def test_images_count_as_prompt_tokens(play: Callable[..., Play]) -> None:
    rules = policy(pool("p", "r1"), tier("std", caps=Caps(media=True)))
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 2000}}
    played = play(rules)(
        FromClient(post(messages=[{"role": "user", "content": [picture]}])), FromReplica(whole()), ToClient(b"200 OK")
    )
    assert played.meter.records[0].request.prompt_bytes > 0
