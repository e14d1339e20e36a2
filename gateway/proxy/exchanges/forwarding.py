"""Writes answers and errors to the client of an exchange."""

from __future__ import annotations

from gateway.core.request import Request
from gateway.proxy.exchanges.sending import RequestSender
from gateway.proxy.replica.attempt import UpstreamAttempt
from gateway.proxy.services import Client, ExchangeServices
from gateway.wire.answers.tool_names import put_back
from gateway.wire.errors.replies import Dialect, Problem, error_event, error_response
from gateway.wire.http.framing import LAST_CHUNK, chunk
from gateway.wire.http.headers import RequestHead
from gateway.wire.http.lines import milliseconds
from gateway.wire.http.written_heads import rate_limit_lines, whole_head
from gateway.wire.parsed import Parsed


class AnswerForwarder(RequestSender):
    """The side of an exchange that faces the client. The client is None once it is answered or has left."""

    __slots__ = ("_client", "_committed", "_dialect", "_dispatched_at", "_paused", "_renamed", "_shown")

    def __init__(
        self,
        services: ExchangeServices,
        client: Client,
        dialect: Dialect,
        head: RequestHead,
        parsed: Parsed,
        request: Request,
    ) -> None:
        super().__init__(services, head, parsed, request)
        self._client: Client | None = client
        self._dialect = dialect
        self._committed: UpstreamAttempt | None = None
        self._paused = False
        self._renamed = parsed.renamed
        self._shown = False
        """Whether the client has been sent the head of an answer."""
        self._dispatched_at = 0.0

    @property
    def has_begun(self) -> bool:
        """Whether the client has the head of a stream."""
        return self._shown

    def show(self, pieces: list[bytes]) -> None:
        """Forward payload to the client, each piece as a chunk."""
        client = self._client
        if client is not None:
            if self._renamed:
                pieces = put_back(pieces, self._renamed)
            client.write(b"".join([chunk(p) for p in pieces] if client.chunked else pieces))

    def show_raw(self, raw: bytes, pieces: list[bytes]) -> None:
        """Forward payload to the client. `raw`: the same bytes in the replica's own chunks, used if possible."""
        client = self._client
        if self._renamed:
            self.show(pieces)
        elif client is not None:
            client.write(raw if client.chunked else b"".join(pieces))

    def pause(self) -> None:
        """Stop reading from the replica, because the client is too slow."""
        self._paused = True
        attempt = self._committed
        if attempt is not None and attempt.line is not None:
            attempt.line.pause()
            self.driver.paused(attempt.id)

    def resume(self) -> None:
        """Read from the replica again, because the client has read the bytes that waited for it."""
        self._paused = False
        attempt = self._committed
        if attempt is not None and attempt.line is not None:
            self.driver.resumed(attempt.id)
            attempt.line.resume()

    def _open(self, first_lines: bytes, attempt: UpstreamAttempt, held: list[bytes]) -> None:
        client = self._client
        assert client is not None
        if self._renamed:
            held = put_back(held, self._renamed)
        parts = [] if self._shown else [first_lines, self._lines(attempt), self._dialect.id_lines(self._rid)]
        if not self._shown:
            parts.append(b"transfer-encoding: chunked\r\n\r\n" if client.chunked else b"\r\n")
        parts += [chunk(piece) for piece in held] if client.chunked else held
        if attempt.complete and client.chunked:
            parts.append(LAST_CHUNK)
        self._shown = True
        client.write(b"".join(parts))
        if attempt.complete:
            self._finish()
        elif self._paused:
            self.pause()

    def _show_error(self, problem: Problem, lines: bytes) -> None:
        client = self._client
        assert client is not None
        client.write(error_response(self._dialect, problem, self.request_id, lines))
        self._finish()

    def _end_in_error(self, problem: Problem) -> None:
        """End a stream that has begun with an error event."""
        client, attempt = self._client, self._committed
        assert client is not None
        event = error_event(self._dialect, problem)
        if attempt is not None and attempt.is_inside_event:
            event = b"\n\n" + event  # ends the unfinished event; otherwise the error would become a part of it
        # The last chunk is sent, too. Without it, some clients raise an exception and never read the error.
        client.write(chunk(event) + LAST_CHUNK if client.chunked else event)
        # The connection is kept, because a client that has the last chunk may already have sent its next request.
        self._finish()

    def _show_whole(self, attempt: UpstreamAttempt, body: bytes) -> None:
        client = self._client
        assert client is not None
        if self._renamed:
            body = put_back([body], self._renamed)[0]
        head = whole_head(attempt.content_type, len(body), attempt.coding)
        client.write(b"".join((head, self._lines(attempt), self._dialect.id_lines(self._rid), b"\r\n", body)))
        self._finish()

    def _finish(self) -> None:
        client, self._client = self._client, None
        assert client is not None
        client.done()

    def _lines(self, attempt: UpstreamAttempt) -> bytes:
        """The gateway's own header lines of a replica's answer or error: replica, times, and changed fields."""
        queue = milliseconds(self._dispatched_at - self.request.body_at)
        replica = milliseconds(self.driver.clock() - self._dispatched_at)
        times = f"server-timing: queue;dur={queue}, replica;dur={replica}\r\n"
        by = attempt.upstream.served_by(self.request.tier.name)
        return b"".join((by, times.encode(), self._more_lines, self._limit_lines()))

    def _limit_lines(self) -> bytes:
        """Header lines of answers and errors alike: CORS, rate limits, and the end of the connection."""
        closing = b"" if self._client is None else self._client.closing_line()
        return self._head.cors + closing + self._rates().encode()

    def _rates(self) -> str:
        limits = self.request.tier.limits
        if limits.requests_per_min is None and limits.tokens_per_min is None:
            return ""
        return rate_limit_lines(self.driver.left(self.request.tenant, self.request.tier.name))
