"""Heads of answers: parsed fields, and heads that are refused rather than guessed."""

import pytest

from gateway.wire.http.answer import CHUNKED, TO_THE_END, read_answer_head
from gateway.wire.http.framing import FramingError

OK = b"HTTP/1.1 200 OK"


def head(*lines: bytes, first: bytes = OK) -> bytes:
    return b"\r\n".join((first, *lines))


def test_answer_head_of_an_engine_is_read() -> None:
    found = read_answer_head(head(b"date: now", b"Content-Type:  application/json ", b"content-length: 12"))
    assert (found.status, found.body, found.content_type) == (200, 12, b"application/json")
    assert (found.keep_alive, found.framed, found.retry_after_s) == (True, True, None)


@pytest.mark.parametrize(
    ("lines", "body"),
    [((b"Transfer-Encoding: Chunked",), CHUNKED), ((b"Content-Length: 0",), 0), ((), TO_THE_END)],
)
def test_body_framing_follows_the_headers(lines: tuple[bytes, ...], body: int) -> None:
    assert read_answer_head(head(*lines)).body == body


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
def test_answer_head_of_status_204_or_304_announces_no_body(status: bytes) -> None:
    assert read_answer_head(head(b"content-length: 9", first=b"HTTP/1.1 " + status)).body == 0


@pytest.mark.parametrize(
    ("first", "connection", "kept"),
    [
        (OK, None, True),
        (OK, b"close", False),
        (OK, b"Keep-Alive, Close", False),
        (b"HTTP/1.0 200 OK", None, False),
        (b"HTTP/1.0 200 OK", b"keep-alive", True),
        (b"HTTP/1.1 200", None, True),
    ],
)
def test_keep_alive_follows_version_and_connection_header(first: bytes, connection: bytes | None, kept: bool) -> None:
    lines = () if connection is None else (b"connection: " + connection,)
    assert read_answer_head(head(*lines, first=first)).keep_alive is kept


@pytest.mark.parametrize(
    ("lines", "seconds"),
    [
        ((b"retry-after: 7",), 7.0),
        ((b"retry-after: 0.5",), 0.5),
        ((b"retry-after: 5.0",), 5.0),
        ((b"retry-after-ms: 1500",), 1.5),
        ((b"retry-after: 3", b"Retry-After-Ms: 2500"), 2.5),
        ((b"retry-after: 3", b"retry-after-ms: soon"), 3.0),
        ((b"date: Fri, 31 Dec 1999 23:59:39 GMT", b"retry-after: Fri, 31 Dec 1999 23:59:59 GMT"), 20.0),
        ((b"retry-after: Fri, 31 Dec 1999 23:59:59 GMT", b"date: Fri, 31 Dec 1999 23:59:39 GMT"), 20.0),
        ((b"retry-after: Fri, 31 Dec 1999 23:59:59 GMT",), 0.0),
        ((b"date: yesterday", b"retry-after: Fri, 31 Dec 1999 23:59:59 GMT"), None),
        ((b"retry-after: soon",), None),
        ((b"retry-after: -1",), None),
        ((b"retry-after: 1e5",), None),
        ((b"retry-after: " + b"9" * 400,), None),
        ((b"retry-after: .",), None),
        ((b"retry-after: 5", b"retry-after: 6"), None),
        ((), None),
    ],
)
def test_time_to_retry_is_read_in_seconds_milliseconds_and_as_a_date(
    lines: tuple[bytes, ...], seconds: float | None
) -> None:
    assert read_answer_head(head(*lines)).retry_after_s == seconds


@pytest.mark.parametrize("lines", [(b"content-length: 5", b"content-length: 5"), (b"content-length: 5, 5",)])
def test_length_that_is_written_twice_is_one_length(lines: tuple[bytes, ...]) -> None:
    assert read_answer_head(head(*lines)).body == 5


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"HTTP/2 200 OK",
        b"HTTP/1.1 20 OK",
        b"HTTP/1.1 2000 OK",
        b"HTTP/1.1 099 OK",
        b"HTTP/1.1  200 OK",
        head(b"no colon"),
        head(b": no name"),
        head(b"name : value"),
        head(b"folded: one", b" two"),
        head(b"bare: line\nfeed: 1"),
        head(b"bare: return\rx"),
        b"HTTP/1.1 200 OK\ncontent-length: 5\r",
        b"HTTP/1.1 200 OK\rcontent-length: 5\n",
        head() + b"\r",
        head(b"nul: \0"),
        head(b"content-length: 1", b"content-length: 2"),
        head(b"content-length: 1, 01"),
        head(b"content-length: +1"),
        head(b"content-length: 1", b"transfer-encoding: chunked"),
        head(b"transfer-encoding: gzip"),
        head(b"transfer-encoding: chunked", b"transfer-encoding: chunked"),
    ],
)
def test_malformed_or_ambiguous_answer_head_is_refused(raw: bytes) -> None:
    with pytest.raises(FramingError):
        read_answer_head(raw)
