"""The exchange of one request and its answer, from the request's last byte to the answer's last byte."""

from __future__ import annotations

from typing import Final

from gateway.core.estimators.histograms import LogHistogram
from gateway.core.policy import Model
from gateway.core.request import Request
from gateway.core.results import AttemptOutcome, AttemptResult, Callback, HedgeResult, Reason, Record
from gateway.proxy.keep_alive import COMMENT, is_due
from gateway.proxy.logs import NO_CAUSE
from gateway.proxy.replica.attempt import UpstreamAttempt
from gateway.proxy.replica.owner import AttemptOwner
from gateway.proxy.replica.upstream import ReplicaConnections
from gateway.proxy.services import Client, ExchangeServices
from gateway.proxy.stored_responses import PREVIOUS, first_if_stored
from gateway.wire.answers.tool_names import put_back
from gateway.wire.errors.replies import Dialect, Problem, error_event, error_response, upstream_error, upstream_problem
from gateway.wire.fingerprint import fingerprint
from gateway.wire.http.framing import LAST_CHUNK, chunk
from gateway.wire.http.headers import PROCESS, RequestHead
from gateway.wire.http.lines import milliseconds
from gateway.wire.http.written_heads import STREAM_HEAD, rate_limit_lines, upstream_head, whole_head
from gateway.wire.isolation import salted
from gateway.wire.parsed import Parsed
from gateway.wire.render import change_lines, render, without_store

SHEDS: Final = frozenset(
    {Reason.PREDICTED, Reason.QUEUE_FULL, Reason.EVICTED, Reason.QUEUE_TIMEOUT, Reason.NO_REPLICAS}
)
"""Reasons of refusals for lack of capacity."""
MAX_COPY_S: Final = 600.0
_OURS: Final = f"-{PROCESS.decode()}"


class Exchange(AttemptOwner):
    """Connects a client to the attempts for its request. It carries out the controller's commands, without deciding."""

    __slots__ = (
        "_attempts",
        "_body_cap",
        "_client",
        "_committed",
        "_dialect",
        "_dispatched_at",
        "_first",
        "_head",
        "_model",
        "_more_lines",
        "_parsed",
        "_paused",
        "_picture_tokens",
        "_refusal",
        "_renamed",
        "_rid",
        "_said_at",
        "_services",
        "_shown",
        "request_id",
    )

    def __init__(
        self,
        services: ExchangeServices,
        client: Client,
        dialect: Dialect,
        head: RequestHead,
        parsed: Parsed,
        request: Request,
    ) -> None:
        super().__init__(services.driver, request, parsed)
        self.request_id = head.request_id
        self._rid = head.request_id.encode()
        self._services = services
        self._client: Client | None = client
        self._dialect = dialect
        self._head = head
        self._parsed: Parsed | None = parsed
        self._model: Model = request.model
        """The model that serves the request."""
        self._body_cap = -1
        """The cap on the output with which the body was sent last; -1 if it was not sent."""
        self._attempts: dict[int, UpstreamAttempt] = {}
        self._committed: UpstreamAttempt | None = None
        self._paused = False
        self._picture_tokens = parsed.picture_tokens
        self._refusal = NO_CAUSE
        self._renamed = parsed.renamed
        self._shown = False
        """Whether the client has been sent the head of an answer."""
        self._dispatched_at = 0.0
        self._more_lines = b""
        self._first = first_if_stored(request, parsed)
        """Hash of the tools and instructions if the answer may be stored; else None."""
        self._said_at = request.body_at
        """Time when something other than content was last sent to the client."""
        if request.stream and request.tier.keep_alive_s:
            services.keep_alives.start(self, request.tier.keep_alive_s, request.body_at)

    def __repr__(self) -> str:
        if self._client is None:
            state = "client is answered or has left"
        elif self._committed is not None:
            state = f"committed to attempt {self._committed.id}"
        else:
            state = "stream begun with a comment" if self._shown else "nothing shown"
        paused = ", client reads slowly" if self._paused else ""
        who = f"{self.request.endpoint.value} of {self.request.tenant} in {self.request.tier.name}"
        state = f"{state}{paused}; attempts {[*self._attempts.values()]}"
        return f"<Exchange {self.request.id} ({self.request_id}) {who}: {state}>"

    @property
    def tokens_seen(self) -> int:
        """Tokens that the attempt with the most tokens has received so far."""
        return max((attempt.seen for attempt in self._attempts.values()), default=0)

    # ---- commands

    def dispatch(self, attempt_id: int, replica: str, max_tokens: int, degraded: bool, model: str) -> None:
        """Open an attempt: send the request to a replica. `model`: the fallback model to ask for; empty if none."""
        upstream = self._services.upstreams.get(replica)
        if upstream is None:
            self.driver.finish(attempt_id, AttemptResult(AttemptOutcome.UNREACHABLE), "", replica)
            return
        assert self._parsed is not None
        self.engine_said = ""
        self._dispatched_at = self._dispatched_at or self.driver.clock()
        if self._client is not None:
            self._client.placed(upstream.pool.name, self._dispatched_at)
        if model:
            self._model = self.request.policy.models[model]
        name = self._sent_as(self._parsed)
        body = render(self._parsed, name, max_tokens)  # written again for each attempt, since it may be long
        if self._body_cap != max_tokens:
            self._body_cap = max_tokens
            self._more_lines = change_lines(self._parsed, max_tokens)
            if degraded:
                self._more_lines += b"x-tailgate-degraded: max_tokens\r\n"
            if model or self.request.split:
                self._more_lines += b"x-tailgate-model: %b\r\n" % self._model.name.encode()
            if self._model.mirror is not None:
                self._copy(self._parsed, max_tokens)
        is_retry = bool(self._attempts) and all(attempt.over for attempt in self._attempts.values())
        attempt = UpstreamAttempt(self, attempt_id, upstream)
        attempt.max_tokens, attempt.asks_for = max_tokens, name
        self._attempts[attempt_id] = attempt
        request = None if upstream.takes_stream_options else self.without_options(attempt_id, upstream, max_tokens)
        upstream.send(self._message(attempt_id, upstream, body) if request is None else request, attempt, is_retry)

    def without_options(self, attempt_id: int, upstream: ReplicaConnections, max_tokens: int) -> bytes | None:
        """The HTTP message without `stream_options`, for a replica that refuses them; None if it has none anyway."""
        parsed = self._parsed
        if parsed is None or not parsed.options:
            return None
        return self._message(attempt_id, upstream, render(parsed, self._sent_as(parsed), max_tokens, False))

    def commit(self, attempt_id: int, hedged: HedgeResult | None) -> None:
        """Forward this attempt's answer to the client: first the held bytes, then the rest as it arrives."""
        if hedged is not None:
            self._more_lines += b"x-tailgate-hedged: %b\r\n" % hedged.value.encode()
        attempt = self._committed = self._attempts[attempt_id]
        parsed = self._parsed if attempt.status == 404 else None
        is_lost = parsed is not None and self._services.responses.is_lost(self.request, parsed, attempt.held)
        self._parsed = None
        client = self._client
        held = attempt.commit(client if client is not None and client.chunked else None)
        if client is None:
            return
        client.let_go()
        if is_lost and not self._shown:
            self._show_error(Problem(Reason.RESPONSE_NOT_FOUND, param=PREVIOUS), self._lines(attempt))
        elif attempt.status != 200 and self._shown:
            self._end_in_error(upstream_problem(attempt.status, attempt.upstream.without_key(b"".join(held))))
        elif attempt.status != 200:
            body = attempt.upstream.without_key(b"".join(held))
            client.write(upstream_error(self._dialect, attempt.status, body, self.request_id, self._lines(attempt)))
            self._finish()
        elif attempt.complete and not self._shown and (attempt.reader is None or attempt.assembly is not None):
            self._show_whole(attempt, held[0])
        elif attempt.assembly is not None:
            return  # the answer is sent once it is assembled
        elif attempt.reader is not None:
            self._open(STREAM_HEAD, attempt, held)
        else:
            self._open(whole_head(attempt.content_type, None, attempt.coding), attempt, held)

    def cancel(self, attempt_id: int) -> int:
        """Close an attempt. Returns the number of tokens that it had received."""
        attempt = self._attempts.pop(attempt_id, None)
        if attempt is None:
            return 0
        attempt.cancel()
        return attempt.seen

    def cut(self, why: Reason, prompt_tokens: int) -> None:
        """End the answer, marked as incomplete. `prompt_tokens`: for the usage, if the engine sent none."""
        attempt, client = self._committed, self._client
        assert attempt is not None
        end = attempt.cut_short(why, prompt_tokens)
        if not end:
            self.refuse(why, None, "")
        elif client is not None and attempt.assembly is not None:
            self._show_whole(attempt, end[0])
        elif client is not None:
            self.show(end)
            if client.chunked:
                client.write(LAST_CHUNK)
            self._finish()

    def refuse(self, why: Reason, retry_after_s: float | None, detail: str) -> None:
        """End the request with an error: an HTTP error, or an error event if the answer has begun."""
        client = self._client
        if client is None:
            return
        if self._services.mirror is not None and why in SHEDS:
            self._services.mirror.shed()
        if why is Reason.IDLE_TIMEOUT:
            detail = next((attempt.stalled_at for attempt in self._attempts.values()), "")
        self._refusal = detail, retry_after_s
        param = "model" if why is Reason.MODEL_NOT_FOUND else None
        if why is Reason.CONTEXT_LENGTH:
            param = next(iter(self.api.shape.required), None)
        problem = Problem(why, message=detail or self.engine_said, param=param, retry_after_s=retry_after_s)
        if not self._shown:
            self._show_error(problem, self._limit_lines())
        elif self._committed is not None and self._committed.reader is None:
            # An unstreamed answer that has begun has no place for an error. Only its missing end shows the failure.
            self._client = None
            client.cut()
        else:
            self._end_in_error(problem)

    def abort(self) -> None:
        """Close the client's connection, as the last way to end the request."""
        client, self._client = self._client, None
        if client is not None:
            client.cut()

    def ended(self, record: Record) -> None:
        """The request is over. It is already counted in metrics."""
        if self._client is not None:
            self.abort()  # a bug prevented the answer to this request
        # Breaks a reference cycle between exchange and attempts, which only the garbage collector could free.
        attempt, self._committed = self._committed, None
        self._attempts.clear()
        if self._first is not None and attempt is not None:
            self._services.responses.keep(record, self._first, attempt.response_id, self.driver.clock())
        if self.request.stream and self.request.tier.keep_alive_s:
            self._services.keep_alives.stop(self, self.request.tier.keep_alive_s)
        if self._picture_tokens and record.tokens_exact and self.request.stored is None:
            model = self.request.asked_model or self.request.model.name
            prompt_bytes = self.request.prompt_bytes
            self._services.pictures.learn(model, self._picture_tokens, prompt_bytes, record.prompt_tokens)
        if self._services.log is not None:
            self._services.log(record, self.request_id)
        self._services.refusals.ended(self.request_id, record, self._refusal)

    # ---- from the attempts

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

    def gaps(self, upstream: ReplicaConnections) -> LogHistogram:
        """The histogram for the times between content events of a stream."""
        return self._services.meter.gaps(self.request.tier.name, upstream.pool.name)

    def body_hash(self) -> int | None:
        """Hash of the request body; None after a commit, because it is no longer needed then."""
        return None if self._parsed is None else fingerprint(self._parsed)

    def attempt_ended(self, attempt_id: int) -> None:
        """An attempt has ended. A committed attempt that is complete also completes the client's answer."""
        attempt = self._committed
        if attempt is None or attempt.id != attempt_id:
            return
        self._attempts.pop(attempt_id, None)
        if attempt.complete and self._client is not None:
            if attempt.assembly is not None:
                self._show_whole(attempt, attempt.held[0])
                return
            if self._client.chunked:
                self._client.write(LAST_CHUNK)
            self._finish()

    # ---- from the clock

    @property
    def has_begun(self) -> bool:
        """Whether the client has the head of a stream."""
        return self._shown

    def keep_alive(self, now: float) -> None:
        """Send a comment if the stream was silent for long. An answer that has not begun begins with the comment.

        After the comment the answer must be a stream, but any attempt may still be committed. A later failure is sent
        as an error event.
        """
        client, attempt, silence_s = self._client, self._committed, self.request.tier.keep_alive_s
        if client is None:
            return
        self._services.keep_alives.start(self, silence_s, now)
        said_at = self._said_at if attempt is None else max(self._said_at, attempt.last_at)
        can_comment = attempt is None or (attempt.reader is not None and not attempt.is_inside_event)
        if self._paused or not can_comment or not is_due(said_at, silence_s, now):
            return
        self._said_at = now
        comment = chunk(COMMENT) if client.chunked else COMMENT
        if self._shown:
            client.write(comment)
            return
        self._shown = True
        dropped = b"" if self._parsed is None else change_lines(self._parsed, 0)
        lines = STREAM_HEAD, self._dialect.id_lines(self._rid), dropped, self._limit_lines()
        framing = b"transfer-encoding: chunked\r\n\r\n" if client.chunked else b"\r\n"
        client.write(b"".join((*lines, framing, comment)))

    # ---- from the client

    def leave(self, why: Reason) -> None:
        """End the request, because the client has left or has stopped reading."""
        if self._client is not None:
            self._client = None
            self.driver.leave(self.request.id, why)

    def pause(self) -> None:
        """Stop reading from the replica, because the client is too slow."""
        self._paused = True
        attempt = self._committed
        if attempt is not None and attempt.line is not None:
            attempt.line.pause()
            self.driver.paused(attempt.id)

    def broke(self, callback: Callback, error: Exception) -> None:
        """Report that a callback of the gateway raised an exception while it handled this request."""
        self.driver.broke(self.request.id, callback, error)

    def resume(self) -> None:
        """Read from the replica again, because the client has read the bytes that waited for it."""
        self._paused = False
        attempt = self._committed
        if attempt is not None and attempt.line is not None:
            self.driver.resumed(attempt.id)
            attempt.line.resume()

    # ---- inside

    def _sent_as(self, parsed: Parsed) -> str:
        """The model name for a replica; the name of the LoRA adapter if one was asked for and no fallback serves."""
        if self.request.adapter and self._model is self.request.model:
            return self.request.adapter
        return self._model.sent_as(parsed.model)

    def _copy(self, parsed: Parsed, max_tokens: int) -> None:
        """Send a copy to the model's shadow pool, if one is due. Forms and continued responses are not copied."""
        service, model = self._services.mirror, self._model
        mirror = model.mirror
        if service is None or mirror is None or parsed.api.shape.is_form or self.request.stored is not None:
            return
        if service.admits(model, len(parsed.payload)):
            body = render(parsed, name := mirror.upstream or self._sent_as(parsed), max_tokens)
            body = body if self._first is None else without_store(body)
            body = salted(body, self.request.endpoint, self.request.policy.pools[mirror.to], self.request.tenant)
            rid, total_s = b"%b-%bm" % (self._rid, PROCESS), min(MAX_COPY_S, self.request.tier.timeouts.total_s)
            service.send(model, name, self.request.endpoint, body, rid, total_s)

    def _message(self, attempt_id: int, upstream: ReplicaConnections, body: bytes) -> bytes:
        """The whole HTTP message of an attempt: head and body."""
        # vLLM uses this id as its own id, which must be unique among running requests. So duplicates get an id of their
        # own, and so do requests with the same id from other clients.
        rid = f"{self.request_id}{_OURS}{attempt_id}"
        body = salted(body, self.request.endpoint, upstream.pool, self.request.tenant)
        return upstream_head(upstream.prefix(self.request.endpoint), self._head, rid, len(body)) + body

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
