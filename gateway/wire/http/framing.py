"""Reads and writes chunked bodies. Chunk boundaries are kept, so that chunks can be forwarded unchanged."""

from __future__ import annotations

from typing import Final

from gateway.wire.http.lines import CR, LF

HEX: Final = b"0123456789abcdefABCDEF"
MAX_SIZE_LINE: Final = 256
MAX_TRAILER_BYTES: Final = 8192
USUAL_BYTES: Final = 2048


class FramingError(Exception):
    """The bytes from the replica are not a valid chunked body."""


class ChunkReader:
    """Reads the payload of a chunked body.

    `at_boundary`: whether the bytes so far end with a whole chunk. If it is True before and after a `feed`, the fed
    bytes are whole chunks and may be forwarded unchanged.
    """

    __slots__ = ("_expect_crlf", "_held", "_left", "_trailers", "at_boundary", "done", "extra", "large")

    def __init__(self) -> None:
        self._held = b""
        self._left = 0
        self._expect_crlf = False
        self._trailers = 0
        self.at_boundary = True
        self.done = False
        self.extra = False
        """Whether bytes came after the end of the body."""
        self.large = False
        """Whether the trailers exceeded `MAX_TRAILER_BYTES`. If so, the payload is complete, and the rest is not
        read.
        """

    def feed(self, data: bytes) -> list[bytes]:
        """The payload in `data`, as one piece for each chunk or part of a chunk. Raises `FramingError`."""
        if self.at_boundary and not self.done:
            # The usual case in a token stream: one whole chunk per read.
            start = payload_of_one(data)
            if start:
                return [data[start:-2]]
        return self._feed(data)

    def _feed(self, data: bytes) -> list[bytes]:
        if self._held:
            data, self._held = self._held + data, b""
        pieces: list[bytes] = []
        pos, end = 0, len(data)
        while pos < end and not self.done:
            if self._left:
                piece = data[pos : pos + self._left]
                pieces.append(piece)
                pos += len(piece)
                self._left -= len(piece)
                self._expect_crlf = not self._left
            elif self._expect_crlf:
                if end - pos < 2:
                    break
                if data[pos : pos + 2] != b"\r\n":
                    raise FramingError("a chunk is longer than its size")
                pos += 2
                self._expect_crlf = False
            else:
                line_end = data.find(b"\r\n", pos)
                if line_end < 0:
                    if self._trailers:
                        self._take_trailer(end - pos)
                    else:
                        _check_size_line(end - pos - (data[end - 1] == CR))
                    break
                if not self._trailers:
                    _check_size_line(line_end - pos)
                self._line(data[pos:line_end])
                pos = line_end + 2
        if self.done:
            self.extra = pos < end
        else:
            self._held = data[pos:]
        self.at_boundary = not (self._left or self._expect_crlf or self._held or self._trailers)
        return pieces

    def _line(self, line: bytes) -> None:
        if self._trailers:
            self._trailers += len(line) + 2
            self._take_trailer(0)
            self.done = self.done or not line
            return
        size = line.partition(b";")[0].rstrip(b" \t")
        if not size or len(size) > 8 or size.strip(HEX):
            raise FramingError("a chunk size is not a hexadecimal number")
        self._left = int(size, 16)
        if not self._left:
            self._trailers = 1

    def _take_trailer(self, more: int) -> None:
        """Count a trailer line, and `more` bytes of an unfinished line. If the trailers are too large, the body ends
        here.
        """
        self.large = self.done = self._trailers + more > MAX_TRAILER_BYTES


def _check_size_line(length: int) -> None:
    """Raise `FramingError` for a line with a chunk size that is too long, whole or not."""
    if length > MAX_SIZE_LINE:
        raise FramingError("a chunk size is too long")


def payload_of_one(data: bytes) -> int:
    """Index at which the payload begins, if `data` is exactly one chunk and not the last; else 0."""
    length = len(data)
    if length < USUAL_BYTES:
        usual = _USUAL[length]
        start = len(usual)
        if start and data[:start] == usual and data[length - 2] == CR and data[length - 1] == LF:
            return start
    end = data.find(b"\r\n")
    size = data[:end]
    if 0 < end < 9 and not size.strip(HEX) and length == end + int(size, 16) + 4 > end + 4 and data.endswith(b"\r\n"):
        return end + 2
    return 0


def chunk(payload: bytes) -> bytes:
    """`payload`, which must not be empty, as one chunk."""
    return b"%x\r\n%b\r\n" % (len(payload), payload)


LAST_CHUNK: Final = b"0\r\n\r\n"


def _usual_lines() -> list[bytes]:
    """The usual first line of a chunk, by the total bytes of the chunk; b"" if no chunk has this size."""
    lines = [b""] * USUAL_BYTES
    for payload_bytes in range(1, USUAL_BYTES):
        line = b"%x\r\n" % payload_bytes
        if len(line) + payload_bytes + 2 < USUAL_BYTES:
            lines[len(line) + payload_bytes + 2] = line
    return lines


_USUAL: Final = _usual_lines()
