"""The head of a replica's answer: status, how the body ends, and the few headers that anybody here reads.

Read in one pass and not with a parser that calls back for each header: engines send a handful of short ones, and what
is not plainly well formed is refused, since a replica is no place to be lenient with.
"""

from __future__ import annotations

from typing import Final

from gateway.wire.framing import FramingError

MAX_HEAD_BYTES: Final = 64 * 1024
CHUNKED: Final = -1
TO_THE_END: Final = -2

_VERSIONS: Final = (b"HTTP/1.1 ", b"HTTP/1.0 ")
_AFTER: Final = (b"", b" ")
_WANTED: Final = frozenset({b"content-type", b"content-length", b"transfer-encoding", b"connection", b"retry-after"})


class AnswerHead:
    """What is known of an answer before its body."""

    __slots__ = ("body", "content_type", "keep_alive", "retry_after_s", "status")

    def __init__(
        self, status: int, body: int, keep_alive: bool, content_type: bytes | None, retry_after_s: float | None
    ) -> None:
        self.status = status
        self.body = body
        """Its length in bytes, or `CHUNKED`, or `TO_THE_END` of the connection."""
        self.keep_alive = keep_alive
        self.content_type = content_type
        self.retry_after_s = retry_after_s

    @property
    def framed(self) -> bool:
        """Whether the end of the body can be told from a connection that broke off."""
        return self.body != TO_THE_END


def read_answer_head(raw: bytes) -> AnswerHead:
    """Read `raw`, a head without its blank line; raises `FramingError` for what is malformed or ambiguous."""
    lines = raw.split(b"\r\n")
    breaks = len(lines) - 1
    # `find` and not `in`: to look for bytes in bytes, `in` first raises and clears a TypeError (CPython 3.11 to 3.13).
    if raw.count(b"\n") != breaks or raw.count(b"\r") != breaks or raw.find(b"\0") >= 0:
        raise FramingError("the head of the answer has a line end or a NUL where none may be")
    first = lines[0]
    version, code = first[:9], first[9:12]
    if version not in _VERSIONS or not code.isdigit() or len(code) != 3 or code < b"100" or first[12:13] not in _AFTER:
        raise FramingError("the answer does not begin with the status line of HTTP/1.1")
    found: dict[bytes, bytes] = {}
    for index in range(1, breaks + 1):
        name, colon, value = lines[index].partition(b":")
        if not colon or not name or name.find(b" ") >= 0 or name.find(b"\t") >= 0:
            raise FramingError("the answer has a malformed header")
        name = name.lower()
        if name in _WANTED:
            value = value.strip(b" \t")
            found[name] = found[name] + b"," + value if name in found else value
    status = int(code)
    return AnswerHead(
        status,
        _body(status, found),
        _keeps_alive(version == _VERSIONS[0], found.get(b"connection")),
        found.get(b"content-type"),
        _seconds(found.get(b"retry-after")),
    )


def _body(status: int, found: dict[bytes, bytes]) -> int:
    """How the body ends. What is ambiguous is refused, not guessed."""
    coding = found.get(b"transfer-encoding")
    length = found.get(b"content-length")
    if status in (204, 304):
        return 0
    if coding is not None:
        if coding.lower() != b"chunked" or length is not None:
            raise FramingError("the answer has an unknown transfer encoding")
        return CHUNKED
    if length is None:
        return TO_THE_END
    if not length.isdigit() or len(length) > 18:
        raise FramingError("the answer has a malformed content-length")
    return int(length)


def _keeps_alive(by_default: bool, connection: bytes | None) -> bool:
    if connection is None:
        return by_default
    options = [option.strip() for option in connection.lower().split(b",")]
    return b"close" not in options and (by_default or b"keep-alive" in options)


def _seconds(value: bytes | None) -> float | None:
    """`Retry-After` in seconds; the date form is rare among engines and read as none."""
    return float(value) if value is not None and value.isdigit() and len(value) < 6 else None
