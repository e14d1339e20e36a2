"""The exchange of one request and its answer, from the request's last byte to the answer's last byte."""

from __future__ import annotations

from typing import Final

from gateway.core.estimators.histograms import LogHistogram
from gateway.core.request import Request
from gateway.core.results import AttemptOutcome, AttemptResult, Callback, HedgeResult, Reason, Record
from gateway.proxy.exchanges.forwarding import AnswerForwarder
from gateway.proxy.keep_alive import COMMENT, is_due, waiting_comment
from gateway.proxy.logs import NO_CAUSE
from gateway.proxy.replica.attempt import UpstreamAttempt
from gateway.proxy.replica.upstream import ReplicaConnections
from gateway.proxy.services import Client, ExchangeServices
from gateway.proxy.stored_responses import PREVIOUS
from gateway.wire.errors.replies import Dialect, Problem, upstream_error, upstream_problem
from gateway.wire.http.framing import LAST_CHUNK, chunk
from gateway.wire.http.headers import RequestHead
from gateway.wire.http.written_heads import STREAM_HEAD, whole_head
from gateway.wire.parsed import Parsed
from gateway.wire.render import change_lines

SHEDS: Final = frozenset(
    {Reason.PREDICTED, Reason.QUEUE_FULL, Reason.EVICTED, Reason.QUEUE_TIMEOUT, Reason.NO_REPLICAS}
)
"""Reasons of refusals for lack of capacity."""


class Exchange(AnswerForwarder):
    """Connects a client to the attempts for its request. It carries out the controller's commands, without deciding."""

    __slots__ = (
        "_attempts",
        "_is_placed",
        "_picture_tokens",
        "_refusal",
        "_said_at",
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
        super().__init__(services, client, dialect, head, parsed, request)
        self._attempts: dict[int, UpstreamAttempt] = {}
        self._is_placed = False
        """Whether it counts as dispatched."""
        self._picture_tokens = parsed.picture_tokens
        self._refusal = NO_CAUSE
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
            self._came_back()
            self.driver.finish(attempt_id, AttemptResult(AttemptOutcome.UNREACHABLE), "", replica)
            return
        assert self._parsed is not None
        self.engine_said = ""
        if not self._is_placed:
            self._is_placed, self._dispatched_at = True, self.driver.clock()
        if self._client is not None:
            self._client.placed(upstream.pool.name, self._dispatched_at)
        body = self._render(self._parsed, max_tokens, degraded, model)
        is_retry = bool(self._attempts) and all(attempt.over for attempt in self._attempts.values())
        attempt = UpstreamAttempt(self, attempt_id, upstream)
        attempt.max_tokens, attempt.asks_for = max_tokens, self._sent_as(self._parsed)
        self._attempts[attempt_id] = attempt
        request = None if upstream.takes_stream_options else self.without_options(attempt_id, upstream, max_tokens)
        upstream.send(self._message(attempt_id, upstream, body) if request is None else request, attempt, is_retry)

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
        self._came_back()
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
        if self._picture_tokens and record.tokens_exact and self.request.affinity.stored is None:
            model = self.request.asked_model or self.request.model.name
            prompt_bytes = self.request.prompt_bytes
            self._services.pictures.learn(model, self._picture_tokens, prompt_bytes, record.prompt_tokens)
        self._services.refusals.ended(self.request_id, record, self._refusal)

    # ---- from the attempts

    def gaps(self, upstream: ReplicaConnections) -> LogHistogram:
        """The histogram for the times between content events of a stream."""
        return self._services.meter.gaps(self.request.tier.name, upstream.pool.name)

    def attempt_ended(self, attempt_id: int) -> None:
        """An attempt has ended. A committed attempt that is complete also completes the client's answer."""
        attempt = self._committed
        if attempt is None or attempt.id != attempt_id:
            self._came_back()
            return
        self._attempts.pop(attempt_id, None)
        if attempt.complete and self._client is not None:
            if attempt.assembly is not None:
                self._show_whole(attempt, attempt.held[0])
                return
            if self._client.chunked:
                self._client.write(LAST_CHUNK)
            self._finish()

    def _came_back(self) -> None:
        """An attempt is over. If none reached its replica, and none may yet, the request counts as not dispatched."""
        if self._is_placed and not self.was_sent and all(attempt.over for attempt in self._attempts.values()):
            self._is_placed = False
            if self._client is not None:
                self._client.unplaced(self._dispatched_at)

    # ---- from the clock

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
        comment = self._comment()
        if client.chunked:
            comment = chunk(comment)
        if self._shown:
            client.write(comment)
            return
        self._shown = True
        dropped = b"" if self._parsed is None else change_lines(self._parsed, 0)
        lines = STREAM_HEAD, self._dialect.id_lines(self._rid), dropped, self._limit_lines()
        framing = b"transfer-encoding: chunked\r\n\r\n" if client.chunked else b"\r\n"
        client.write(b"".join((*lines, framing, comment)))

    def _comment(self) -> bytes:
        """A comment; for a request that waits for a slot, with its position."""
        if all(attempt.over for attempt in self._attempts.values()):
            found = self.driver.position(self.request.id)
            if found is not None:
                return waiting_comment(found)
        return COMMENT

    # ---- from the client

    def leave(self, why: Reason) -> None:
        """End the request, because the client has left or has stopped reading."""
        if self._client is not None:
            self._client = None
            self.driver.leave(self.request.id, why)

    def broke(self, callback: Callback, error: Exception) -> None:
        """Report that a callback of the gateway raised an exception while it handled this request."""
        self.driver.broke(self.request.id, callback, error)
