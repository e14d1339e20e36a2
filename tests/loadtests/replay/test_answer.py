"""Answers are the same in pieces of any size."""

from __future__ import annotations

import httptools
import pytest

from loadtests.replay.answer import MAX_BODY_BYTES, MAX_EVENT_BYTES, MAX_SHOWN, Answer


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


def event(content: bytes, finish: bytes = b"null") -> bytes:
    return b'data: {"choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":%b}]}\n\n' % (content, finish)


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
ROLE, ONE, TWO, LAST = event(b""), event(b" one"), event(b" two"), event(b"", b'"stop"')
STREAM = HEAD + b"".join(map(chunk, (ROLE, ONE, b": heartbeat\n\n", TWO, LAST, b"data: [DONE]\n\n"))) + b"0\r\n\r\n"
REFUSAL = (
    b"HTTP/1.1 429 Too Many Requests\r\nX-Tailgate-Reason: queue-full\r\nretry-after: 3\r\nretry-after-ms: 2500\r\n"
    b"content-length: 2\r\n\r\n{}"
)


def read(data: bytes, size: int) -> Answer:
    answer = Answer()
    for at in range(0, len(data), size):
        answer.feed(data[at : at + size])
    return answer


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 4096])
def test_stream_is_read_in_pieces_of_any_size(size: int) -> None:
    answer = read(STREAM, size)
    assert (answer.status, answer.chunks, answer.done, answer.error) == (200, 2, True, False)
    assert answer.finish_reason == "stop"
    assert answer.complete
    assert not answer.closing


def test_the_first_token_of_a_stream_is_its_first_text() -> None:
    answer = Answer()
    answer.feed(HEAD + chunk(ROLE))
    assert answer.chunks == 0
    begun, rest = chunk(ONE)[:-8], chunk(ONE)[-8:]
    answer.feed(begun)
    assert answer.chunks == 0
    answer.feed(rest)
    assert answer.chunks == 1


def test_event_split_over_two_chunks_counts_once() -> None:
    answer = read(HEAD + chunk(ONE[:10]) + chunk(ONE[10:-1]) + chunk(ONE[-1:] + TWO), 5)
    assert answer.chunks == 2


def test_stream_without_the_done_event_is_complete_but_announced_no_end() -> None:
    answer = read(HEAD + chunk(ONE) + b"0\r\n\r\n", 16)
    assert answer.complete
    assert not answer.done


def test_error_event_in_a_stream_is_an_error() -> None:
    assert read(HEAD + chunk(ONE) + chunk(b'data: {"error":{"message":"gone"}}\n\n'), 16).error


@pytest.mark.parametrize("size", [1, 5, 4096])
def test_interim_answers_are_skipped(size: int) -> None:
    answer = read(b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + STREAM, size)
    assert (answer.status, answer.chunks, answer.complete) == (200, 2, True)


@pytest.mark.parametrize("size", [1, 3, 4096])
def test_reason_of_a_refusal_is_read(size: int) -> None:
    answer = read(REFUSAL, size)
    assert (answer.status, answer.reason, answer.complete, answer.chunks) == (429, "queue-full", True, 0)
    assert answer.retry_after_s == 2.5


@pytest.mark.parametrize("when", ["Fri, 31 Dec 99999999999 23:59:59 GMT", "Fri, 31 Dec 1999 23:59:59 +99999999999999"])
def test_invalid_retry_after_is_none(when: str) -> None:
    answer = read(
        b"HTTP/1.1 429 Too Many Requests\r\nretry-after: %b\r\ncontent-length: 2\r\n\r\n{}" % when.encode(), 99
    )
    assert (answer.status, answer.complete, answer.retry_after_s) == (429, True, None)


def test_an_event_may_have_other_lines_after_its_data() -> None:
    events = [ROLE.replace(b"\n\n", b"\nid: 3\n\n"), ONE.replace(b"\n\n", b"\nretry: 5\nid: 4\n\n"), LAST]
    answer = read(HEAD + b"".join(map(chunk, [*events, b"data: [DONE]\n\n"])) + b"0\r\n\r\n", 4096)
    assert (answer.complete, answer.chunks) == (True, 1)


def test_refusal_reason_is_cut_to_printable_length() -> None:
    answer = read(b"HTTP/1.1 429 No\r\nx-tailgate-reason: %b\r\ncontent-length: 0\r\n\r\n" % (b"long " * 400), 4096)
    assert answer.reason == ("long " * 400)[:MAX_SHOWN]


def test_reader_is_reused_for_the_next_answer() -> None:
    answer = read(STREAM, 100)
    answer.reset()
    assert (answer.status, answer.chunks, answer.done, answer.complete) == (0, 0, False, False)
    answer.feed(REFUSAL)
    assert (answer.status, answer.reason) == (429, "queue-full")


def test_answer_with_connection_close_marks_the_connection_as_closing() -> None:
    assert read(b"HTTP/1.1 503 No\r\nconnection: close\r\ncontent-length: 0\r\n\r\n", 9).closing


def test_bytes_that_are_not_http_are_refused() -> None:
    with pytest.raises(httptools.HttpParserError):
        Answer().feed(b"\x00\x01 nonsense\r\n\r\n")


def test_stream_with_crlf_line_ends_is_read() -> None:
    data = HEAD + b"".join(map(chunk, (ONE.replace(b"\n", b"\r\n")[:-1], b"\n" + TWO.replace(b"\n", b"\r\n"))))
    for size in (1, 7, 4096):
        assert read(data, size).chunks == 2


@pytest.mark.parametrize(
    "delta",
    [b'{"content": "spaced"}', b'{"reasoning_content":"hm"}', b'{"reasoning":"hm"}', b'{"tool_calls":[{"index":0}]}'],
)
def test_delta_with_content_counts_as_a_chunk(delta: bytes) -> None:
    assert read(HEAD + chunk(b'data: {"choices":[{"delta":%b}]}\n\n' % delta), 4096).chunks == 1


def test_usage_and_server_timing_are_read() -> None:
    ours = b"\r\nserver-timing: queue;dur=12.5, replica;dur=80\r\nx-tailgate-replica: r1\r\n\r\n"
    head = HEAD.replace(b"\r\n\r\n", ours)
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3}}\n\n'
    answer = read(head + chunk(ONE) + chunk(usage), 11)
    assert (answer.queue_s, answer.replica) == (0.0125, "r1")
    assert (answer.prompt_tokens, answer.output_tokens, answer.cached_tokens) == (9, 3, None)


@pytest.mark.parametrize(
    ("details", "cached"),
    [(b"null", None), (b"{}", None), (b'{"cached_tokens":null}', None), (b'{"cached_tokens":0}', 0)],
)
def test_cached_tokens_are_read_from_usage(details: bytes, cached: int | None) -> None:
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":9,"prompt_tokens_details":%b}}\n\n' % details
    assert read(HEAD + chunk(ONE) + chunk(usage), 64).cached_tokens == cached


def test_answer_cut_by_the_gateway_is_recognised() -> None:
    cut = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}],"tailgate":{"cut":"total-timeout"}}\n\n'
    assert read(HEAD + chunk(ONE) + chunk(cut), 64).cut == "total-timeout"


def test_the_load_tester_reads_an_answer_that_is_not_streamed() -> None:
    body = b'{"choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":9,"completion_tokens":3}}'
    answer = read(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body), 10)
    assert (answer.complete, answer.output_tokens, answer.streamed) == (True, 3, False)


def test_error_code_of_an_engine_is_the_reason() -> None:
    body = b'{"error":{"message":"no","type":"Service Unavailable","code":503}}'
    assert read(b"HTTP/1.1 503 No\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body), 9).reason == "503"


@pytest.mark.parametrize(("status", "fails"), [(b"200 OK", True), (b"502 Bad Gateway", False)])
def test_body_that_is_no_json_fails_only_a_successful_answer(status: bytes, fails: bool) -> None:
    data = b"HTTP/1.1 %b\r\ncontent-length: 6\r\n\r\n<html>" % status
    if fails:
        with pytest.raises(httptools.HttpParserError):
            read(data, 99)
    else:
        assert read(data, 99).complete


PIECE = b"x" * (1 << 16)
WHOLE = HEAD.replace(b"text/event-stream", b"application/json")


@pytest.mark.parametrize(("head", "most", "what"), [(HEAD, MAX_EVENT_BYTES, "event"), (WHOLE, MAX_BODY_BYTES, "body")])
def test_endless_answer_is_not_kept_beyond_its_bound(head: bytes, most: int, what: str) -> None:
    answer = read(head, 4096)
    for _ in range(most // len(PIECE)):
        answer.feed(chunk(PIECE))
    with pytest.raises(httptools.HttpParserError) as raised:
        answer.feed(chunk(b"x"))
    assert str(raised.value.__context__) == f"{most + 1:,} bytes of an unfinished {what} arrived"


def test_a_stream_may_be_longer_than_any_of_its_events() -> None:
    answer = read(HEAD, 4096)
    answer.feed(chunk(event(PIECE) * (2 * MAX_EVENT_BYTES // len(PIECE)) + ONE[:10]))
    answer.feed(chunk(ONE[10:]))
    assert answer.chunks == 2 * MAX_EVENT_BYTES // len(PIECE) + 1
