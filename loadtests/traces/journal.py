"""The gateway's journal as a trace: what its clients asked for, so that it can be played again.

The journal has no prompts; it has their lengths. A request that was refused, or whose client left, has no answer whose
length could be known: it gets that of the answer which its tier and model had last, so that what arrives stays what
arrived (a hot deck; Andridge and Little, "A review of hot deck imputation", 2010). How many those are is counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from gateway.core.commands import Ended
from gateway.core.journal import Decoder, Raised
from gateway.core.model import Ask, Outcome, Record
from gateway.core.plain import Unreadable
from gateway.observe.replay import Line, NotReplayable, in_order, lines
from gateway.sim.trace_formats import Row

FIRST_OUTPUT_TOKENS = 128
"""Before any answer is known."""
FIRST_PER_BYTE = 0.25


class JournalRows:
    """The requests of a journal in the order in which they arrived. Raises NotReplayable or OSError."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.guessed = 0
        """Requests whose answer has a length that another had."""
        self.missing = 0
        """Calls that the journal has lost: requests may be among them."""
        self._parts = in_order(files)
        self._waiting: deque[_Request] = deque()
        self._open: dict[int, _Request] = {}
        self._lengths: dict[tuple[str, str], int] = {}
        self._per_byte: dict[str, float] = {}

    def rows(self) -> Iterator[Row]:
        """A request leaves when all that came before it have ended, so what is held are those under way."""
        where, decoder = f"{self._parts[0].path}:1", None
        try:
            decoder = Decoder(self._parts[0].about)
            for line in lines(self._parts):
                where = f"{line.file}:{line.number}"
                self._take(line, decoder)
                yield from self._ready()
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
            case [_, str(), list(), _] as row:
                _, arguments = decoder.call(row)
                for ask in arguments:
                    if isinstance(ask, Ask):
                        request = _Request(ask)
                        self._waiting.append(request)
                        self._open[ask.id] = request
                answer = decoder.answer(row)
                for command in () if isinstance(answer, Raised) else answer:
                    if isinstance(command, Ended):
                        self._ended(command.record)
            case None:
                pass  # the last line of a process that was killed
            case _:
                raise Unreadable("this is neither a call nor anything known about a journal")

    def _ended(self, record: Record) -> None:
        request = self._open.pop(record.ask.id)
        request.over = True
        if record.tokens_exact and record.outcome is Outcome.OK and record.output_tokens > 0:
            request.prompt_tokens, request.output_tokens = record.prompt_tokens, record.output_tokens
            ask = record.ask
            self._lengths[ask.tier.name, ask.model.name] = record.output_tokens
            if ask.prompt_bytes:
                self._per_byte[ask.model.name] = record.prompt_tokens / ask.prompt_bytes

    def _ready(self) -> Iterator[Row]:
        while self._waiting and self._waiting[0].over:
            yield self._row(self._waiting.popleft())

    def _row(self, request: _Request) -> Row:
        ask = request.ask
        output_tokens, prompt_tokens = request.output_tokens, request.prompt_tokens or ask.prompt_exact
        if output_tokens is None:
            self.guessed += 1
            output_tokens = self._lengths.get((ask.tier.name, ask.model.name), FIRST_OUTPUT_TOKENS)
            if ask.max_tokens is not None:
                output_tokens = min(output_tokens, ask.max_tokens)
        if prompt_tokens is None:
            prompt_tokens = round(ask.prompt_bytes * self._per_byte.get(ask.model.name, FIRST_PER_BYTE))
        return Row(
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
    """One that has arrived."""

    __slots__ = ("ask", "output_tokens", "over", "prompt_tokens")

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.over = False
        self.prompt_tokens: int | None = None
        self.output_tokens: int | None = None
