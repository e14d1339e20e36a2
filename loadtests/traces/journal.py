"""Reads a gateway's journal as a trace, so that its requests can be played again.

The journal has no prompts, only their lengths. A request that was refused, or whose client left, has no known length of
answer. It gets the length of the last answer of its tier and model, so that the arrivals stay the same. This is a hot
deck (Andridge and Little, "A review of hot deck imputation", 2010). Such requests are counted.

A journal may have gaps, where calls are missing. The end of a request that was under way may be among them. The reader
waits for it as long as the request can last; after that, the length of its answer is unknown. An arrival may be
missing, too: such a request gets no row, but an end of it is counted. Before the first gap an end without an arrival is
an error.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from gateway.core.commands import Ended
from gateway.core.journal.codec import Unreadable
from gateway.core.journal.recorder import Decoder, Raised, Unnamed
from gateway.core.pool_spec import Timeouts
from gateway.core.request import Request
from gateway.core.results import Outcome, Record
from gateway.observe.journal.replay import Line, NotReplayable, in_order, lines
from gateway.sim.workload.trace_formats import TraceRow

FIRST_OUTPUT_TOKENS = 128
"""Length of an answer (tokens) before any answer is known."""
FIRST_PER_BYTE = 0.25
NO_TOTAL_S: Final = Timeouts().total_s
"""Seconds to wait for an end after a gap if the tier has no total timeout: the default total timeout. The few requests
that last longer get a guessed length. Without a bound, a missing end would hold up all later rows."""


class JournalRows:
    """The requests of a journal in the order of arrival. Raises NotReplayable or OSError."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.guessed = 0
        """Number of requests with the length of another answer."""
        self.missing = 0
        """Number of calls that the journal has lost, possibly with requests."""
        self.only_ended = 0
        """Number of requests that are known to be lost: their arrival is missing, so they are not in the trace."""
        self._parts = in_order(files)
        self._waiting: deque[_Request] = deque()
        self._open: dict[int, _Request] = {}
        self._given_up: set[int] = set()
        """Ids of requests that were returned before their end, which may still follow."""
        self._now = 0.0
        self._after_gap = False
        self._lengths: dict[tuple[str, str], int] = {}
        self._per_byte: dict[str, float] = {}

    @property
    def now(self) -> float:
        """Time of the last read call, by the clock of the journal."""
        return self._now

    @property
    def waiting(self) -> int:
        """Number of requests that have arrived and are not yet returned as rows."""
        return len(self._waiting)

    @property
    def open(self) -> int:
        """Number of requests whose end was neither read nor given up."""
        return len(self._open)

    @property
    def given_up(self) -> int:
        """Number of requests that were returned as rows before their end was read."""
        return len(self._given_up)

    def rows(self) -> Iterator[TraceRow]:
        """The rows.

        A request is returned once all earlier ones have ended, so only open requests are held. After a gap, so are
        requests that may still be open.
        """
        where, decoder = f"{self._parts[0].path}:1", None
        try:
            decoder = Decoder(self._parts[0].about)
            for line in lines(self._parts):
                where = f"{line.file}:{line.number}"
                self._take(line, decoder)
                yield from self._ready(decoder)
        except Unreadable as error:
            raise NotReplayable(f"{where}: {error} (written by tailgate {self._parts[0].version})") from error
        for request in self._waiting:
            yield self._row(request)

    def _take(self, line: Line, decoder: Decoder) -> None:
        match line.row:
            case {"let": name, "be": value}:
                decoder.let({"let": name, "be": value})
            case {"gap": int(missing)}:
                self.missing += missing
                self._after_gap = True
            case [int() | float() as now, str(), list(), _] as row:
                self._now = now
                if self._after_gap:
                    self._doubt()
                self._call(row, decoder)
            case None:
                pass  # the last line of a killed process is cut off
            case _:
                raise Unreadable("a line is neither a call nor a known object of a journal")

    def _doubt(self) -> None:
        """Note a gap, which may contain the end of every open request. `_now` is the first known moment after the
        gap.
        """
        self._after_gap = False
        for request in self._open.values():
            if request.over_by == math.inf:
                by = request.ask.head_at + request.ask.tier.timeouts.total_s
                request.over_by = by if by < math.inf else self._now + NO_TOTAL_S

    def _call(self, row: Sequence[object], decoder: Decoder) -> None:
        try:
            _, arguments = decoder.call(row)
        except Unnamed:
            if not self.missing:
                raise
            arguments = ()  # the definition of the name is in a gap, so the arrival is lost as well
        for ask in arguments:
            if isinstance(ask, Request):
                request = _Request(ask)
                self._waiting.append(request)
                self._open[ask.id] = request
        answer = decoder.answer(self._of_known(row, decoder) if self.missing else row)
        for command in () if isinstance(answer, Raised) else answer:
            if isinstance(command, Ended):
                self._ended(command.record)

    def _of_known(self, row: Sequence[object], decoder: Decoder) -> Sequence[object]:
        """The row without the ends of requests whose arrival is missing, or that were given up."""
        answer = row[3]
        if not isinstance(answer, list):
            return row
        known: list[object] = []
        for command in answer:
            request_id = decoder.ends(command)
            if request_id is None or request_id in self._open:
                known.append(command)
            elif request_id in self._given_up:
                self._given_up.remove(request_id)
            else:
                self.only_ended += 1
        return [*row[:3], known]

    def _ended(self, record: Record) -> None:
        request = self._open.pop(record.request.id)
        request.over = True
        if record.tokens_exact and record.outcome is Outcome.OK and record.output_tokens > 0:
            request.prompt_tokens, request.output_tokens = record.prompt_tokens, record.output_tokens
            ask = record.request
            self._lengths[ask.tier.name, ask.model.name] = record.output_tokens
            if ask.prompt_bytes:
                self._per_byte[ask.model.name] = record.prompt_tokens / ask.prompt_bytes

    def _ready(self, decoder: Decoder) -> Iterator[TraceRow]:
        while self._waiting and (self._waiting[0].over or self._waiting[0].over_by < self._now):
            request = self._waiting.popleft()
            if not request.over:
                self._given_up.add(request.ask.id)
                del self._open[request.ask.id], decoder.open_requests[request.ask.id]
            yield self._row(request)

    def _row(self, request: _Request) -> TraceRow:
        ask = request.ask
        output_tokens, prompt_tokens = request.output_tokens, request.prompt_tokens or ask.prompt_exact
        if output_tokens is None:
            self.guessed += 1
            output_tokens = self._lengths.get((ask.tier.name, ask.model.name), FIRST_OUTPUT_TOKENS)
            if ask.max_tokens is not None:
                output_tokens = min(output_tokens, ask.max_tokens)
        if prompt_tokens is None:
            prompt_tokens = round(ask.prompt_bytes * self._per_byte.get(ask.model.name, FIRST_PER_BYTE))
        return TraceRow(
            at=ask.body_at,
            prompt_tokens=max(1, prompt_tokens),
            output_tokens=max(1, output_tokens),
            tier=ask.tier.name,
            tenant=ask.tenant,
            model=ask.asked_model or ask.model.name,
            stream=ask.stream,
            max_tokens=ask.max_tokens,
        )


class _Request:
    """A request that has arrived."""

    __slots__ = ("ask", "output_tokens", "over", "over_by", "prompt_tokens")

    def __init__(self, ask: Request) -> None:
        self.ask = ask
        self.over = False
        self.over_by = math.inf
        """Time after which the request cannot be open any more, even if its end is unknown; finite after a gap."""
        self.prompt_tokens: int | None = None
        self.output_tokens: int | None = None
