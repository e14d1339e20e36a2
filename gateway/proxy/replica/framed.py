"""Reads the framing of answers on a connection to a replica: the head, and the body in its chunks or of its length."""

from __future__ import annotations

from abc import abstractmethod

from gateway.proxy.replica.paced import PacedConnection
from gateway.proxy.replica.receiver import AnswerReceiver
from gateway.wire.http.answer import CHUNKED, MAX_HEAD_BYTES, TO_THE_END, LargeHeadError, read_answer_head
from gateway.wire.http.framing import ChunkReader, FramingError


class FramedConnection(PacedConnection):
    """Passes the head and the payload of an answer on to its receiver. A subclass says what its end means."""

    __slots__ = ("_aligned", "_buffer", "_chunks", "_in_body", "_keep_alive", "_left", "_started", "receiver")

    def __init__(self) -> None:
        super().__init__()
        self.receiver: AnswerReceiver | None = None
        self._reset()

    def _reset(self) -> None:
        self._buffer = b""
        self._chunks: ChunkReader | None = None
        self._aligned = False
        """Whether the next read begins with a chunk of the body."""
        self._left = 0
        """Remaining bytes of the body, or a code that says how the body ends otherwise (`wire.http.answer`)."""
        self._in_body = False
        self._keep_alive = False
        self._started = False

    @property
    def missing(self) -> int | None:
        """Bytes of the body that are still to come; None if the body has no length."""
        return self._left if self._in_body and self._left >= 0 else None

    @abstractmethod
    def _end(self) -> None:
        """The HTTP message of the answer is complete."""

    @abstractmethod
    def _end_early(self) -> None:
        """The answer is complete by its own words, and its HTTP message goes on."""

    @abstractmethod
    def _trailers_are_large(self) -> None:
        """The trailers of a body in chunks were too long to be read."""

    # ---- the head

    def _head(self, data: bytes) -> None:
        self._started = True
        if self._buffer:
            data, self._buffer = self._buffer + data, b""
        while True:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                if len(data) > MAX_HEAD_BYTES:
                    raise LargeHeadError(f"the head of the answer is longer than {MAX_HEAD_BYTES // 1024} KiB")
                if not data.startswith(b"HTTP/"[: len(data)]):
                    raise FramingError("the answer does not begin with HTTP/")
                self._buffer = data
                return
            head = read_answer_head(data[:end])
            rest = data[end + 4 :]
            if head.status >= 200:
                break
            if head.status == 101:
                raise FramingError("the answer changes protocol")
            if not rest:
                return
            data = rest
        self._in_body = True
        self._keep_alive = head.keep_alive and head.framed
        self._left = head.body
        if head.body == CHUNKED:
            self._chunks = ChunkReader()
            self._aligned = not self._waiting
        receiver = self.receiver
        assert receiver is not None
        receiver.on_head(head)
        if self.receiver is receiver and (rest or not self._left):
            self._body(rest)

    # ---- the body

    def _body(self, data: bytes) -> None:
        receiver = self.receiver
        assert receiver is not None
        chunks = self._chunks
        if chunks is not None:
            was_aligned = chunks.at_boundary
            pieces = chunks.feed(data)
            is_aligned = chunks.at_boundary and not chunks.done
            self._aligned = is_aligned and not self._waiting
            if pieces:
                whole = was_aligned and is_aligned
                receiver.on_body(pieces, data if whole else None)
            if chunks.done and self.receiver is receiver:
                if chunks.large:
                    self._trailers_are_large()
                self._keep_alive = self._keep_alive and not (chunks.extra or chunks.large)
                self._end()
                return
        elif self._left == TO_THE_END:
            receiver.on_body([data], None)
        else:
            if len(data) > self._left:
                data, self._keep_alive = data[: self._left], False
            self._left -= len(data)
            if data:
                receiver.on_body([data], None)
            if not self._left and self.receiver is receiver:
                self._end()
                return
        if self.receiver is receiver and receiver.on_more():
            self._end_early()
