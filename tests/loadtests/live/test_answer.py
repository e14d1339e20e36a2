"""Answers are the same in whatever pieces they come."""

from __future__ import annotations

import httptools
import pytest

from loadtests.live.answer import Answer


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


def event(content: bytes, finish: bytes = b"null") -> bytes:
    return b'data: {"choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":%b}]}\n\n' % (content, finish)


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
ROLE, ONE, TWO, LAST = event(b""), event(b" one"), event(b" two"), event(b"", b'"stop"')
STREAM = HEAD + b"".join(map(chunk, (ROLE, ONE, b": heartbeat\n\n", TWO, LAST, b"data: [DONE]\n\n"))) + b"0\r\n\r\n"
REFUSAL = b"HTTP/1.1 429 Too Many Requests\r\nX-Tailgate-Reason: queue-full\r\ncontent-length: 2\r\n\r\n{}"


def read(data: bytes, size: int) -> Answer:
    answer = Answer()
    for at in range(0, len(data), size):
        answer.feed(data[at : at + size])
    return answer


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 4096])
def test_a_stream_cut_anywhere(size: int) -> None:
    answer = read(STREAM, size)
    assert (answer.status, answer.tokens, answer.done, answer.error) == (200, 3, True, False)
    assert answer.complete
    assert not answer.closing


def test_the_first_token_is_the_first_text() -> None:
    answer = Answer()
    answer.feed(HEAD + chunk(ROLE))
    assert answer.tokens == 0
    begun, rest = chunk(ONE)[:-8], chunk(ONE)[-8:]
    answer.feed(begun)
    assert answer.tokens == 0
    answer.feed(rest)
    assert answer.tokens == 1


def test_an_event_in_two_chunks() -> None:
    answer = read(HEAD + chunk(ONE[:10]) + chunk(ONE[10:-1]) + chunk(ONE[-1:] + TWO), 5)
    assert answer.tokens == 2


def test_a_stream_that_ends_without_saying_so() -> None:
    answer = read(HEAD + chunk(ONE) + b"0\r\n\r\n", 16)
    assert answer.complete
    assert not answer.done


def test_an_error_in_a_stream() -> None:
    assert read(HEAD + chunk(ONE) + chunk(b'data: {"error":{"message":"gone"}}\n\n'), 16).error


@pytest.mark.parametrize("size", [1, 5, 4096])
def test_a_refusal_says_why(size: int) -> None:
    answer = read(REFUSAL, size)
    assert (answer.status, answer.reason, answer.complete, answer.tokens) == (429, "queue-full", True, 0)


def test_one_answer_after_another() -> None:
    answer = read(STREAM, 100)
    answer.reset()
    assert (answer.status, answer.tokens, answer.done, answer.complete) == (0, 0, False, False)
    answer.feed(REFUSAL)
    assert (answer.status, answer.reason) == (429, "queue-full")


def test_a_connection_that_closes_takes_no_more() -> None:
    assert read(b"HTTP/1.1 503 No\r\nconnection: close\r\ncontent-length: 0\r\n\r\n", 9).closing


def test_no_http() -> None:
    with pytest.raises(httptools.HttpParserError):
        Answer().feed(b"\x00\x01 nonsense\r\n\r\n")
