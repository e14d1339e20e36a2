"""A pooled connection is reading, empty and without an owner; any other is closed and counted."""

from __future__ import annotations

import asyncio
from collections import Counter
from time import monotonic
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.pool_spec import PoolSpec, ReplicaSpec
from gateway.core.results import AttemptOutcome
from gateway.proxy.replica.oddities import Oddities
from gateway.proxy.replica.upstream import ReplicaConnections
from gateway.proxy.replica.upstream_connection import UpstreamConnection
from gateway.wire.answers.oddity import Oddity
from gateway.wire.http.answer import AnswerHead
from tests.interpreted import interpreted

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n" + b"5\r\nhello\r\n" * 3 + b"0\r\n\r\n"
SIZED = HEAD + b"content-length: 15\r\n\r\n" + b"hello" * 3
ENDINGS = {"as it should": b"", "a byte too much": b"x", "another answer": SIZED}


class Transport(asyncio.Transport):
    """Records whether it reads, and whether it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.reading = True
        self.closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None: ...

    def pause_reading(self) -> None:
        assert self.reading, "uvloop raises where asyncio does not"
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = True


class Receiver:
    """Takes an answer at a scripted pace: at each piece it pauses, resumes, or does nothing."""

    def __init__(self, moves: list[str]) -> None:
        self.moves = moves
        self.streams = False
        self.line: UpstreamConnection | None = None
        self.heads = self.ends = 0
        self.lost: list[AttemptOutcome] = []

    def move(self) -> None:
        move = self.moves.pop() if self.moves else ""
        if self.line is not None and move == "pause":
            self.line.pause()
        elif self.line is not None and move == "resume":
            self.line.resume()

    def pass_on(self, data: bytes) -> bool:
        return False

    def on_sent(self) -> None: ...

    def on_head(self, head: AnswerHead) -> None:
        self.heads += 1
        self.move()

    def on_body(self, pieces: list[bytes], raw: bytes | None) -> None:
        self.move()

    def on_more(self) -> bool:
        return False

    def on_end(self) -> None:
        self.ends += 1
        self.move()  # the end of an answer may fill its client's buffer again
        self.line = None

    def on_lost(self, end: AttemptOutcome) -> None:
        self.line = None
        self.lost.append(end)


class Counted(Counter[Oddity]):
    def oddity(self, pool: str, replica: str, kind: Oddity) -> None:
        self[kind] += 1


MOVES = st.lists(st.sampled_from(["pause", "resume", ""]), max_size=12)


@interpreted
@given(st.sampled_from([CHUNKED, SIZED]), st.sampled_from(sorted(ENDINGS)), st.lists(st.integers(1, 60)), MOVES)
def test_idle_connection_is_reused_only_if_it_reads_has_no_bytes_and_no_owner(
    answer: bytes, ending: str, sizes: list[int], moves: list[str]
) -> None:
    counted = Counted()
    spec = ReplicaSpec("r", "http://127.0.0.1:1")
    upstream = ReplicaConnections(spec, PoolSpec("p", (spec,)), Oddities(counted, monotonic), monotonic)
    connection, transport = UpstreamConnection(upstream), Transport()
    connection.connection_made(transport)
    for _ in range(2):
        receiver = Receiver(list(moves))
        connection.send(b"request", cast(Any, receiver))
        data, place = answer + ENDINGS[ending], 0
        for size in [*sizes, len(data)]:
            if not transport.reading and receiver.line is not None:
                receiver.line.resume()  # its client has caught up
            if place < len(data) and transport.reading and not transport.closing:
                connection.data_received(data[place : place + size])
            place += size
            for idle in upstream.idle_connections:
                assert (transport.reading, transport.closing, idle.receiver) == (True, False, None)
        assert (receiver.ends, receiver.lost) == (1, [])
        if ending != "as it should":
            assert transport.closing
            break
        assert upstream.idle_connections == (connection,)
        assert not counted
        upstream.closed(connection)  # taken out for the next request
