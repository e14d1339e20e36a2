"""Reads the lines of traces, in all known formats."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from reprlib import repr as cut
from typing import IO, Annotated, TypeVar

import msgspec

MAX_TOKENS = 1_000_000_000
"""Limit on tokens, as in policies and workload files. The load tester's columns can hold four times as many."""


class Wrong(Exception):
    """An error in a line. Lines count from 1."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


Tokens = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]


Named = Annotated[str, msgspec.Meta(pattern=r"^[^\x00-\x1f\x7f]+\Z", max_length=200)]
"""A name. It must not have control characters, because reports and terminals show it."""


class TraceRow(msgspec.Struct, forbid_unknown_fields=True):
    """One request of a trace. Times are seconds of the trace's own clock; missing values are None. This is also a line
    of tailgate's own format.
    """

    at: Annotated[float, msgspec.Meta(ge=0)]
    """Arrival time in seconds. In tailgate's own format, it counts from 0."""
    prompt_tokens: Tokens
    output_tokens: Tokens
    tier: Named | None = None
    tenant: Named | None = None
    model: Named | None = None
    stream: bool = True
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    session: int | None = None
    prefix: tuple[int, ...] = ()


class _Mooncake(msgspec.Struct):
    timestamp: float
    """Arrival time in milliseconds."""
    input_length: Tokens
    output_length: Tokens
    hash_ids: tuple[int, ...] = ()


Reader = Callable[[IO[str]], Iterator[tuple[int, TraceRow]]]
"""A function that yields (line number, row). Raises Wrong."""


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """A format of traces. `tick_s`: requests with the same time are spread over at most this many seconds."""

    name: str
    read: Reader
    tick_s: float = 0.0
    alone_too: bool = False
    """Whether a request that is alone in its tick is moved within it, too, because the trace rounds all times to
    ticks.
    """
    from_zero: bool = False
    """Whether times count from the start of the run, instead of from the first request."""
    names_tiers: bool = False
    """Whether rows may name tier, tenant and model."""
    also: frozenset[str] = frozenset()
    """Columns that are read in addition to those that identify the format."""

    def start(self, first: float) -> float:
        """Start of the run on the trace's clock: the tick of the first request."""
        if self.from_zero:
            return 0.0
        return math.floor(first / self.tick_s) * self.tick_s if self.tick_s else first


def cells(line: int, text: str) -> list[str]:
    """The cells of a line of a CSV file. Lines are parsed one by one, so that an unclosed quote does not swallow the
    next lines. Raises Wrong.
    """
    try:
        return next(csv.reader((text,), strict=True))
    except csv.Error as error:
        raise Wrong(line, f'is not CSV ({error}): close each " on its own line') from None


def _columns(file: IO[str], names: tuple[str, str, str]) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, cells) of three columns of a CSV file. Other columns are ignored."""
    head = [name.strip() for name in cells(1, file.readline())]
    if twice := [name for name in names if head.count(name) > 1]:
        raise Wrong(1, f"has the column {twice[0]} twice: keep one")
    places = [head.index(name) for name in names]
    for line, text in enumerate(file, 2):
        row = cells(line, text)
        if not row:
            continue
        if len(row) != len(head):
            raise Wrong(line, f"has {len(row)} columns, but the first line has {len(head)}")
        yield line, [row[place] for place in places]


def _azure(file: IO[str]) -> Iterator[tuple[int, TraceRow]]:
    names = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
    epoch: datetime | None = None
    for line, (time, prompt, answer) in _columns(file, names):
        try:
            at = datetime.fromisoformat(time)
            epoch = at if epoch is None else epoch
            since = (at - epoch).total_seconds()
        except (ValueError, TypeError):
            raise Wrong(line, f"TIMESTAMP is {time!r}: write it as 2023-11-16 18:17:03.9799600") from None
        yield line, TraceRow(since, _count(line, names[1], prompt), _count(line, names[2], answer))


def _burstgpt(file: IO[str]) -> Iterator[tuple[int, TraceRow]]:
    names = ("Timestamp", "Request tokens", "Response tokens")
    for line, (time, prompt, answer) in _columns(file, names):
        yield (
            line,
            TraceRow(_time(line, names[0], time), _count(line, names[1], prompt), _count(line, names[2], answer)),
        )


def _mooncake(file: IO[str]) -> Iterator[tuple[int, TraceRow]]:
    for line, item in _objects(file, _Mooncake):
        yield line, TraceRow(item.timestamp / 1000, item.input_length, item.output_length, prefix=item.hash_ids)


def _own(file: IO[str]) -> Iterator[tuple[int, TraceRow]]:
    return _objects(file, TraceRow)


Item = TypeVar("Item", bound=msgspec.Struct)


def _objects(file: IO[str], kind: type[Item]) -> Iterator[tuple[int, Item]]:
    """Yield (line number, object) for lines of JSON that are objects of type `kind`. Empty lines are skipped."""
    decode = msgspec.json.Decoder(kind).decode
    for line, text in enumerate(file, 1):
        if text.strip():
            try:
                yield line, decode(text)
            except msgspec.DecodeError as error:
                raise Wrong(line, str(error)) from None


def _count(line: int, name: str, text: str) -> int:
    number = float(text) if text.strip().isdecimal() else math.inf
    if number > MAX_TOKENS:
        raise Wrong(line, f"{name} is {cut(text)}, must be a whole number of tokens, at most {MAX_TOKENS:,}")
    return int(number)


def _time(line: int, name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise Wrong(line, f"{name} is {text!r}, must be a number of seconds")
    return number


FORMATS: dict[TraceFormat, frozenset[str]] = {
    TraceFormat("azure", _azure): frozenset({"TIMESTAMP", "ContextTokens", "GeneratedTokens"}),
    # Times are in whole seconds.
    TraceFormat("burstgpt", _burstgpt, tick_s=1.0, alone_too=True): frozenset(
        {"Timestamp", "Request tokens", "Response tokens"}
    ),
    # The times of the published traces come in ticks of about three seconds, each with many requests. Other traces in
    # this format may have no ticks.
    TraceFormat("mooncake", _mooncake, tick_s=3.0, also=frozenset({"hash_ids"})): frozenset(
        {"timestamp", "input_length", "output_length"}
    ),
    TraceFormat(
        "tailgate", _own, from_zero=True, names_tiers=True, also=frozenset(TraceRow.__struct_fields__)
    ): frozenset({"at", "prompt_tokens", "output_tokens"}),
}
"""Formats, and the column names in the first line by which they are recognised."""
