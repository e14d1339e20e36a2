"""Playbooks of replicas that send many events in one read: others get their turns, and nothing is lost or reordered."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.core.policy import Caps, Policy
from gateway.proxy.replica.paced import LINE_ENDS
from gateway.proxy.replica.upstream_connection import UpstreamConnection
from gateway.wire.answers.events import EventKind
from gateway.wire.answers.oddity import Oddity
from gateway.wire.apis.chunks import CompletionReader
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
    Odd,
    Play,
    Reads,
    ReplicaCloses,
    ReplicaIs,
    Stalls,
    Step,
    ToClient,
    Wait,
    chunk,
    delta,
    head,
    post,
    stream,
    whole,
)

pytestmark = interpreted

SIZE = 64 * 1024
EVENTS = [b'data:{"n":%d}\n\n' % number for number in range(SIZE // 16)]
TINY = b"".join(EVENTS)
ENDS = CHUNKED + chunk(HI) + chunk(TINY) + chunk(STOP) + chunk(DONE) + LAST
WITHOUT_LENGTH = head("connection: close") + HI + TINY + STOP + DONE
WORDS = "".join(f" {number}" for number in range(4000))
SPOKEN = b"".join(chunk(delta(f" {number}")) for number in range(4000))
ASSEMBLED = policy(pool("p", "r1", "r2"), tier("std", caps=Caps(aggregate=True)))
WAITS = ReplicaIs("paused")
ALL = ToClient(HI, *EVENTS, STOP, DONE, LAST)
GO_ON = Wait(0.05)
"""The turns of the loop that the rest of the flood needs; less time than any deadline has."""

PLAYBOOKS: dict[str, tuple[Policy | None, list[Step]]] = {
    "flood in small chunks is complete and in order": (
        None,
        [
            FromClient(stream()),
            FromReplica(CHUNKED + chunk(HI) + b"".join(map(chunk, EVENTS)) + chunk(STOP)),
            WAITS,
            GO_ON,
            ReplicaIs("open"),
            FromReplica(chunk(DONE) + LAST),
            ALL,
        ],
    ),
    "flood of an assembled answer is complete and in order": (
        ASSEMBLED,
        [
            FromClient(post()),
            FromReplica(CHUNKED + SPOKEN + chunk(STOP) + chunk(DONE) + LAST),
            WAITS,
            ToClient(),
            GO_ON,
            ToClient(WORDS.encode()),
        ],
    ),
    "read while a part waits comes after it": (
        None,
        [
            FromClient(stream()),
            FromReplica(CHUNKED + chunk(HI) + chunk(TINY)),
            WAITS,
            FromReplica(chunk(THERE)),
            FromReplica(chunk(STOP) + chunk(DONE) + LAST),
            GO_ON,
            ToClient(HI, *EVENTS, THERE, STOP, DONE, LAST),
        ],
    ),
    "token after a flood takes the usual way": (
        None,
        [
            FromClient(stream()),
            FromReplica(CHUNKED + chunk(ROLE) + chunk(HI) + chunk(TINY)),
            WAITS,
            GO_ON,
            ReplicaIs("open"),
            FromReplica(chunk(THERE)),
            ToClient(EVENTS[-1], chunk(THERE)),
            FromReplica(chunk(STOP) + chunk(DONE) + LAST),
            ToClient(DONE, LAST),
        ],
    ),
    "connection that closes behind a flood is handled after it": (
        None,
        [
            FromClient(stream()),
            FromReplica(WITHOUT_LENGTH),
            WAITS,
            ReplicaCloses(),
            GO_ON,
            ALL,
            Called("finish 1 complete"),
        ],
    ),
    "reset behind a flood breaks the answer off after its events": (
        None,
        [
            FromClient(stream()),
            FromReplica(CHUNKED + chunk(HI) + chunk(TINY)),
            WAITS,
            ReplicaCloses(error=ConnectionResetError()),
            GO_ON,
            Called("finish 1 truncated"),
            ToClient(*EVENTS),
        ],
    ),
    "reset behind a flood with its end harms nothing": (
        None,
        [
            FromClient(stream()),
            FromReplica(ENDS),
            WAITS,
            ReplicaCloses(error=ConnectionResetError()),
            GO_ON,
            ALL,
            Called("finish 1 complete"),
        ],
    ),
    "client that leaves during a flood cancels": (
        None,
        [
            FromClient(stream()),
            FromReplica(ENDS),
            WAITS,
            Leaves,
            ReplicaIs("aborted"),
            Called("finish 1 cancelled"),
            GO_ON,
            Do(lambda play: _lacks(play.client.out, LAST)),
        ],
    ),
    "client that is slow during a flood gets the rest when it reads": (
        None,
        [
            FromClient(stream()),
            FromReplica(CHUNKED + chunk(HI)),
            Stalls,
            FromReplica(ENDS[len(CHUNKED + chunk(HI)) :]),
            GO_ON,
            ReplicaIs("paused"),
            Do(lambda play: _lacks(play.client.out, EVENTS[-1])),
            Reads,
            GO_ON,
            ALL,
            ReplicaIs("open"),
        ],
    ),
    "flood behind a complete answer closes its connection": (
        None,
        [
            FromClient(stream()),
            FromReplica(CHUNKED + chunk(HI) + chunk(STOP) + chunk(DONE) + LAST + TINY),
            ToClient(HI, DONE, LAST),
            ReplicaIs("aborted"),
            GO_ON,
        ],
    ),
    "flood between the mark of an answer and its last chunk is dropped": (
        None,
        [
            FromClient(stream()),
            FromReplica(CHUNKED + chunk(HI) + chunk(STOP) + chunk(DONE) + chunk(TINY) + LAST),
            ToClient(HI, DONE, LAST),
            GO_ON,
            ReplicaIs("open"),
            Do(lambda play: _lacks(play.client.out, EVENTS[0])),
        ],
    ),
    "broken framing behind a flood is seen after it": (
        None,
        [
            FromClient(stream()),
            FromReplica(CHUNKED + chunk(HI) + chunk(TINY) + b"no chunk\r\n"),
            WAITS,
            GO_ON,
            ReplicaIs("aborted"),
            Called("finish 1 truncated"),
            ToClient(*EVENTS[:1000]),
        ],
    ),
    "unreadable events of a flood are counted": (
        None,
        [
            FromClient(stream()),
            FromReplica(CHUNKED + chunk(b"data:1\n\n" * (SIZE // 8)) + chunk(STOP) + chunk(DONE)),
            WAITS,
            GO_ON,
            Odd(Oddity.UNREADABLE_EVENT),
            ClientIs("open"),
            FromReplica(LAST),
            ToClient(DONE, LAST),
        ],
    ),
}


def _lacks(sent: bytes, part: bytes) -> None:
    assert part not in sent


@pytest.mark.parametrize("name", PLAYBOOKS)
def test_playbook_of_a_flood_sends_the_expected_bytes(name: str, play: Callable[..., Play]) -> None:
    rules, steps = PLAYBOOKS[name]
    play(rules)(*steps)


def test_request_of_another_client_is_answered_between_two_parts_of_a_flood(play: Callable[..., Play]) -> None:
    both = play()
    other = both.connect()
    was_over: list[bool] = []

    def arrives() -> None:
        both.loop.wires[1].protocol.data_received(whole())
        was_over.append(LAST in both.client.out)

    def flood(_: Play) -> None:
        both.loop.wires[0].protocol.data_received(ENDS)
        both.loop.call_soon(arrives)

    both(FromClient(stream()), Do(lambda _: other.protocol.data_received(post())), Do(flood), WAITS)
    assert b"hello" in other.out
    assert was_over == [False]
    both(GO_ON, ReplicaIs("open"), ALL, Called("finish 1 complete"), Do(lambda _: other.lose()))


@pytest.mark.parametrize(
    "flood", [chunk(TINY), b"".join(map(chunk, EVENTS)), chunk(b"data:1\n\n" * (SIZE // 8)), SPOKEN]
)
def test_turn_of_the_loop_has_a_bounded_number_of_events(
    flood: bytes, play: Callable[..., Play], monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    read = CompletionReader.read

    def counted(reader: CompletionReader, event: bytes) -> EventKind:
        reads[-1] += 1
        return read(reader, event)

    take = UpstreamConnection.data_received

    def turn(connection: UpstreamConnection, data: bytes) -> None:
        reads.append(0)
        take(connection, data)

    monkeypatch.setattr(CompletionReader, "read", counted)
    monkeypatch.setattr(UpstreamConnection, "data_received", turn)
    play()(FromClient(stream()), FromReplica(CHUNKED + chunk(HI) + flood), GO_ON, ReplicaIs("open"))
    assert sum(reads) > LINE_ENDS
    assert max(reads) <= LINE_ENDS
