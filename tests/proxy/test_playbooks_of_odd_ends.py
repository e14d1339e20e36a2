"""Playbooks of ends out of order: commands for a client that is gone, and answers that turn out odd."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.core.commands import Cancel, Commit, Cut, Dispatch, Refuse
from gateway.core.policy import Caps, Policy, RepetitionSpec
from gateway.core.results import Reason
from gateway.wire.answers.oddity import Oddity
from tests.core.made import policy, pool, tier
from tests.interpreted import interpreted
from tests.proxy.playbook import (
    CHUNKED,
    DONE,
    HI,
    LAST,
    ROLE,
    STOP,
    THERE,
    Called,
    ClientIs,
    Do,
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

COMMENTS = policy(pool("p", "r1", "r2"), tier("std", keep_alive_s=8.0))
TWO_POOLS = policy(pool("p", "r1"), pool("q", "r2"), tier("std"))
GONE: list[Step] = [On("leave"), FromClient(stream()), FromReplica(CHUNKED + chunk(ROLE)), Leaves]
CUT = Now(Cut(1, Reason.TOTAL_TIMEOUT, 3), Cancel(1, 1), 1)
FORGET = Do(lambda play: play.meter.bugs.clear())
END = FromReplica(chunk(STOP) + chunk(DONE) + LAST)
NO_TOKENS = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":0,"total_tokens":3}}\n\n'

CIRCLES = policy(pool("p", "r1"), tier("std", caps=Caps(aggregate=True), repetition=RepetitionSpec(50, 3)))

PLAYBOOKS: dict[str, tuple[Policy | None, list[Step]]] = {
    "answer that goes in circles and cannot be put together has ended when that is found": (
        CIRCLES,
        [
            FromClient(post()),
            FromReplica(CHUNKED + chunk(delta("round and round we go, " * 20) + b"data: {nonsense\n\n")),
            ToClient(b"HTTP/1.1 502"),
            Do(lambda play: _lacks(play.controller.calls, "repeats 1")),
        ],
    ),
    "commit for a client that is gone shows nothing": (
        None,
        [*GONE, Now(Commit(1, 1)), FromReplica(chunk(HI)), FromReplica(chunk(HI) + chunk(THERE)), CUT, ToClient()],
    ),
    "refusal for a client that is gone says nothing": (
        None,
        [*GONE, Now(Refuse(1, Reason.TTFT_TIMEOUT), Cancel(1, 1), 1), ToClient()],
    ),
    "dispatch for a client that is gone is carried out": (
        None,
        [*GONE, Now(Dispatch(1, 2, "r2", 0)), Now(Cancel(1, 1), Cancel(1, 2), 1), ReplicaIs("aborted", at=2)],
    ),
    "comment for a client that is gone is not sent": (COMMENTS, [*GONE, Wait(9.0), ToClient(), Now(Cancel(1, 1), 1)]),
    "cancel of an attempt that is not there is nothing": (
        None,
        [FromClient(post()), Now(Cancel(1, 99)), FromReplica(whole()), ToClient(b"hello")],
    ),
    "request that ends without an answer closes its client": (
        None,
        [On("finish", 1), FromClient(post()), FromReplica(whole()), ToClient(), ClientIs("aborted")],
    ),
    "cut of a committed whole answer closes its client": (
        None,
        [
            FromClient(post()),
            FromReplica(head("content-length: 1200000", kind="application/json") + b"{" + b"x" * 1_100_000),
            CUT,
            ClientIs("aborted"),
        ],
    ),
    "cut tells the asked model name": (
        None,
        [
            FromClient(stream()),
            FromReplica(CHUNKED + chunk(delta("Hi", model="other"))),
            CUT,
            ToClient(b'"model":"m"', b'"finish_reason":"length"', DONE, LAST),
        ],
    ),
    "several contents in one read are shown": (
        None,
        [
            FromClient(stream()),
            FromReplica(CHUNKED + chunk(HI)),
            FromReplica(chunk(HI) + chunk(THERE)),
            END,
            ToClient(THERE),
        ],
    ),
    "error that names stream_options is passed on where none were sent": (
        None,
        [
            FromClient(post()),
            FromReplica(sized('{"error":{"message":"stream_options are odd"}}', "400 Bad Request")),
            ToClient(b"HTTP/1.1 400", b"stream_options are odd"),
        ],
    ),
    "body that begins unclearly is told by its next bytes": (
        None,
        [FromClient(stream()), FromReplica(CHUNKED + chunk(b"d")), FromReplica(chunk(HI[1:])), END, ToClient(HI, LAST)],
    ),
    "short body to a stream that is no stream is passed on": (
        None,
        [FromClient(stream()), FromReplica(CHUNKED + chunk(b"d") + LAST), Odd(Oddity.UNREADABLE_ANSWER)],
    ),
    "body without a length that is no JSON is unreadable": (
        None,
        [
            FromClient(post()),
            FromReplica(head("connection: close", kind="application/json") + b"not json"),
            ReplicaCloses(),
            Called("finish 1 unreadable"),
            ToClient(b"HTTP/1.1 502"),
        ],
    ),
    "usage of zeros in a whole answer is not believed": (
        None,
        [FromClient(post()), FromReplica(whole(usage={"prompt_tokens": 3, "completion_tokens": 0})), Odd(Oddity.USAGE)],
    ),
    "usage of zeros in a stream is not believed": (
        None,
        [
            FromClient(stream()),
            FromReplica(CHUNKED + chunk(HI) + chunk(STOP) + chunk(NO_TOKENS) + chunk(DONE) + LAST),
            Odd(Oddity.USAGE),
        ],
    ),
    "answer after a comment that cannot become events is an error event": (
        COMMENTS,
        [FromClient(stream()), Wait(9.0), FromReplica(sized("[1]")), ToClient(b"keep-alive", b'"error"', LAST)],
    ),
    "end of everything cancels connections that are being made": (
        None,
        [
            Do(lambda play: play.loop.refuses.update(r1=TimeoutError())),
            FromClient(post()),
            Do(lambda play: play.upstreams.close()),
            Leaves,
            Called("finish 1 cancelled"),
        ],
    ),
    "bug in taking an answer is a 500 and closes the replica's connection": (
        None,
        [
            Do(lambda play: setattr(play.meter, "gaps", None)),
            FromClient(stream()),
            FromReplica(CHUNKED + chunk(HI)),
            ToClient(b"HTTP/1.1 500"),
            ReplicaIs("aborted"),
            FORGET,
        ],
    ),
    "retry in another pool moves the request there": (
        TWO_POOLS,
        [
            On("finish", Dispatch(1, 2, "r2", 0)),
            FromClient(post()),
            ReplicaCloses(error=ConnectionResetError()),
            Do(lambda play: _open(play, p=0, q=1)),
            FromReplica(whole(), at=2),
            ToClient(b"x-tailgate-pool: q"),
        ],
    ),
}


def _lacks(calls: list[str], call: str) -> None:
    assert call not in calls


def _open(play: Play, **open_in: int) -> None:
    assert {pool: occupancy.open for pool, occupancy in play.limits.occupancies.items()} == open_in


@pytest.mark.parametrize("name", PLAYBOOKS)
def test_playbook_of_an_odd_end_sends_the_expected_bytes(name: str, play: Callable[..., Play]) -> None:
    rules, steps = PLAYBOOKS[name]
    play(rules)(*steps)
