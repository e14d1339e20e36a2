"""One attempt at one replica: sends the request, classifies the answer by its first bytes, and reads it to its end."""

from __future__ import annotations

import logging
from typing import Final

from gateway.core.results import AttemptOutcome, AttemptResult
from gateway.core.scheduling.usage import tokens_in, told_output
from gateway.proxy.replica.owner import AttemptOwner
from gateway.proxy.replica.receiver import Connecting
from gateway.proxy.replica.streamed import StreamedAnswer
from gateway.proxy.replica.upstream import ReplicaConnections
from gateway.proxy.replica.upstream_connection import UpstreamConnection
from gateway.wire.answers.failure import end_of
from gateway.wire.answers.model_name import model_at_start
from gateway.wire.answers.oddity import Oddity
from gateway.wire.answers.sse import MAX_SNIFFED, looks_like_events
from gateway.wire.answers.whole import Aborted, AnswerError, read_whole, usage_at_end
from gateway.wire.errors.rejected import lengths
from gateway.wire.http.answer import AnswerHead

log = logging.getLogger("tailgate.upstream")

# Limit on the bytes held before commit. A longer whole answer is committed early and streamed. Of an error, only this
# many bytes are read.
HOLD_WHOLE_BYTES: Final = 1024 * 1024
HOLD_ERROR_BYTES: Final = 64 * 1024


class UpstreamAttempt(StreamedAnswer):
    """Receives the answer to one call. It reports events to the driver, and gives its owner the bytes to forward."""

    __slots__ = ("_bare", "_beginning", "max_tokens")

    def __init__(self, owner: AttemptOwner, attempt: int, upstream: ReplicaConnections) -> None:
        super().__init__(owner, attempt, upstream)
        self.max_tokens = 0
        """The output cap that was sent; 0 if none."""
        self._bare = False
        """Whether the request was sent again, without `stream_options`."""
        self._beginning: bytes | None = None
        """The first bytes of a body, until there are enough to tell whether the body is a stream of events; then
        None.
        """

    def __repr__(self) -> str:
        states = (
            (self.over, "over"),
            (self._committed, "committed"),
            (bool(self.held), "held"),
            (self.status > 0, "head received"),
            (type(self.line) is Connecting, "connecting"),
            (self.line is None, "not sent"),
        )
        state = next((name for holds, name in states if holds), "waiting")
        return (
            f"<UpstreamAttempt {self.id} of request {self.owner.request.id} at {self.upstream.spec.name}: {state}, "
            f"status {self.status}, {self.seen} tokens seen, {self._held_bytes} bytes held>"
        )

    # ---- from the connection

    def on_sent(self) -> None:
        """The request was written to a connection."""
        self.owner.was_sent = True
        self.owner.driver.sent(self.id)

    def on_head(self, head: AnswerHead) -> None:
        """The head of the answer."""
        self.status = head.status
        self.content_type = head.content_type
        self.coding = head.coding
        self.retry_after_s = head.retry_after_s
        self._framed = head.framed
        self._announced = head.body
        if 200 <= head.status < 300:
            self.status = 200
            if self._bare:
                self.upstream.takes_stream_options = False
                log.info("replica %s takes no stream_options: its token counts are estimated", self.upstream.spec.name)
            # The body decides whether the answer is a stream: some servers send JSON as text/event-stream, or streams
            # without a type.
            self._beginning = b"" if self.owner.streams else None

    def on_body(self, pieces: list[bytes], raw: bytes | None) -> None:
        """Payload, as received. `raw`: the same bytes with their chunk framing, if they are exactly whole chunks."""
        if self._beginning is not None:
            if not self._beginning and looks_like_events(pieces[0]):
                self._beginning = None
                self._begin_stream()
            else:
                pieces, raw = self._sniff(self._beginning + b"".join(pieces), False), None
        if self.reader is not None:
            self._stream(self.reader, pieces, raw)
        elif pieces:
            self._hold_whole(pieces)

    def _sniff(self, beginning: bytes, is_all: bool) -> list[bytes]:
        """Decide whether a body is a stream of events. Returns the held bytes; an empty list while there are too few to
        decide.
        """
        if looks_like_events(beginning) or (
            is_all and not beginning and (self.content_type or b"").startswith(b"text/event-stream")
        ):
            self._beginning = None
            self._begin_stream()
        elif len(beginning) >= MAX_SNIFFED or is_all:
            self._beginning = None
        else:
            self._beginning = beginning
            return []
        return [beginning] if beginning else []

    def on_more(self) -> bool:
        """All bytes so far were passed on, and the body goes on. Returns whether the answer does not: it said its
        end.
        """
        reader = self.reader
        if reader is None:
            if self._beginning is None:
                self._wait_for_rest()
            return False
        if reader.finished and self._graced_at < 0 and self._is_told:
            self._start_grace()
        return reader.done

    def on_end(self) -> None:
        """The answer is complete."""
        self.line = None
        if self._beginning is not None:
            rest = self._sniff(self._beginning, True)
            if self.reader is not None:
                self._stream(self.reader, rest, None)
            else:
                self._hold_whole(rest)
        if self.reader is not None:
            self._stream_ended(self.reader)
        elif self.status == 200:
            self._whole_ended()
        else:
            body = b"".join(self.held)
            if self._does_without_options(body):
                return
            end = end_of(self.status, body)
            result = AttemptResult(end, status=self.status, retry_after_s=self.retry_after_s)
            if end is AttemptOutcome.REJECTED:
                result.context_tokens, result.prompt_tokens = lengths(body)
            self._tell(result)

    def _does_without_options(self, body: bytes) -> bool:
        """Send the request once more, without `stream_options`, if the replica refused them. The gateway had added
        them.

        The refusal is remembered only if the second try succeeds, because words in the error text may come from the
        request.
        """
        if self._bare or self.status not in (400, 422) or body.find(b"stream_options") < 0:
            return False
        request = self.owner.without_options(self.id, self.upstream, self.max_tokens)
        if request is None:
            return False
        self._bare = True
        self.status = self._held_bytes = 0
        self.held = []
        self.upstream.send(request, self)
        return True

    def on_lost(self, end: AttemptOutcome) -> None:
        """The attempt is lost: no connection was made, the connection broke, or the answer was not HTTP."""
        self.line = None
        if end is AttemptOutcome.TRUNCATED and self._is_told:
            self._end_without_http()
            return
        self._tell(AttemptResult(end, tokens_seen=self.seen))

    # ---- whole answers

    def _hold_whole(self, pieces: list[bytes]) -> None:
        if self._committed:
            self._held_bytes += sum(map(len, pieces))
            self.owner.show(pieces)
            self.held = [b"".join((*self.held, *pieces))[-512:]]
            return
        limit = HOLD_WHOLE_BYTES if self.status == 200 else HOLD_ERROR_BYTES
        if self._held_bytes > limit and self.status != 200:
            return
        for piece in pieces:
            self.held.append(piece)
            self._held_bytes += len(piece)
        if self._held_bytes > limit and self.status == 200:
            self._name_held()
            self.owner.driver.full(self.id)

    @property
    def _received(self) -> int:
        return self._held_bytes if self.reader is None else self.reader.tokens_seen

    @property
    def _is_told(self) -> bool:
        reader = self.reader
        if reader is None:
            return self._is_whole
        over = reader.done or reader.choices_over >= self.owner.request.choices
        return over and reader.complete and not self.is_inside_event

    @property
    def _is_whole(self) -> bool:
        """Whether the body so far is a whole JSON object. No part of an object is one."""
        if self.status != 200 or self._committed or not self.held or self.held[-1].rstrip()[-1:] != b"}":
            return False
        try:
            read_whole(self.owner.api.answers.whole, b"".join(self.held))
        except (AnswerError, Aborted) as odd:
            return isinstance(odd, Aborted)
        return self.held[0].lstrip()[:1] == b"{"

    def _wait_for_rest(self) -> None:
        """Expect more of a whole answer: within its idle timeout or, if it may be complete, within the grace."""
        self.owner.driver.stirred(self.id)
        if self.status == 200 and not self._committed and self.held and self.held[-1].rstrip()[-1:] == b"}":
            self._start_grace()

    @property
    def stalled_at(self) -> str:
        """How much of a whole answer has come; empty if it is a stream, or if nothing has come."""
        if self.reader is not None or not self._held_bytes:
            return ""
        missing = self.line.missing if isinstance(self.line, UpstreamConnection) else None
        if missing is None:
            return f"The replica's answer stopped after {self._held_bytes} bytes. It announced no length."
        return f"The replica's answer stopped after {self._announced - missing} of {self._announced} bytes."

    def _name_held(self) -> None:
        """Replace the model name in the beginning of an answer that is too long to be parsed."""
        beginning = b"".join(self.held)
        if beginning.startswith(b"{"):
            self.coding = None
        self._learn_model(model_at_start(beginning), beginning)
        self.held = [beginning if self._model is None else self._model.apply(beginning)]

    def _whole_ended(self) -> None:
        body = self.held[0] if len(self.held) == 1 else b"".join(self.held)
        result = AttemptResult(AttemptOutcome.COMPLETE, status=self.status)
        try:
            form = self.owner.api.answers.whole
            told, error = (usage_at_end(body), None) if self._committed else read_whole(form, body)
        except Aborted:
            self._warn_truncated("the engine aborted it")
            self._tell(AttemptResult(AttemptOutcome.TRUNCATED, status=self.status))
            return
        except AnswerError as exc:
            self.upstream.odd(Oddity.UNREADABLE_ANSWER, str(exc))
            if not self._framed:
                # Without a length, a complete answer looks the same as one that broke off.
                self._tell(AttemptResult(AttemptOutcome.UNREADABLE))
                return
            result.tokens_seen = tokens_in(len(body))
            result.empty = self.coding is None  # an encoded body may be fine, because the client can read it
            body = self.upstream.without_key(body)
        else:
            if error is not None:
                self._engine_failed(error)
                return
            output = told_output(told.output, told.is_answer and self._generates)
            result.prompt_tokens, result.output_tokens, result.cached_tokens = told.prompt, output, told.cached
            result.reasoning_tokens = told.reasoning
            result.empty = (output == 0 or not told.is_answer) and self._generates
            if not told.is_answer and self._generates:
                self.upstream.odd(Oddity.UNREADABLE_ANSWER, "the answer has no choices, no content and no output")
            if told.output is not None or told.odd:
                result.tokens_seen = tokens_in(len(body))  # used if the engine's own count is impossible
            if not _is_utf8(body):
                self.upstream.odd(Oddity.UNREADABLE_ANSWER, "it is not UTF-8")
            if told.odd or output != told.output:
                self.upstream.odd(Oddity.USAGE, "an estimate was taken instead")
            self.coding = None
            self.whole_id = told.id
            if told.model and not self._committed:
                self._learn_model(told.model, body)
                body = body if self._model is None else self._model.apply(body)
        if self.owner.has_begun and not self._committed:
            # A comment was already sent to the client, so only events may follow.
            self.upstream.odd(Oddity.UNREADABLE_ANSWER, "a stream was asked for, and a whole answer came")
            as_events = self.owner.api.answers.as_events
            self.held = [] if as_events is None else as_events(body, self.owner.wants_usage)
            if not self.held:
                self._tell(AttemptResult(AttemptOutcome.UNREADABLE))
                return
        else:
            self.held = [body]
        self.complete = True
        self._tell(result)


def _is_utf8(body: bytes) -> bool:
    """Whether a body is UTF-8. The decoder of JSON looks only at the fields that it reads."""
    if body.isascii():
        return True
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True
