"""Reads one HTTP/1.1 answer after another from bytes as they come: heads, chunks, and the events of a stream."""

from __future__ import annotations

import httptools

EMPTY = b'"content":""'
CONTENT = b'"content":"'
FINISHED = b'"finish_reason":"'
ERROR = b'data: {"error"'
DONE = b"data: [DONE]"


class Answer:
    """What has come of the current answer; `reset` before the next one.

    A token is an event with text, or the one that says why the answer ended: engines count the end as a token.
    """

    __slots__ = ("_parser", "_rest", "closing", "complete", "done", "error", "reason", "tokens")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Make ready for the next answer on this connection."""
        self._parser = httptools.HttpResponseParser(self)
        self._rest = b""
        self.tokens = 0
        self.reason = ""
        """Header x-tailgate-reason."""
        self.done = False
        """The stream has said that it is at its end."""
        self.error = False
        self.complete = False
        """The whole body was read."""
        self.closing = False
        """The connection takes no further request."""

    @property
    def status(self) -> int:
        """0 before its head was read."""
        status: int = self._parser.get_status_code()
        return status

    def feed(self, data: bytes) -> None:
        """More bytes. Raises httptools.HttpParserError for what is no HTTP."""
        self._parser.feed_data(data)

    # What httptools calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"x-tailgate-reason":
            self.reason = value.decode("latin-1")

    def on_body(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        *events, self._rest = data.split(b"\n\n")
        for event in events:
            if (CONTENT in event and EMPTY not in event) or FINISHED in event:
                self.tokens += 1
            elif event == DONE:
                self.done = True
            elif event.startswith(ERROR):
                self.error = True

    def on_message_complete(self) -> None:
        self.complete = True
        self.closing = not self._parser.should_keep_alive()
