"""One attempt's answer as it comes in from a replica: read, held until commit, then passed on."""

from __future__ import annotations

import logging
from typing import Final

from gateway.core.admission.deadlines import PROGRESS_EVERY_S
from gateway.core.admission.usage import tokens_in, told_output
from gateway.core.policy import OnTotal, Report
from gateway.core.request import AttemptOutcome, AttemptResult, Callback, Reason, Request
from gateway.core.stats import LogHistogram
from gateway.proxy.clock import monotonic
from gateway.proxy.driver import CommandHandler, Driver
from gateway.proxy.outgoing import Outgoing
from gateway.proxy.replica.upstream import ReplicaConnections
from gateway.proxy.replica.upstream_connection import AnswerReceiver, Connecting
from gateway.wire.answers.assemble import Assembly, AssemblyError
from gateway.wire.answers.events import EventKind, StreamReader
from gateway.wire.answers.failure import EngineError, end_of
from gateway.wire.answers.model_name import ModelName, model_at_start
from gateway.wire.answers.oddity import Oddity
from gateway.wire.answers.repetition import RepetitionDetector
from gateway.wire.answers.sse import MAX_SNIFFED, EventSplitter, looks_like_events
from gateway.wire.answers.whole import Aborted, AnswerError, read_whole, usage_at_end
from gateway.wire.http.answer import AnswerHead
from gateway.wire.http.framing import chunk, payload_of_one
from gateway.wire.request import Parsed

log = logging.getLogger("tailgate.upstream")

# Bytes held before commit. A longer whole answer is committed early and streamed; of an error only this much is read.
HOLD_STREAM_BYTES: Final = 1024 * 1024
HOLD_WHOLE_BYTES: Final = 1024 * 1024
HOLD_ERROR_BYTES: Final = 64 * 1024

# Plain integers and names of the module: flags and members of an enum cost ten times as much to read and combine.
CONTENT: Final = int(EventKind.CONTENT)
USAGE_ONLY: Final = int(EventKind.USAGE_ONLY)
DONE: Final = int(EventKind.DONE)
ERROR: Final = int(EventKind.ERROR)
COMPLETE: Final = AttemptOutcome.COMPLETE
NO_GAPS: Final = LogHistogram(())
NO_EVENTS: Final = EventSplitter()
"""The splitter of an answer that is no stream: it is never fed."""


class AttemptOwner(CommandHandler):
    """The request that an attempt is made for."""

    __slots__ = ("api", "ask", "asked_model", "driver", "engine_said", "may_be_cut", "streams", "wants_usage")

    def __init__(self, driver: Driver, ask: Request, parsed: Parsed) -> None:
        self.driver = driver
        self.ask = ask
        self.api = parsed.api
        """The row of the API that is asked."""
        self.streams = ask.visible
        tier = ask.tier
        self.may_be_cut = tier.on_total is OnTotal.CUT or tier.repetition is not None or tier.caps.watch
        self.wants_usage = parsed.wants_usage or parsed.assembled
        self.engine_said = ""
        """Reason given by an engine that failed inside an answer."""
        self.asked_model: str | None = parsed.model if ask.model.report is Report.ASKED else None
        """The name of the model that the client is to read; None: the engine's own."""

    @property
    def has_begun(self) -> bool:
        """Whether the client has the head of a stream."""
        raise NotImplementedError

    def show(self, pieces: list[bytes]) -> None:
        """Pass payload on, each piece a chunk."""
        raise NotImplementedError

    def show_raw(self, raw: bytes, pieces: list[bytes]) -> None:
        """Pass on payload whose framing may stay as it is."""
        raise NotImplementedError

    def gaps(self, upstream: ReplicaConnections) -> LogHistogram:
        """Where the time between two events of a stream is counted."""
        raise NotImplementedError

    def body_hash(self) -> int | None:
        """Fingerprint of this request; None once there was a commit."""
        raise NotImplementedError

    def without_options(self, leg: UpstreamAttempt) -> bytes | None:
        """The message of an attempt at a replica that refuses `stream_options`; None if the request has none."""
        raise NotImplementedError

    def leg_ended(self, leg: UpstreamAttempt) -> None:
        """An attempt is over. If the client has been shown all of it, so is the answer."""
        raise NotImplementedError

    def broke(self, callback: Callback, error: Exception) -> None:
        """A callback of ours raised while it worked on this request."""
        raise NotImplementedError


class UpstreamAttempt(AnswerReceiver):
    """The receiver of one call. Tells the driver what happened, and the relay what to show."""

    __slots__ = (
        "_bare",
        "_beginning",
        "_client",
        "_client_of_content",
        "_committed",
        "_end",
        "_framed",
        "_gaps",
        "_guard",
        "_has_model",
        "_held_bytes",
        "_last_at",
        "_model",
        "_progress_at",
        "_splitter",
        "assembly",
        "complete",
        "content_type",
        "held",
        "id",
        "max_tokens",
        "over",
        "reader",
        "relay",
        "retry_after_s",
        "status",
        "upstream",
    )

    def __init__(self, relay: AttemptOwner, attempt: int, upstream: ReplicaConnections) -> None:
        super().__init__(relay.streams)
        self.relay = relay
        self.id = attempt
        self.upstream = upstream
        self.status = 0
        self.content_type: bytes | None = None
        self.retry_after_s: float | None = None
        self.reader: StreamReader | None = None
        self.assembly: Assembly | None = None
        """Where the stream is put together, for a client that wants no stream."""
        self.held: list[bytes] = []
        """Payload not shown yet."""
        self.complete = False
        """Whether the answer is whole."""
        self.over = False
        """Whether the driver has been told the end."""
        self.max_tokens = 0
        """The output cap that was sent; 0: none."""
        self._bare = False
        """Whether it was sent again, without `stream_options`."""
        self._splitter = NO_EVENTS
        self._end: list[bytes] = []
        """The answer's own marks of its end: shown once the connection says that it has ended, too."""
        self._beginning: bytes | None = None
        """The first bytes of a body that may be a stream of events, until there are enough to tell."""
        self._has_model = False
        self._framed = True
        self._held_bytes = 0
        self._committed = False
        self._client: Outgoing | None = None
        """Where whole chunks go as they are,"""
        self._client_of_content: Outgoing | None = None
        """and where they will, once there is content."""
        self._gaps = NO_GAPS
        self._guard: RepetitionDetector | None = None
        """Detector of a repeating answer, where the tier wants one."""
        self._model: ModelName | None = None
        """Writes the asked name of the model; None until the engine has told another."""
        self._last_at = 0.0
        self._progress_at = 0.0

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
            f"<UpstreamAttempt {self.id} of request {self.relay.ask.id} at {self.upstream.spec.name}: {state}, "
            f"status {self.status}, {self.seen} tokens seen, {self._held_bytes} bytes held>"
        )

    def commit(self, client: Outgoing | None) -> list[bytes]:
        """From now on everything is passed on; gives what was held.

        `client` takes chunks as the replica framed them; None if it needs another framing.
        """
        self._committed = True
        if self.reader is not None and self._guard is None and self.assembly is None:
            if self._progress_at:
                self._client = client
            else:
                self._client_of_content = client
        held, self.held = self.held, []
        return held

    def pass_on(self, data: bytes) -> bool:
        """The way of nearly every token: one read, one chunk, one event, plain output; False if it is not that.

        `data` begins where a chunk does.
        """
        client, reader = self._client, self.reader
        if client is None or reader is None or not self._splitter.clean:
            return False
        start = payload_of_one(data)
        if not start or not reader.plain(data, start):
            return False
        if self._model is None:
            client.write(data)
        else:
            client.write(chunk(self._model.apply_to_one(data[start:-2])))
        reader.tokens_seen += 1
        now = monotonic()
        self._gaps.add(now - self._last_at)
        self._last_at = now
        if now >= self._progress_at:
            self._progress_at = now + PROGRESS_EVERY_S
            self.relay.driver.progress(self.id, reader.tokens_seen)
        return True

    @property
    def last_at(self) -> float:
        """When content came last; 0 if none did."""
        return self._last_at

    @property
    def is_inside_event(self) -> bool:
        """Whether the client was shown a part of an event, which is too long to be held until it ends."""
        return self._splitter.is_long

    def cancel(self) -> None:
        """Close the call; the driver knows."""
        self.over = True
        if self.line is not None:
            self.line.cancel()

    def cut_short(self, why: Reason, prompt_tokens: int) -> list[bytes]:
        """Bytes that end the answer here as incomplete, or all of it where it is put together.

        Nothing if it is not what was asked for, or if what came has not the form for it.
        """
        relay, reader = self.relay, self.reader
        if reader is None:
            return []
        end = reader.cut_short(why, prompt_tokens, relay.ask.choices, relay.wants_usage)
        if self._model is not None:
            end = [self._model.apply(event) for event in end]
        if self.is_inside_event and end:
            end = [b"\n\n", *end]
        return end if self.assembly is None or not end else self._put_together(self.assembly, end)

    def _put_together(self, assembly: Assembly, end: list[bytes]) -> list[bytes]:
        try:
            assembly.add(end)
            return [assembly.whole()]
        except AssemblyError as exc:
            self.upstream.odd(Oddity.NOT_ASSEMBLED, str(exc))
            return []

    # ---- from the connection

    def on_sent(self) -> None:
        """The request has been handed to a connection."""
        self.relay.driver.sent(self.id)

    def on_head(self, head: AnswerHead) -> None:
        """The head of the answer."""
        self.status = head.status
        self.content_type = head.content_type
        self.retry_after_s = head.retry_after_s
        self._framed = head.framed
        if 200 <= head.status < 300:
            self.status = 200
            if self._bare:
                self.upstream.takes_stream_options = False
                log.info("replica %s takes no stream_options: its token counts are estimated", self.upstream.spec.name)
            # Told by its body, since some servers send whole answers as text/event-stream, and streams without a type.
            self._beginning = b"" if self.relay.streams else None

    def _begin_stream(self) -> None:
        """The body is a stream of events."""
        self._splitter = EventSplitter()
        self._beginning = None
        answers = self.relay.api.answers
        assert answers.reader is not None
        self.reader = answers.reader()
        if self.relay.ask.assembled:
            assert answers.assembly is not None
            self.assembly = answers.assembly()
            self.content_type = b"application/json"
        if self.relay.may_be_cut:
            self.reader.remember()
        rules = self.relay.ask.tier.repetition
        if rules is not None and self.relay.ask.choices == 1:
            self._guard = RepetitionDetector(rules.characters, rules.repeats)
        self._gaps = self.relay.gaps(self.upstream)

    def on_body(self, pieces: list[bytes], raw: bytes | None) -> None:
        """Payload as it came; `raw` is the same with its chunk framing, where that is whole chunks exactly."""
        if self._beginning is not None:
            if not self._beginning and looks_like_events(pieces[0]):
                self._begin_stream()
            else:
                pieces, raw = self._sniff(self._beginning + b"".join(pieces), False), None
        if self.reader is not None:
            self._stream(self.reader, pieces, raw)
        elif pieces:
            self._hold_whole(pieces)

    def _sniff(self, beginning: bytes, is_all: bool) -> list[bytes]:
        """Find out whether a body is a stream of events; no pieces, as long as there are too few bytes to tell."""
        if looks_like_events(beginning) or (
            is_all and not beginning and (self.content_type or b"").startswith(b"text/event-stream")
        ):
            self._begin_stream()
        elif len(beginning) >= MAX_SNIFFED or is_all:
            self._beginning = None
        else:
            self._beginning = beginning
            return []
        return [beginning] if beginning else []

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
            self._tell(AttemptResult(end, status=self.status, retry_after_s=self.retry_after_s))

    def _does_without_options(self, body: bytes) -> bool:
        """Send it once more, if the replica refused the stream options, which are ours.

        The refusal is remembered only if that helps: an error may have those words from the request.
        """
        if self._bare or self.status not in (400, 422) or body.find(b"stream_options") < 0:
            return False
        request = self.relay.without_options(self)
        if request is None:
            return False
        self._bare = True
        self.status = self._held_bytes = 0
        self.held = []
        self.upstream.send(request, self)
        return True

    def on_lost(self, end: AttemptOutcome) -> None:
        """There will be no more: never connected, broken off, or not HTTP."""
        self.line = None
        broke = end is AttemptOutcome.RESET or end is AttemptOutcome.TRUNCATED
        self._tell(AttemptResult(end, tokens_seen=self.seen, body_hash=self.relay.body_hash() if broke else None))

    def broke(self, callback: Callback, error: Exception) -> None:
        """A callback of ours raised while it worked on this attempt."""
        self.relay.broke(callback, error)

    # ---- streamed answers

    def _stream(self, reader: StreamReader, pieces: list[bytes], raw: bytes | None) -> None:
        now = monotonic()
        splitter = self._splitter
        out: list[bytes] = []
        shown = content = 0
        for piece in pieces:
            events = splitter.feed(piece)
            if splitter.passed:
                if not splitter.is_long:
                    reader.read_long(splitter.long_head, splitter.long_tail)
                    self._odd(reader, b"")
                out.append(splitter.take_passed())
                content += 1
                raw = None
            kept = []
            for event in events:
                if self._guard is not None:
                    self._guard.add(reader.spoken(event))
                kind = int(reader.read(event))
                if reader.model and not self._has_model:
                    self._has_model = True
                    self._learn_model(reader.model, event)
                if reader.oddity is not None:
                    event, raw = self._odd(reader, event), None
                if kind == CONTENT:
                    content += 1
                elif kind:
                    if kind & ERROR and not self._end:
                        self._show(out, None, now, content)
                        self._engine_failed(reader.error)
                        return
                    if kind & CONTENT:
                        content += 1
                if self._end or (kind and not self._is_for_client(event, kind)):
                    raw = None
                    continue
                kept.append(event)
            if kept:
                out.append(kept[0] if len(kept) == 1 else b"".join(kept))
                shown += 1
        self._show(out, raw if splitter.clean and shown == len(pieces) else None, now, content)
        if self._guard is not None and self._guard.found and not reader.finished:
            self.relay.driver.repeats(self.id)

    def _learn_model(self, reported: bytes, where: bytes) -> None:
        """See to it that the client reads the name of the model that it asked for."""
        asked = self.relay.asked_model
        if asked is not None and reported[1:-1] != asked.encode("utf-8", "replace"):
            name = ModelName(asked)
            name.learn(reported, where)
            self._model = name if name.changes else None

    def _is_for_client(self, event: bytes, kind: int) -> bool:
        """Whether an event is passed on now. The end is kept until HTTP has ended, too; what follows it is dropped."""
        if kind & DONE:
            self._end.append(event)
            return False
        return not kind & USAGE_ONLY or self.relay.wants_usage

    def _odd(self, reader: StreamReader, event: bytes) -> bytes:
        """Take note of an odd event; the same, as it may be passed on."""
        if reader.oddity is not None:
            self.upstream.odd(reader.oddity, "passed on as it came")
            reader.oddity = None
        return self.upstream.without_key(event)

    def _show(self, out: list[bytes], raw: bytes | None, now: float, content: int) -> None:
        """Pass whole events on, or hold them until there is something to commit to."""
        if self._model is not None:
            out, raw = [self._model.apply(piece) for piece in out], None
        if self.assembly is not None:
            try:
                self.assembly.add(out)
            except AssemblyError as exc:
                self.upstream.odd(Oddity.NOT_ASSEMBLED, str(exc))
                self._give_up(AttemptOutcome.UNREADABLE)
                return
            out, raw = [], None
        if self._committed:
            if raw is not None:
                self.relay.show_raw(raw, out)
            elif out:
                self.relay.show(out)
            if content:
                gaps = self._gaps
                gaps.add(now - self._last_at)
                for _ in range(content - 1):
                    gaps.add(0.0)
                self._last_at = now
                if not self._progress_at:
                    # It was committed for want of room, and its content begins now.
                    self._client = self._client_of_content
                    self.relay.driver.first_token(self.id)
                if now >= self._progress_at:
                    self._progress_at = now + PROGRESS_EVERY_S
                    self.relay.driver.progress(self.id, self.seen)
            return
        self.held += out
        self._held_bytes += sum(map(len, out))
        if content:
            self._last_at = now
            self._progress_at = now + PROGRESS_EVERY_S
            self.relay.driver.first_token(self.id)
        elif self._held_bytes > HOLD_STREAM_BYTES:
            self._last_at = now
            self.relay.driver.full(self.id)

    def _warn_truncated(self, cause: str) -> None:
        log.warning(
            "replica %s: an answer broke off, %d tokens seen: %s; its client gets an error, or another "
            "replica is asked: see the engine's log",
            self.upstream.spec.name,
            self.seen,
            cause,
        )

    def _stream_ended(self, reader: StreamReader) -> None:
        self._take_rest(reader)
        if self.over:
            return
        # Without a length, a connection that broke off between the ends of two choices closes as one in peace does.
        ok = reader.complete and (self._framed or reader.done or reader.choices_over >= self.relay.ask.choices)
        if ok and self.assembly is not None:
            self.held = self._put_together(self.assembly, self._end)
            ok = bool(self.held)
            self._end = []
        self.complete = ok
        end = COMPLETE
        if ok and self._committed and self.assembly is None:
            self.relay.show(self._end)
        elif ok:
            self.held += self._end
        elif reader.aborted or not self._framed:
            # Without a length every end of the connection looks alike: only the answer itself can say that it is over.
            self._warn_truncated("the engine gave it up" if reader.aborted else "the connection was closed")
            end = AttemptOutcome.TRUNCATED
        else:
            if not reader.complete:
                self.upstream.odd(Oddity.NO_END, "no finish reason and no [DONE] before the stream ended")
            end = AttemptOutcome.UNREADABLE
        output = told_output(reader.output_tokens, reader.tokens_seen > 0)
        if output != reader.output_tokens:
            self.upstream.odd(Oddity.USAGE, "no token where content came: an estimate was taken instead")
        self._tell(
            AttemptResult(
                end,
                prompt_tokens=reader.prompt_tokens,
                output_tokens=output,
                tokens_seen=reader.tokens_seen,
                status=self.status,
                empty=end is not AttemptOutcome.TRUNCATED
                and self._generates
                and not (reader.tokens_seen or reader.output_tokens),
            )
        )

    def _take_rest(self, reader: StreamReader) -> None:
        """The last event may lack the line ends that delimit it. Half an event is dropped, as SSE has it."""
        rest = self._splitter.rest().rstrip(b"\r\n")
        if not rest or self._end:
            return
        if reader.is_whole(rest):
            self._stream(reader, [rest + b"\n\n"], None)
        else:
            self.upstream.odd(Oddity.HALF_EVENT, "the stream ended inside an event, which was dropped")

    def _engine_failed(self, error: EngineError | None) -> None:
        """The engine said inside the answer that it failed."""
        assert error is not None
        if error.end is AttemptOutcome.REJECTED:
            self.status = error.status
        if error.end is AttemptOutcome.REJECTED and not self._committed:
            self.held = [error.body]
        else:
            self.relay.engine_said = self.upstream.without_key(error.message.encode("utf-8", "replace")).decode()
        self._give_up(error.end)

    # ---- whole answers

    def _hold_whole(self, pieces: list[bytes]) -> None:
        if self._committed:
            self.relay.show(pieces)
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
            self.relay.driver.full(self.id)

    def _name_held(self) -> None:
        """Put the asked name into the beginning of an answer that is passed on before it can be read."""
        beginning = b"".join(self.held)
        self._learn_model(model_at_start(beginning), beginning)
        self.held = [beginning if self._model is None else self._model.apply(beginning)]

    def _whole_ended(self) -> None:
        body = self.held[0] if len(self.held) == 1 else b"".join(self.held)
        finish = AttemptResult(COMPLETE, status=self.status)
        try:
            form = self.relay.api.answers.whole
            told, error = (usage_at_end(body), None) if self._committed else read_whole(form, body)
        except Aborted:
            self._warn_truncated("the engine gave it up")
            self._tell(AttemptResult(AttemptOutcome.TRUNCATED))
            return
        except AnswerError as exc:
            self.upstream.odd(Oddity.UNREADABLE_ANSWER, str(exc))
            if not self._framed:
                # Without a length there is no telling a whole answer from one that broke off.
                self._tell(AttemptResult(AttemptOutcome.UNREADABLE))
                return
            finish.tokens_seen = tokens_in(len(body))
            finish.empty = True
            body = self.upstream.without_key(body)
        else:
            if error is not None:
                self._engine_failed(error)
                return
            output = told_output(told.output, told.is_answer and self._generates)
            finish.prompt_tokens, finish.output_tokens = told.prompt, output
            finish.empty = (output == 0 or not told.is_answer) and self._generates
            if not told.is_answer:
                self.upstream.odd(Oddity.UNREADABLE_ANSWER, "the answer has no choices, no content and no output")
            if told.output is not None or told.odd:
                finish.tokens_seen = tokens_in(len(body))  # in case the count is not believed
            if told.odd or output != told.output:
                self.upstream.odd(Oddity.USAGE, "an estimate was taken instead")
            if told.model and not self._committed:
                self._learn_model(told.model, body)
                body = body if self._model is None else self._model.apply(body)
        if self.relay.has_begun and not self._committed:
            # A comment was sent: what follows has to be events.
            self.upstream.odd(Oddity.UNREADABLE_ANSWER, "a stream was asked for, and a whole answer came")
            as_events = self.relay.api.answers.as_events
            self.held = [] if as_events is None else as_events(body, self.relay.wants_usage)
            if not self.held:
                self._tell(AttemptResult(AttemptOutcome.UNREADABLE))
                return
        else:
            self.held = [body]
        self.complete = True
        self._tell(finish)

    # ---- the end

    @property
    def _generates(self) -> bool:
        """Whether an answer without a token is of no use; silence has none in its transcription either."""
        return self.relay.api.answers.whole.generates

    @property
    def seen(self) -> int:
        """Tokens that passed, about."""
        return 0 if self.reader is None else self.reader.tokens_seen

    def _give_up(self, end: AttemptOutcome) -> None:
        """Close the call ourselves: what came is of no use."""
        if self.line is not None:
            self.line.cancel()
            self.line = None
        self._tell(AttemptResult(end, tokens_seen=self.seen, status=self.status))

    def _tell(self, finish: AttemptResult) -> None:
        if self.over:
            return
        self.over = True
        spec = self.upstream.spec
        self.relay.leg_ended(self)
        self.relay.driver.finish(self.id, finish, self.upstream.pool.name, spec.name)
