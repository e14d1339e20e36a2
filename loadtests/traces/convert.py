"""From one format of traces to another, row by row; nothing is left out without being counted."""

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
"""Times are kept no more exactly than in microseconds."""


@dataclass(slots=True)
class Converted:
    """Counts of converted and of omitted rows."""

    format: str
    """The format of the input."""
    to: str
    written: int = 0
    left_out: EmptyRows = field(default_factory=EmptyRows)
    lost: Counter[str] = field(default_factory=Counter)
    """Rows by what they say and the format written has no place for."""
    unread: tuple[str, ...] = ()
    """Columns of what was read that say nothing of when a request came, how long it is, or whose."""
    spread: int = 0
    """Requests that came some time within a tick, which is all that their trace says."""
    guessed: int = 0
    missing: int = 0
    only_ended: int = 0
    unanswered: int = 0
    """Conversations without an answer to a question."""

    def rounds(self, at: float, tick_s: float) -> None:
        """Count it if a request that came `at` a time is written with another, to a tick."""
        if tick_s and abs(at - round(at / tick_s) * tick_s) > EXACT_S:
            self.lost[f"fraction of the {TICKS[tick_s]}"] += 1

    def as_json(self) -> dict[str, object]:
        """For a program."""
        return {**asdict(self), "lost": dict(self.lost)}

    def told(self) -> Iterator[str]:
        """For people, a line each."""
        yield f"{self.written:,} requests, {self.format} to {self.to}"
        if self.left_out.rows:
            yield str(self.left_out)
        if self.unread:
            yield f"not read: {', '.join(self.unread)}, which {self.format} has and a request here has not"
        for name, count in self.lost.items():
            yield f"lost: {name} of {count:,} requests, for which {self.to} has no place"
        if self.spread:
            yield f"{self.spread:,} requests were spread over their tick, by seed 1: their trace says no more"
        if self.guessed:
            like = "theirs is as long as that of another of their tier"
            yield f"{self.guessed:,} requests had no whole answer in the journal: {like}"
        if self.format == "sharegpt":
            yield "times are drawn by seed 1: one conversation a second, 10 s to think; lengths are four bytes a token"
        if self.unanswered:
            yield f"{self.unanswered:,} conversations are left out: they have no answer to a question"
        if self.missing:
            yield f"{self.missing:,} calls are missing in the journal: requests may be among them"
        if self.only_ended:
            yield f"{self.only_ended:,} requests are left out: the journal has their end, and their arrival is missing"


def convert(sources: Sequence[Path], out: IO[str], to: str, tell: Callable[[int], None]) -> Converted:
    """Read and write row by row. The output is no trace if it raises TraceError, NotReplayable or OSError."""
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
    """None where these are no journal. Raises NotReplayable where they are one that cannot be read."""
    return JournalRows(sources) if is_journal(sources[0]) else None


def _rows(sources: Sequence[Path], done: Converted, tick_s: float) -> Iterator[TraceRow]:
    """Of a trace, from 0 on, those that ran."""
    if len(sources) != 1:
        raise TraceError(f"{sources[1]}: one trace at a time; only the files of a journal go together")
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

    # A format that cannot say more than the tick keeps it.
    coarse = trace.format.tick_s <= tick_s
    yield from recorded() if coarse else spread(recorded(), trace.format, Random("1 jitter"), moved)
