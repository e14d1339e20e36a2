"""Clients with answers and without, on a clock and connections that the test controls."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from gateway.sim.workload.arrivals import Arrival
from loadtests.replay.answer import MAX_MESSAGE
from loadtests.replay.clients import CHECK_S, Client, Clients
from loadtests.replay.columns import Columns, Rows, read_rows
from loadtests.replay.request import Outcome, Request
from loadtests.replay.target import Target
from tests.loadtests.replay.test_answer import HEAD, LAST, ONE, ROLE, chunk

END = chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
ENDED_AT_ONCE = b'{"choices":[{"message":{"content":""},"finish_reason":"length"}]}'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":0}}\n\n'


class Wire(asyncio.Transport):
    """A fake connection that accepts all bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = False

    def write(self, data: object) -> None:
        """Outcomes are ignored."""

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        self.aborted = True


class Line:
    """One client with a request under way since second 0."""

    def __init__(self, *, stream: bool = True, timeout_s: float = 10.0) -> None:
        self.now = 0.0
        self.ended: list[tuple[Request, bool]] = []
        self.clients = Clients(
            Target("http://127.0.0.1:1"),
            lambda: self.now,
            lambda request, may_retry: self.ended.append((request, may_retry)),
            lambda *_: None,
            timeout_s,
        )
        self.client = Client(self.clients)
        self.client.connection_made(Wire())
        self.request = Request(0, Arrival(0.0, "t", "t-1", "m", 10, 10, stream))
        self.clients.under_way = 1
        self.client.send(self.request, b"")

    def gets(self, data: bytes, at: float = 0.0) -> Line:
        self.now = at
        self.client.data_received(data)
        return self


def rows_of(folder: Path, request: Request) -> Rows:
    columns = Columns(folder)
    columns.ended(request)
    columns.close()
    return read_rows(folder)


def counted(tokens: int) -> bytes:
    return b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":%d}}\n\n' % tokens


def whole(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


@pytest.mark.parametrize(
    "data",
    [
        whole(b""),
        whole(b"{}"),
        whole(b'{"choices":[]}'),
        whole(b'{"choices":[{"message":{"content":""}}]}'),
        HEAD + END,
        HEAD + chunk(ROLE) + END,
        HEAD + chunk(USAGE) + END,
        whole(ENDED_AT_ONCE),
        HEAD + chunk(ROLE) + chunk(LAST) + END,
        HEAD + chunk(ROLE) + chunk(LAST) + chunk(counted(0)) + END,
        HEAD + chunk(ROLE) + chunk(LAST) + chunk(counted(20)) + END,
    ],
)
def test_200_answer_without_a_token_is_empty(data: bytes) -> None:
    line = Line().gets(data)
    assert (line.request.outcome, line.request.reason) == (Outcome.EMPTY, "")
    assert line.ended == [(line.request, True)]


@pytest.mark.parametrize(
    "data",
    [
        whole(b'{"choices":[{"message":{"content":"hi"}}]}'),
        whole(b'{"choices":[{"message":{"content":null,"tool_calls":[{"index":0}]}}]}'),
        HEAD + chunk(ROLE) + chunk(LAST) + chunk(counted(1)) + END,
        HEAD + chunk(ONE) + END,
    ],
)
def test_answer_with_a_token_is_finished_even_if_the_token_has_no_text(data: bytes) -> None:
    assert Line().gets(data).request.outcome is Outcome.FINISHED


USED = b'{"choices":[{"message":{"content":"hi"}}],"usage":{"completion_tokens":%b}}'


@pytest.mark.parametrize("count", [b"-1", b"4294967296", b"1e30", b"2.5", b'"7"', b"true", b"[]"])
def test_bad_token_count_makes_the_answer_invalid(tmp_path: Path, count: bytes) -> None:
    request = Line().gets(whole(USED % count)).request
    assert request.outcome is Outcome.NO_HTTP
    assert request.reason.startswith("usage.completion_tokens is not a number of tokens: ")
    assert rows_of(tmp_path, request)["output_tokens"].tolist() == [0]


def test_token_count_up_to_the_limit_of_a_row_is_recorded(tmp_path: Path) -> None:
    request = Line().gets(whole(USED % b"4294967295")).request
    assert rows_of(tmp_path, request)["output_tokens"].tolist() == [4294967295]
    assert rows_of(tmp_path, Line().gets(whole(USED % b"null")).request)["outcome"].tolist() == [Outcome.FINISHED]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (b'{"choices":{"a":1}}', 'choices is not a list: {"a":1}'),
        (b'{"choices":[1]}', "an element of choices is not an object: 1"),
        (b'{"choices":[{"delta":"a"}]}', 'delta is not an object: "a"'),
        (b'{"usage":[3]}', "usage is not an object: [3]"),
        (b'{"tailgate":1}', "tailgate is not an object: 1"),
        (b'{"tailgate":{"cut":["total-timeout"]}}', 'tailgate.cut is not a string: ["total-timeout"]'),
    ],
)
def test_event_of_the_wrong_type_is_named(said: bytes, told: str) -> None:
    request = Line().gets(HEAD + chunk(b"data: %b\n\n" % said)).request
    assert (request.outcome, request.reason) == (Outcome.NO_HTTP, told)


def test_switching_protocols_is_no_http_answer() -> None:
    line = Line().gets(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\nx")
    assert line.request.outcome is Outcome.NO_HTTP
    assert "another protocol" in line.request.reason


def test_malformed_message_is_explained_in_words() -> None:
    request = Line().gets(whole(b'{"choices":[{"message":["hi"]}]}')).request
    assert (request.outcome, request.reason) == (Outcome.NO_HTTP, 'message is not an object: ["hi"]')


def test_error_status_decides_the_outcome_whatever_the_body() -> None:
    failed = whole(b'{"error":{"code":"broken"},"usage":{"completion_tokens":-1}}').replace(b"200 OK", b"500 No")
    request = Line().gets(failed).request
    assert (request.outcome, request.reason) == (Outcome.FAILED, "broken")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'{"error":{"message":"max_tokens  is\\ntoo large","code":400}}', "max_tokens is too large"),
        (b'{"object":"error","message":"no such model"}', "no such model"),
        (b'{"detail":"Not Found"}', "Not Found"),
        (b'{"error":"overloaded"}', "overloaded"),
        (b"upstream timed out", "upstream timed out"),
        (b"<html><h1>502</h1></html>", ""),
        (b'{"error":{"message":"%b"}}' % (b"x" * 999), "x" * MAX_MESSAGE),
    ],
)
def test_words_of_the_target_about_its_error_are_kept(body: bytes, told: str) -> None:
    assert Line().gets(whole(body).replace(b"200 OK", b"400 No")).request.message == told


def test_report_has_the_first_words_about_each_reason(tmp_path: Path) -> None:
    columns = Columns(tmp_path)
    for words in (b"first", b"second"):
        answer = whole(b'{"error":{"message":"%b","code":"bad"}}' % words).replace(b"200 OK", b"400 No")
        columns.ended(Line().gets(answer).request)
    columns.close()
    assert columns.messages == {"bad": "first"}


def test_absurd_times_are_recorded_as_missing(tmp_path: Path) -> None:
    head = b"HTTP/1.1 503 No\r\nretry-after: 1e39\r\nserver-timing: queue;dur=1e300\r\ncontent-length: 0\r\n\r\n"
    request = Line().gets(head).request
    assert request.outcome is Outcome.SHED
    rows = rows_of(tmp_path, request)
    assert np.isnan([rows["retry_after_s"][0], rows["queue_s"][0]]).all()


def test_first_and_last_token_coincide_in_a_stream_read_in_one_piece() -> None:
    answer = whole(b'{"choices":[{"message":{"content":"hi"}}],"usage":{"completion_tokens":9}}')
    for data in (answer, HEAD + chunk(ROLE) + chunk(LAST) + chunk(counted(1)) + END):
        request = Line().gets(data, at=4.0).request
        assert (request.first_s, request.ended_s, request.outcome) == (4.0, 4.0, Outcome.FINISHED)
    assert Line(stream=False).gets(answer, at=4.0).request.first_s is None


def until_closed(body: bytes, status: bytes = b"200 OK", kind: bytes = b"application/json") -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-type: %b\r\nretry-after: 3\r\n\r\n%b" % (status, kind, body)


def streamed_until_closed(*events: bytes) -> bytes:
    return until_closed(b"".join(events), kind=b"text/event-stream")


DONE = b"data: [DONE]\n\n"
HI = b'{"choices":[{"message":{"content":"hi"}}],"usage":{"completion_tokens":9}}'


@pytest.mark.parametrize(
    ("data", "outcome"),
    [
        (until_closed(HI), Outcome.FINISHED),
        (until_closed(b"full", b"503 No"), Outcome.SHED),
        (until_closed(b"oh", b"500 No"), Outcome.FAILED),
        (streamed_until_closed(ROLE, ONE, DONE), Outcome.FINISHED),
        (streamed_until_closed(ROLE, ONE, LAST), Outcome.FINISHED),
        (streamed_until_closed(ROLE, ONE), Outcome.TRUNCATED),
        (until_closed(HI[:-9]), Outcome.TRUNCATED),
        (whole(HI)[:-9], Outcome.TRUNCATED),
        (HEAD + chunk(ROLE) + chunk(ONE) + chunk(LAST), Outcome.TRUNCATED),
        (until_closed(HI)[:30], Outcome.RESET),
    ],
)
def test_an_answer_may_end_with_its_connection(data: bytes, outcome: Outcome) -> None:
    line = Line().gets(data)
    assert line.ended == []
    line.now = 4.0
    line.client.connection_lost(None)
    assert [request for request, _ in line.ended] == [line.request]
    request = line.request
    assert (request.outcome, request.ended_s) == (outcome, 4.0)
    assert bool(request.reason) == (outcome is not Outcome.FINISHED)
    assert (line.clients.idle, line.clients.open, line.clients.under_way) == ([], set(), 0)


def test_first_token_time_of_an_unframed_whole_answer_is_the_end_of_its_connection() -> None:
    line = Line().gets(until_closed(HI), at=1.0)
    line.now = 4.0
    line.client.connection_lost(None)
    assert (line.request.first_s, line.request.tokens) == (4.0, 9)


def test_broken_connection_does_not_complete_an_answer() -> None:
    line = Line().gets(streamed_until_closed(ROLE, ONE, DONE))
    line.client.connection_lost(ConnectionResetError())
    assert (line.request.outcome, line.request.reason) == (Outcome.TRUNCATED, "connection lost inside the answer")


async def test_timeout_runs_while_there_is_no_connection() -> None:
    line = Line(timeout_s=5.0)
    waiting = Request(1, Arrival(0.0, "t", "t-1", "m", 10, 10))
    line.clients.send(waiting, b"")
    line.now = 5.0
    line.clients.expire()
    assert line.ended == []
    line.now = 5.1
    line.clients.expire()
    assert (waiting, True) in line.ended
    assert (waiting.outcome, waiting.reason) == (Outcome.TIMEOUT, "no connection within 5 s")
    assert waiting not in line.clients.requests()
    await asyncio.sleep(0)  # the connecting task is cancelled


async def test_each_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    async def two(*_: object, **__: object) -> list[object]:
        kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*kind, ("127.0.0.2", port)), (*kind, ("127.0.0.1", port))]

    clients = Clients(Target(f"http://both:{port}"), lambda: 0.0, lambda *_: None, lambda *_: None, 1.0)
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", two)
    try:
        await clients.warm(2)
        assert len(clients.open) == 2
    finally:
        clients.close(Outcome.UNFINISHED)
        server.close()


def test_next_timeout_check_is_due_with_the_most_silent_request() -> None:
    line = Line(timeout_s=10.0)
    other = Client(line.clients)
    other.connection_made(Wire())
    late = Request(1, Arrival(3.0, "t", "t-1", "m", 10, 10))
    late.tried_s = 3.0
    other.send(late, b"")
    line.now = 4.0
    assert line.clients.expire() == 6.0
    line.gets(HEAD + chunk(ONE), at=5.0)
    assert line.clients.expire() == 8.0  # the check of the other request, silent since second 3
    line.now = 13.5
    assert line.clients.expire() == 1.5
    assert [request for request, _ in line.ended] == [late]
    line.now = 15.5
    assert line.clients.expire() is None


@dataclass(eq=False)
class Timer:
    of: Timers
    at: float
    what: Callable[[], None]

    def cancel(self) -> None:
        self.of.set.remove(self)


class Timers:
    """Timers of a fake loop on the clock of a `Line`; the rest of a loop is missing."""

    def __init__(self, line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
        self.line = line
        self.set: list[Timer] = []
        monkeypatch.setattr(asyncio, "get_running_loop", lambda: self)

    def call_later(self, delay_s: float, what: Callable[[], None]) -> Timer:
        self.set.append(Timer(self, self.line.now + delay_s, what))
        return self.set[-1]

    def goes_off(self) -> float:
        """Advance to the only timer, and return its time."""
        (timer,) = self.set
        self.set = []
        self.line.now = timer.at
        timer.what()
        return timer.at


def sent(line: Line, at: float) -> Request:
    """Send another request over an idle connection."""
    line.now = at
    client = Client(line.clients)
    client.connection_made(Wire())
    line.clients.freed(client)
    request = Request(1, Arrival(at, "t", "t-1", "m", 10, 10))
    request.tried_s = at
    line.clients.send(request, b"")
    return request


def test_timeouts_of_overlapping_requests_end_on_time(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Line(timeout_s=10.0)
    timers = Timers(line, monkeypatch)
    requests = [line.request, *(sent(line, at) for at in (0.0, 3.0, 3.01, 7.0))]
    line.client.give_up(Outcome.RESET, "")
    line.ended.clear()
    ends = [pytest.approx(end, abs=CHECK_S) for end in (10.0, 13.0, 13.01, 17.0)]
    while timers.set:
        timers.goes_off()
    assert [(request.ended_s, request) for request, _ in line.ended] == list(zip(ends, requests[1:], strict=True))
    assert all(request.ended_s - request.tried_s > 10.0 for request, _ in line.ended)


def test_request_after_a_timeout_has_its_own_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Line(timeout_s=10.0)
    timers = Timers(line, monkeypatch)
    line.client.give_up(Outcome.RESET, "")
    line.ended.clear()
    first, second = sent(line, 0.0), sent(line, 4.0)
    followed: list[Request] = []
    monkeypatch.setattr(line.clients, "_on_end", lambda *_: followed or followed.append(sent(line, line.now)))
    assert timers.goes_off() == pytest.approx(10.0, abs=CHECK_S)
    assert [one for one in (first, second, *followed) if one.ended_s] == [first]
    assert timers.goes_off() == pytest.approx(14.0, abs=CHECK_S)
    assert timers.goes_off() == pytest.approx(20.0, abs=2 * CHECK_S)
    assert all(one.outcome is Outcome.TIMEOUT for one in (first, second, *followed))
    assert timers.set == []


def test_timeout_checks_are_bounded_in_frequency(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Line(timeout_s=10.0)
    timers = Timers(line, monkeypatch)
    for n in range(5000):
        sent(line, n * 1e-4)
    checks = []
    while timers.set:
        checks.append(timers.goes_off())
    assert min(b - a for a, b in pairwise(checks)) >= CHECK_S
    assert len(checks) < 15  # with 5,000 connections, checks are .1 s apart


def test_client_timeout_counts_silence_only() -> None:
    line = Line(timeout_s=10.0)
    line.gets(HEAD + chunk(ROLE), at=9.0).clients.expire()
    line.gets(chunk(ONE), at=10.0).clients.expire()
    line.gets(chunk(ONE), at=19.0).clients.expire()
    line.now = 29.0
    line.clients.expire()
    assert line.ended == []  # 29 s without ten silent seconds
    line.now = 29.1
    line.clients.expire()
    assert (line.request.outcome, line.request.reason) == (Outcome.TIMEOUT, "no next token within 10 s")


def test_heads_and_heartbeats_count_as_silence() -> None:
    line = Line(timeout_s=10.0).gets(HEAD + chunk(ROLE) + chunk(b": heartbeat\n\n"), at=9.0)
    line.now = 10.1
    line.clients.expire()
    assert (line.request.outcome, line.request.reason) == (Outcome.TIMEOUT, "no first token within 10 s")
