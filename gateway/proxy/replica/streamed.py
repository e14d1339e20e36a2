"""A streamed answer: its events are held until the first content and a commit, and are then forwarded."""

from __future__ import annotations

from typing import Final

from gateway.core.estimators.histograms import LogHistogram
from gateway.core.results import AttemptOutcome, AttemptResult, Reason
from gateway.core.scheduling.usage import told_output
from gateway.proxy.client_writer import ClientWriter
from gateway.proxy.replica.answer import HeldAnswer
from gateway.proxy.replica.owner import AttemptOwner
from gateway.proxy.replica.upstream import ReplicaConnections
from gateway.wire.answers.assemble import Assembly, AssemblyError
from gateway.wire.answers.events import EventKind, StreamReader
from gateway.wire.answers.oddity import Oddity
from gateway.wire.answers.repetition import RepetitionDetector
from gateway.wire.answers.sse import EventSplitter
from gateway.wire.http.framing import chunk, payload_of_one

# Limit on the bytes held before commit. If more come before the first token, the stream is committed early.
HOLD_STREAM_BYTES: Final = 1024 * 1024

# Flags are plain integers with module-level names, because enum flags take ten times as long to read and combine.
CONTENT: Final = int(EventKind.CONTENT)
USAGE_ONLY: Final = int(EventKind.USAGE_ONLY)
DONE: Final = int(EventKind.DONE)
ERROR: Final = int(EventKind.ERROR)
COMPLETE: Final = AttemptOutcome.COMPLETE
UNREPORTED: Final = -1
NO_GAPS: Final = LogHistogram(())
NO_EVENTS: Final = EventSplitter()
"""The splitter of an answer that is not a stream; never used."""


class StreamedAnswer(HeldAnswer):
    """A streamed answer, with a fast path for ordinary tokens."""

    __slots__ = (
        "_clean",
        "_client",
        "_client_of_content",
        "_driver",
        "_end",
        "_gaps",
        "_last_at",
        "_repetition",
        "_report",
        "_splitter",
    )

    def __init__(self, owner: AttemptOwner, attempt: int, upstream: ReplicaConnections) -> None:
        super().__init__(owner, attempt, upstream)
        # The fields that `pass_on` reads come first and together, so that they lie on few cache lines.
        self._client: ClientWriter | None = None
        """The client, if chunks can be forwarded to it unchanged; None before content, or if it needs another
        framing.
        """
        self._clean = True
        """Whether the next read begins with an event."""
        self._report = 0
        """Number of the driver's report that will include the latest content; 0 before the first content, `UNREPORTED`
        just after it.
        """
        self._last_at = 0.0
        self._gaps = NO_GAPS
        self._driver = owner.driver
        self._splitter = NO_EVENTS
        self._end: list[bytes] = []
        """The closing events of the answer, held until the HTTP message has ended, too."""
        self._client_of_content: ClientWriter | None = None
        """The client that becomes `_client` at the first content."""
        self._repetition: RepetitionDetector | None = None
        """Detects an answer that repeats itself; None if the tier does not cut such answers."""

    def commit(self, client: ClientWriter | None) -> list[bytes]:
        """Forward all later events. Returns the bytes held so far.

        `client`: the client, if it takes chunks in the replica's framing; None if it needs another framing.
        """
        self._committed = True
        if self.reader is not None and self._repetition is None and self.assembly is None and not self._end:
            if self._report:
                self._client = client
            else:
                self._client_of_content = client
        held, self.held = self.held, []
        return held

    def pass_on(self, data: bytes) -> bool:
        """The fast path for nearly every token: a read that has exactly one chunk with one event of plain output.
        Returns False for other reads.

        `data` must begin at the beginning of a chunk.
        """
        client, reader = self._client, self.reader
        if client is None or reader is None or not self._clean:
            return False
        start = payload_of_one(data)
        if not start or not reader.plain(data, start):
            return False
        if self._model is None:
            client.write(data)
        else:
            client.write(chunk(self._model.apply_to_one(data[start:-2])))
        reader.tokens_seen += 1
        driver = self._driver
        now = driver.clock()
        self._gaps.add(now - self._last_at)
        self._last_at = now
        if self._report != driver.next_report:
            self._report = driver.next_report
            driver.grew(self.id, reader)
        return True

    @property
    def last_at(self) -> float:
        """Time of the last content; 0 if there was none."""
        return self._last_at

    @property
    def is_inside_event(self) -> bool:
        """Whether the last forwarded bytes are a part of an event that is too long to be held back until its end."""
        return self._splitter.is_long

    def _begin_stream(self) -> None:
        """Prepare to read the body as a stream of events."""
        self._splitter = EventSplitter()
        answers = self.owner.api.answers
        assert answers.reader is not None
        self.reader = answers.reader()
        if self.owner.request.assembled:
            assert answers.assembly is not None
            self.assembly = answers.assembly()
            self.content_type, self.coding = b"application/json", None
        if self.owner.may_be_cut:
            self.reader.remember()
        rules = self.owner.request.tier.repetition
        if rules is not None and self.owner.request.choices == 1:
            self._repetition = RepetitionDetector(rules.characters, rules.repeats)
        self._gaps = self.owner.gaps(self.upstream)

    def _stream(self, reader: StreamReader, pieces: list[bytes], raw: bytes | None) -> None:
        now = self._driver.clock()
        splitter = self._splitter
        if not self._clean:
            raw = None  # `raw` lacks the beginning of its first event, which came in an earlier read
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
                if self._repetition is not None:
                    self._repetition.add(reader.spoken(event))
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
                        self._show(reader, out, None, now, content)
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
        self._clean = splitter.clean
        self._show(reader, out, raw if splitter.clean and shown == len(pieces) else None, now, content)
        if self._repetition is not None and self._repetition.found and not (reader.finished or self.over):
            self._driver.repeats(self.id)

    def _is_for_client(self, event: bytes, kind: int) -> bool:
        """Whether an event is forwarded now.

        The closing events are held until the HTTP message has ended, too. Events after the closing events are dropped.
        """
        if kind & DONE:
            self._client = None  # with a client, `pass_on` would forward an event after this one
            self._end.append(event)
            return False
        return not kind & USAGE_ONLY or self.owner.wants_usage

    def _odd(self, reader: StreamReader, event: bytes) -> bytes:
        """Report an odd event. Returns the event in a form that may be forwarded."""
        if reader.oddity is not None:
            self.upstream.odd(reader.oddity, "passed on as it came")
            reader.oddity = None
        return self.upstream.without_key(event)

    def _show(self, reader: StreamReader, out: list[bytes], raw: bytes | None, now: float, content: int) -> None:
        """Forward whole events, or hold them back until commit."""
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
                self.owner.show_raw(raw, out)
            elif out:
                self.owner.show(out)
            if content:
                gaps = self._gaps
                gaps.add(now - self._last_at)
                for _ in range(content - 1):
                    gaps.add(0.0)
                self._last_at = now
                driver = self._driver
                if not self._report:
                    # The stream was committed early, since too much was held. Its content begins only now.
                    self._client = self._client_of_content
                    driver.first_token(self.id)
                if self._report != driver.next_report:
                    self._report = driver.next_report
                    driver.grew(self.id, reader)
            return
        self.held += out
        self._held_bytes += sum(map(len, out))
        if content:
            self._last_at = now
            self._report = UNREPORTED
            self._driver.first_token(self.id)
        elif self._held_bytes > HOLD_STREAM_BYTES:
            self._last_at = now
            self._driver.full(self.id)

    # ---- the end

    def cut_short(self, why: Reason, prompt_tokens: int) -> list[bytes]:
        """Bytes that end the answer here as incomplete. For an assembled answer, the bytes are the whole answer.

        The list is empty if the answer is not a stream, or has too little content.
        """
        owner, reader = self.owner, self.reader
        if reader is None:
            return []
        end = reader.cut_short(why, prompt_tokens, owner.request.choices, owner.wants_usage)
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

    def _stream_ended(self, reader: StreamReader) -> None:
        self._take_rest(reader)
        if self.over:
            return
        # Without a length or [DONE], a connection that breaks between the ends of two choices looks like a proper end.
        ok = reader.complete and (self._framed or reader.done or reader.choices_over >= self.owner.request.choices)
        if ok and self.assembly is not None:
            self.held = self._put_together(self.assembly, self._end)
            ok = bool(self.held)
            self._end = []
        self.complete = ok
        end = COMPLETE
        if ok and self._committed and self.assembly is None:
            self.owner.show(self._end)
        elif ok:
            self.held += self._end
        elif reader.aborted or not self._framed:
            # Without a length, all ends of a connection look alike. Only the answer itself can show that it is
            # complete.
            self._warn_truncated("the engine aborted it" if reader.aborted else "the connection was closed")
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
                cached_tokens=reader.cached_tokens,
                reasoning_tokens=reader.reasoning_tokens,
            )
        )

    def _take_rest(self, reader: StreamReader) -> None:
        """Handle the end of the stream. The last event may lack its blank line; half an event is dropped, as SSE
        prescribes."""
        rest = self._splitter.rest().rstrip(b"\r\n")
        if not rest or self._end:
            return
        if reader.is_whole(rest):
            self._stream(reader, [rest + b"\n\n"], None)
        else:
            self.upstream.odd(Oddity.HALF_EVENT, "the stream ended inside an event, which was dropped")
