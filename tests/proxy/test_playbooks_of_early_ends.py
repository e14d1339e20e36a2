"""Playbooks of answers that are complete before their HTTP message is, and of whole answers that stall."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

import pytest

from gateway.core.commands import Cancel, Refuse
from gateway.core.results import Reason
from gateway.wire.answers.oddity import Oddity
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
    Now,
    Odd,
    Play,
    Reads,
    ReplicaCloses,
    ReplicaIs,
    Stalls,
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

SAID = FromReplica(CHUNKED + chunk(ROLE) + chunk(HI) + chunk(STOP) + chunk(DONE))
TOLD = FromReplica(CHUNKED + chunk(ROLE) + chunk(HI) + chunk(STOP))
OVER = ToClient(HI, DONE, LAST)
COMPLETE = Called("finish 1 complete")


def _odd_ends(count: int) -> Do:
    return Do(lambda play: _equals(play.meter.odd.count(Oddity.OPEN_END), count))


def _equals(value: int, expected: int) -> None:
    assert value == expected


PLAYBOOKS: dict[str, list[Step]] = {
    "mark ends the answer at once; its last chunk 90 ms later keeps the connection": [
        *(FromClient(stream()), SAID, OVER, COMPLETE, Wait(0.09), FromReplica(LAST), ReplicaIs("open"), Wait(0.2)),
        *(FromClient(stream()), ReplicaIs("open"), FromReplica(CHUNKED + chunk(HI)), ToClient(HI), _odd_ends(0)),
    ],
    "mark without the last chunk closes the connection after 100 ms": [
        *(FromClient(stream()), SAID, OVER, ReplicaIs("open"), Wait(0.11), ReplicaIs("aborted"), Odd(Oddity.OPEN_END)),
    ],
    "pings after the mark are dropped, and their connection is closed": [
        *(FromClient(stream()), SAID, OVER, Wait(0.05), FromReplica(chunk(b": ping\n\n")), ToClient(), Wait(0.06)),
        *(ReplicaIs("aborted"), ClientIs("open"), _odd_ends(1)),
    ],
    "bytes that are no chunk after the mark close the connection at once": [
        *(FromClient(stream()), SAID, OVER, FromReplica(b"HTTP/1.1 200 OK\r\n\r\n"), ReplicaIs("aborted")),
    ],
    "close and reset after the mark harm nobody": [
        *(FromClient(stream()), SAID, OVER, ReplicaCloses(error=ConnectionResetError()), COMPLETE, _odd_ends(1)),
    ],
    "finish reason alone waits for usage and mark": [
        *(
            FromClient(stream()),
            TOLD,
            ToClient(HI, STOP),
            Wait(0.9),
            FromReplica(chunk(DONE) + LAST),
            ToClient(DONE, LAST),
        ),
        *(COMPLETE, ReplicaIs("open"), _odd_ends(0)),
    ],
    "finish reason alone ends the answer after its grace": [
        *(FromClient(stream()), TOLD, Wait(0.9), ToClient(HI, STOP), Wait(1.2), ToClient(LAST), COMPLETE),
        *(ReplicaIs("aborted"), _odd_ends(1)),
    ],
    "content after a finish reason begins the grace anew": [
        *(FromClient(stream()), TOLD, Wait(0.9), FromReplica(chunk(THERE)), Wait(0.9), FromReplica(chunk(HI))),
        *(Wait(0.9), FromReplica(chunk(DONE) + LAST), ToClient(HI, THERE, HI, DONE, LAST), COMPLETE, _odd_ends(0)),
    ],
    "grace waits for a client that does not read": [
        *(
            FromClient(stream()),
            Stalls,
            FromReplica(CHUNKED + chunk(b"data: " + b"x" * 30_000 + b"\n\n") + chunk(STOP)),
        ),
        *(ReplicaIs("paused"), Wait(5.0), ReplicaIs("paused"), Reads, FromReplica(chunk(DONE) + LAST), COMPLETE),
        _odd_ends(0),
    ],
    "close after a finish reason ends the answer at once": [
        *(FromClient(stream()), TOLD, ReplicaCloses(), ToClient(HI, STOP, LAST), COMPLETE, _odd_ends(1)),
    ],
    "whole answer without its last chunk is answered after the grace": [
        *(FromClient(post()), FromReplica(head("transfer-encoding: chunked", kind="application/json"))),
        *(FromReplica(chunk(whole().partition(b"\r\n\r\n")[2])), ToClient(), Wait(2.1), ToClient(b"hello"), COMPLETE),
    ],
    "half of a whole answer is not answered after the grace": [
        *(FromClient(post()), FromReplica(head("transfer-encoding: chunked", kind="application/json"))),
        *(FromReplica(chunk(b'{"id": "c", "usage": {}')), Wait(5.0), ToClient(), FromReplica(chunk(b"}") + LAST)),
        *(ToClient(b'{"id": "c", "usage": {}}'), _odd_ends(0)),
    ],
    "whole answer that is not UTF-8 is passed on and counted as odd": [
        *(FromClient(post()), FromReplica(whole("xx").replace(b"xx", b"\xfc\xfc"))),
        *(ToClient(b"\xfc\xfc"), Odd(Oddity.UNREADABLE_ANSWER)),
    ],
    "whole answer in several reads tells the controller that it goes on": [
        *(FromClient(post()), FromReplica(whole()[:-9]), Wait(0.3), Called("progress 1"), FromReplica(whole()[-9:])),
        ToClient(b"hello"),
    ],
}


def test_answer_without_output_is_useful_where_none_was_asked_for(play: Callable[..., Play]) -> None:
    said = {"choices": [{"index": 0, "text": "once", "finish_reason": "length"}]}
    usage = {"prompt_tokens": 1, "completion_tokens": 0, "total_tokens": 1}
    ask = post(b'{"model":"m","prompt":"once","max_tokens":0,"echo":true}', path="/v1/completions")
    story = play()(
        FromClient(ask), ToReplica(b'"max_tokens":0'), FromReplica(sized(json.dumps({**said, "usage": usage})))
    )
    story(ToClient(b'"text": "once"'), COMPLETE)
    (result,) = story.controller.results
    assert (result.empty, result.output_tokens) == (False, 0)
    assert story.meter.odd == []


@pytest.mark.parametrize("name", PLAYBOOKS)
def test_playbook_of_an_early_end_sends_the_expected_bytes(name: str, play: Callable[..., Play]) -> None:
    play()(*PLAYBOOKS[name])


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (head("content-length: 5000", kind="application/json") + b"x" * 3000, "after 3000 of 5000 bytes"),
        (head("transfer-encoding: chunked", kind="application/json") + chunk(b"x" * 3000), "after 3000 bytes"),
    ],
    ids=["with a length", "without a length"],
)
def test_whole_answer_that_stalls_is_logged_with_its_lengths(
    answer: bytes, said: str, play: Callable[..., Play], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tailgate.refusals")
    end = Now(Refuse(1, Reason.IDLE_TIMEOUT), Cancel(1, 1), 1)
    play()(FromClient(post()), FromReplica(answer), end, ToClient(b"HTTP/1.1 504", said.encode()))
