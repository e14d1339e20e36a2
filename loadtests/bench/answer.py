"""One answer after another on one connection, parsed as it comes and checked completely."""

from __future__ import annotations

import json

import httptools

from loadtests.bench import canned


class BadAnswer(Exception):
    """The answer is not the requested one, so its run is void."""


class Answer:
    """Feeds bytes to httptools and keeps what is needed to judge the answer.

    `done` turns true when an answer is complete; `reset()` prepares for the next one. `events` counts the SSE events of
    the answer, however they were split into pieces.
    """

    __slots__ = ("_carry", "_parser", "done", "events", "first", "length", "pieces", "tail")

    def __init__(self, *, keep: bool = False) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.pieces: list[bytes] | None = [] if keep else None
        self.reset()

    def reset(self) -> None:
        """Forget the answer, keep the connection's parser."""
        self.done = False
        self.length = 0
        self.first = b""
        self.events = 0
        self.tail = b""
        self._carry = b""
        if self.pieces is not None:
            self.pieces = []

    def feed(self, data: bytes) -> None:
        """Read more bytes from the socket. Raises BadAnswer if they are not HTTP."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise BadAnswer(f"not HTTP: {error}") from error

    @property
    def status(self) -> int:
        """The status of the answer that is being read, or was read last."""
        status: int = self._parser.get_status_code()
        return status

    def on_body(self, data: bytes) -> None:
        """Parser callback."""
        if not self.length:
            self.first = data
        self.length += len(data)
        if self.pieces is not None:
            self.pieces.append(data)
        seen = self._carry + data if self._carry else data
        self.events += seen.count(b"\n\n")
        # A blank line may be split between two pieces. Its first half is carried over, but never a blank line that is
        # already counted.
        self._carry = b"\n" if seen.endswith(b"\n") and not seen.endswith(b"\n\n") else b""
        size = len(canned.STREAM_DONE)
        self.tail = data[-size:] if len(data) >= size else (self.tail + data)[-size:]

    def on_message_complete(self) -> None:
        """Parser callback."""
        self.done = True

    def check_plain(self, length: int) -> None:
        """Raises BadAnswer unless it is a 200 of `length` bytes."""
        if self.status != 200 or self.length != length:
            raise BadAnswer(
                f"status {self.status} with {self.length} bytes instead of 200 with {length}: {self.first[:200]!r}"
            )

    def check_stream(self, chunks: int) -> None:
        """Raises BadAnswer unless it is a 200 with every event of a stream of `chunks` and its proper end."""
        if self.status != 200 or self.events != canned.stream_events(chunks) or self.tail != canned.STREAM_DONE:
            wanted = canned.stream_events(chunks)
            raise BadAnswer(
                f"status {self.status} with {self.events} of {wanted} events: {self.first[:200]!r} ... {self.tail!r}"
            )


def same_content(body: bytes) -> bool:
    """Whether a body has the upstream's content. A proxy may write the same JSON in other bytes, of any length."""
    try:
        return bool(json.loads(body) == json.loads(canned.ANSWER_BODY))
    except ValueError:
        return False
