"""Reads the head of a replica's answer: status, how the body ends, and the few headers that are used.

The head is read in one pass, without a parser that calls back for each header: engines send only a few short headers. A
head that is not clearly well formed is refused, because lenient reading is unsafe.
"""

from __future__ import annotations

from typing import Final

from gateway.wire.http.framing import FramingError
from gateway.wire.http.lines import CR, LF, SPACE, Names, number, trimmed
from gateway.wire.http.wait import told_wait_s

MAX_HEAD_BYTES: Final = 32 * 1024
MAX_FIELDS: Final = 256
CHUNKED: Final = -1
TO_THE_END: Final = -2

_CONTENT_ENCODING: Final = b"content-encoding"
_CONTENT_TYPE: Final = b"content-type"
_CONTENT_LENGTH: Final = b"content-length"
_TRANSFER_ENCODING: Final = b"transfer-encoding"
_CONNECTION: Final = b"connection"
_RETRY_AFTER: Final = b"retry-after"
_RETRY_AFTER_MS: Final = b"retry-after-ms"
# These two headers are in nearly every head, so a fast comparison skips them.
_DATE: Final = b"date"
_SERVER: Final = b"server"
_NAMES: Final = Names(
    (
        _CONTENT_ENCODING,
        _CONTENT_TYPE,
        _CONTENT_LENGTH,
        _TRANSFER_ENCODING,
        _CONNECTION,
        _RETRY_AFTER,
        _RETRY_AFTER_MS,
        _DATE,
        _SERVER,
    )
)


class LargeHeadError(Exception):
    """The head of an answer exceeds `MAX_HEAD_BYTES` or `MAX_FIELDS`."""


class AnswerHead:
    """Facts in the head of an answer."""

    __slots__ = ("body", "coding", "content_type", "keep_alive", "retry_after_s", "status")

    def __init__(self, status: int) -> None:
        self.status = status
        self.body = TO_THE_END
        """Length of the body in bytes, or `CHUNKED`, or `TO_THE_END` (of the connection)."""
        self.keep_alive = False
        self.content_type: bytes | None = None
        self.coding: bytes | None = None
        """The content encoding; None if there is none. The gateway requests none, but proxies before the engine may add
        one.
        """
        self.retry_after_s: float | None = None

    @property
    def framed(self) -> bool:
        """Whether the end of the body is marked. If it is not, a broken connection looks like the end."""
        return self.body != TO_THE_END


def read_answer_head(raw: bytes) -> AnswerHead:
    """Read a head, without its final blank line.

    Raises `FramingError` if it is malformed or ambiguous, `LargeHeadError` if it is too large.
    """
    if len(raw) > MAX_HEAD_BYTES:
        raise LargeHeadError(f"the head of the answer is longer than {MAX_HEAD_BYTES // 1024} KiB")
    lines = raw.splitlines()
    if len(lines) > MAX_FIELDS + 1:
        raise LargeHeadError(f"the head of the answer has more than {MAX_FIELDS} fields")
    if not lines or 0 in raw:
        raise FramingError("the head of the answer is empty, or has a NUL")
    if raw[-1] == CR or raw[-1] == LF:
        raise FramingError("the head of the answer ends with an incomplete line end")
    first = lines[0]
    status = number(first[9:12])
    version = first[:9]
    if (
        (version != b"HTTP/1.1 " and version != b"HTTP/1.0 ")
        or len(first) < 12
        or status < 100
        or (len(first) > 12 and first[12] != SPACE)
    ):
        raise FramingError("the answer does not begin with the status line of HTTP/1.1")
    # Variables instead of a dictionary: every answer has these few headers.
    head = AnswerHead(status)
    length: bytes | None = None
    transfer: bytes | None = None
    connection: bytes | None = None
    retry_after: bytes | None = None
    retry_after_ms: bytes | None = None
    date: bytes | None = None
    size = len(first)
    for index in range(1, len(lines)):
        line = lines[index]
        size += 2 + len(line)
        name = _NAMES.find(line) if line else None
        if name is None:
            _check(line)
            continue
        if name is _SERVER:
            continue
        if name is _DATE:
            date = line
            continue
        value = trimmed(line, len(name) + 1)
        if name is _CONTENT_LENGTH:
            length = _joined(length, value)
        elif name is _CONTENT_TYPE:
            head.content_type = _joined(head.content_type, value)
        elif name is _TRANSFER_ENCODING:
            transfer = _joined(transfer, value)
        elif name is _CONNECTION:
            connection = _joined(connection, value)
        elif name is _CONTENT_ENCODING:
            head.coding = _joined(head.coding, value)
        elif name is _RETRY_AFTER_MS:
            retry_after_ms = _joined(retry_after_ms, value)
        else:
            retry_after = _joined(retry_after, value)
    # `splitlines` accepts every kind of line end. The sizes agree only if each has two bytes, as CRLF does.
    if size != len(raw):
        raise FramingError("the head of the answer has an invalid line end")
    head.body = _body(status, transfer, length)
    head.keep_alive = _keeps_alive(version == b"HTTP/1.1 ", connection)
    if retry_after is not None or retry_after_ms is not None:
        head.retry_after_s = told_wait_s(retry_after, retry_after_ms, b"" if date is None else trimmed(date, 5))
    return head


def _joined(before: bytes | None, value: bytes) -> bytes:
    """The value of a header that may stand on several lines."""
    return value if before is None else before + b"," + value


def _check(line: bytes) -> None:
    """Raise `FramingError` for a line that is not a header."""
    name, colon, _ = line.partition(b":")
    if not colon or not name or name.find(b" ") >= 0 or name.find(b"\t") >= 0:
        raise FramingError("the answer has a malformed header")


def _body(status: int, coding: bytes | None, length: bytes | None) -> int:
    """How the body ends. Raises `FramingError` if its length is ambiguous."""
    if status in (204, 304):
        return 0
    if coding is not None:
        if coding.lower() != b"chunked" or length is not None:
            raise FramingError("the answer has an unknown transfer encoding")
        return CHUNKED
    if length is None:
        return TO_THE_END
    size = number(length)
    if size < 0:
        size = _same(length)
    if size < 0:
        raise FramingError("the answer has a malformed content-length")
    return size


def _same(lengths: bytes) -> int:
    """The length that was written several times, by a server and a proxy each (RFC 9110, 8.6); -1 if they differ."""
    values = {value.strip() for value in lengths.split(b",")}
    return number(values.pop()) if len(values) == 1 else -1


def _keeps_alive(by_default: bool, connection: bytes | None) -> bool:
    if connection is None:
        return by_default
    options = [option.strip() for option in connection.lower().split(b",")]
    return b"close" not in options and (by_default or b"keep-alive" in options)
