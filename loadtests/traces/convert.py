"""Converts traces between formats, row by row; everything left out is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from random import Random
from typing import IO

from gateway.observe.journal.replay import is_journal
from gateway.sim.workload.trace_formats import TraceRow
from gateway.sim.workload.traces import EmptyRows, Mix, TraceError, open_trace, spread
from loadtests.traces.journal import JournalRows
from loadtests.traces.sharegpt import ShareGptRows, is_sharegpt
from loadtests.traces.writers import WRITERS

TELL_EVERY = 1000
TICKS = {1.0: "second", 0.001: "millisecond"}
EXACT_S = 1e-7
"""Times are kept in microseconds."""


@dataclass(slots=True)
class Converted:
    """Counts of converted and of omitted rows."""

    format: str
    """The format of the input."""
    to: str
    written: int = 0
    left_out: EmptyRows = field(default_factory=EmptyRows)
    lost: Counter[str] = field(default_factory=Counter)
    """Rows by field that the output format cannot hold."""
    unread: tuple[str, ...] = ()
    """Columns of the input that tell nothing about a request's time, length or tenant."""
    spread: int = 0
    """Requests whose trace gives their time only to a tick."""
    guessed: int = 0
    missing: int = 0
    only_ended: int = 0
    unanswered: int = 0
    """Conversations without an answer to a question."""

    def rounds(self, at: float, tick_s: float) -> None:
        """Count a request whose time `at` is rounded to a tick."""
        if tick_s and abs(at - round(at / tick_s) * tick_s) > EXACT_S:
            self.lost[f"fraction of the {TICKS[tick_s]}"] += 1

    def as_json(self) -> dict[str, object]:
        """The counts for a program."""
        return {**asdict(self), "lost": dict(self.lost)}

    def told(self) -> Iterator[str]:
        """The notes for people, one per line."""
        yield f"{self.written:,} requests, {self.format} to {self.to}"
        if self.left_out.rows:
            yield str(self.left_out)
        if self.unread:
            yield f"not read: {', '.join(self.unread)}, columns of {self.format} that a request here lacks"
        for name, count in self.lost.items():
            yield f"lost: {name} of {count:,} requests, which {self.to} cannot hold"
        if self.spread:
            yield f"{self.spread:,} requests were spread over their tick, by seed 1: their trace says no more"
        if self.guessed:
            like = "each got the length of another answer of its tier"
            yield f"{self.guessed:,} requests have no complete answer in the journal: {like}"
        if self.format == "sharegpt":
            yield "times are drawn by seed 1: one conversation a second, 10 s to think; lengths are four bytes a token"
        if self.unanswered:
            yield f"{self.unanswered:,} conversations are left out: they have no answer to a question"
        if self.missing:
            yield f"{self.missing:,} calls are missing in the journal: requests may be among them"
        if self.only_ended:
            yield f"{self.only_ended:,} requests are left out: the journal has their end, but not their arrival"


def convert(sources: Sequence[Path], out: IO[str], to: str, tell: Callable[[int], None]) -> Converted:
    """Read and write row by row. After TraceError, NotReplayable or OSError the output is not a complete trace."""
    writer = WRITERS[to]
    journal = _journal(sources)
    talks = ShareGptRows(sources[0]) if journal is None and len(sources) == 1 and is_sharegpt(sources[0]) else None
    done = Converted("journal" if journal else "sharegpt" if talks else "", to)
    rows = journal.rows() if journal else talks.rows() if talks else _rows(sources, done, writer.tick_s)
    write = writer.open(out)
    start: float | None = None
    for row in rows:
        if start is None:
            start = row.at if journal or talks else 0.0
        row.at -= start
        done.lost.update(writer.lacks(row))
        if journal or talks:
            done.rounds(row.at, writer.tick_s)
        write(row)
        done.written += 1
        if done.written % TELL_EVERY == 0:
            tell(done.written)
    if journal:
        done.guessed, done.missing, done.only_ended = journal.guessed, journal.missing, journal.only_ended
    if talks:
        done.unanswered = talks.unanswered
    if not done.written:
        left_out = f" ({done.left_out})" if done.left_out.rows else ""
        raise TraceError(f"{', '.join(map(str, sources))}: no requests in it{left_out}: there is nothing to convert")
    return done


def _journal(sources: Sequence[Path]) -> JournalRows | None:
    """The requests of a journal; None if these files are not one. Raises NotReplayable if it cannot be read."""
    return JournalRows(sources) if is_journal(sources[0]) else None


def _rows(sources: Sequence[Path], done: Converted, tick_s: float) -> Iterator[TraceRow]:
    """The rows of a trace that ran, with times from 0 on."""
    if len(sources) != 1:
        raise TraceError(f"{sources[1]}: convert one trace at a time; only the files of a journal go together")
    trace = replace(open_trace(sources[0], Mix()), on_empty=done.left_out.add)
    done.format, done.unread = trace.format.name, trace.unread()
    start: float | None = None

    def moved(rows: int) -> None:
        done.spread += rows

    def recorded() -> Iterator[TraceRow]:
        nonlocal start
        for row in trace.rows():
            start = trace.format.start(row.at) if start is None else start
            row.at -= start
            done.rounds(row.at, tick_s)
            yield row

    # An output format without finer times keeps the tick.
    coarse = trace.format.tick_s <= tick_s
    yield from recorded() if coarse else spread(recorded(), trace.format, Random("1 jitter"), moved)
