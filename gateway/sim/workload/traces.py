"""Recorded traffic: reads public traces, and traces in tailgate's own format, row by row.

    azure      CSV    TIMESTAMP,ContextTokens,GeneratedTokens                  Azure LLM inference traces 2023 and 2024
    burstgpt   CSV    Timestamp,Model,Request tokens,Response tokens,...       BurstGPT; seconds, in ticks of 1 s
    mooncake   JSONL  {"timestamp", "input_length", "output_length", "hash_ids"}        ms, in ticks of about 3 s
    tailgate   JSONL  {"at", "prompt_tokens", "output_tokens", ...}: the fields of `Arrival`; the rest may be left out

The first line shows the format. Requests that share a tick are spread over it at random; the seed of the run decides
how. In a Mooncake trace, a request that is alone at its millisecond is not moved. In BurstGPT, a request that is alone
in its second is moved within it. Rows without prompt or answer (0 tokens) are left out: these requests failed when they
were recorded. Fields that are missing in a row (tier, tenant, model) come from `Mix`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from random import Random

from gateway.core.policy import Policy
from gateway.policy.sections.units import share as read_share
from gateway.sim.workload.arrivals import Arrival
from gateway.sim.workload.trace_formats import FORMATS, TraceFormat, TraceRow, Wrong, cells

SHOWN_LINES = 5
GZIP = b"\x1f\x8b"
ENCODING = "utf-8-sig"
"""Accepts text with or without a byte order mark."""
MAX_S = 1e9
"""Limit on a trace's length in seconds: 31 years. A longer time shows that the unit is wrong, or that times count from
1970.
"""
ROUNDED = 0.005
"""Tolerance (0-1) for shares that should add up to 100%. With it, three shares of 33.3% are accepted."""


class TraceError(ValueError):
    """`file:line: what is wrong, what would be right`."""


@dataclass(frozen=True, slots=True)
class Mix:
    """Assigns tiers, tenants and a model to the requests of a trace. It has (tier, weight) pairs and the number of
    tenants per tier.
    """

    tiers: tuple[tuple[str, float], ...] = (("default", 1.0),)
    tenants: int = 1
    model: str = "default"

    def whose(self, draw: Random) -> tuple[str, int]:
        """(tier, number of the tenant in it, from 1) of the next request. It takes two random numbers."""
        (tier,) = draw.choices([tier for tier, _ in self.tiers], [part for _, part in self.tiers])
        return tier, int(draw.random() * self.tenants) + 1


def mix_for(mix: str | None, policy: Policy | None, model: str | None) -> Mix:
    """The mix for a trace: the one in the text `mix`, or else all requests in the policy's default tier. Raises
    ValueError.
    """
    asked = model or (next(iter(policy.models)) if policy is not None else "default")
    if mix is not None:
        return mix_of(mix, asked)
    return Mix(model=asked) if policy is None else Mix(((policy.default_tier, 1.0),), model=asked)


def mix_of(text: str, model: str = "default") -> Mix:
    """Read a mix such as `premium=20%,free=80%`. Raises ValueError that says what would be right."""
    parts: list[tuple[str, float]] = []
    for piece in text.split(","):
        tier, _, part = piece.strip().partition("=")
        try:
            share = read_share(part)
        except ValueError:
            share = 0.0
        if not tier or share <= 0:
            lacks = f"{part} lacks its %: " if part.replace(".", "", 1).isdecimal() else ""
            example = "such as premium=20%,free=80%"
            raise ValueError(
                f"--mix {piece.strip() or 'has an empty part'}: {lacks}a mix is written TIER=SHARE,..., {example}"
            )
        if tier in dict(parts):
            raise ValueError(f"--mix {text}: {tier} is there twice: add its shares up")
        parts.append((tier, share))
    total = sum(share for _, share in parts)
    if abs(total - 1.0) > ROUNDED:
        raise ValueError(f"--mix {text}: the shares add up to {100 * total:.6g}%: make it 100%")
    return Mix(tuple(parts), model=model)


@dataclass(slots=True)
class EmptyRows:
    """Counts rows without prompt or answer, as a callback for `Trace.on_empty`."""

    rows: int = 0
    lines: list[int] = field(default_factory=list)
    """The line numbers of the first few of them."""

    def add(self, line: int) -> None:
        """Count one more such row."""
        self.rows += 1
        if self.rows <= SHOWN_LINES:
            self.lines.append(line)

    def __str__(self) -> str:
        lines = ", ".join(map(str, self.lines)) + (" ..." if self.rows > len(self.lines) else "")
        return f"left out: {self.rows:,} rows of 0 tokens (failed when they were recorded; lines {lines})"


def _unheard(line: int) -> None:
    """Ignore such a row."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded workload. `speed`: 2 plays it twice as fast. `duration_s`: requests after this time of the run are
    left out.

    `lasts_s`: the trace is repeated until this time; with inf it is played once.
    """

    path: Path
    format: TraceFormat
    mix: Mix
    speed: float = 1.0
    duration_s: float = math.inf
    lasts_s: float = math.inf
    on_empty: Callable[[int], None] = field(default=_unheard, compare=False)
    """Called with the line number of each row without prompt or answer."""

    def arrivals(self, seed: int) -> Iterator[Arrival]:
        """The requests of one run. The first tick is at 0. Raises TraceError."""
        whose, jitter = Random(f"{seed} mix"), Random(f"{seed} jitter")
        until_s, begun = min(self.duration_s, self.lasts_s), 0.0
        while True:
            count, start, at = 0, math.nan, begun
            for row in spread(self.rows(), self.format, jitter):
                start = start if count else self.format.start(row.at)
                at = begun + (row.at - start) / self.speed
                if at >= until_s:
                    return
                count += 1
                tier, nth = self.mix.whose(whose)
                tier = row.tier or tier
                yield Arrival(
                    at,
                    tier,
                    row.tenant or f"{tier}-{nth}",
                    row.model or self.mix.model,
                    row.prompt_tokens,
                    row.output_tokens,
                    row.stream,
                    row.max_tokens,
                    row.session,
                    row.prefix,
                )
            if math.isinf(self.lasts_s):
                return
            # the repetition starts a mean gap later; a trace that can be repeated has at least two requests
            begun = at + (at - begun) / (count - 1)

    def at_rate(self, rate_per_s: float) -> Trace:
        """A copy that is played faster or slower, to have this mean rate. Reads the whole trace. Raises TraceError."""
        count, first, last = 0, math.nan, math.nan
        wanted = max(1.0, rate_per_s * self.duration_s)
        rows = self.rows() if math.isinf(wanted) else spread(self.rows(), self.format, Random("rate"))
        for row in rows:
            first = row.at if not count else first
            start = self.format.start(first)
            if count + 0.5 >= wanted and row.at > start:
                return replace(self, speed=(row.at - start) / self.duration_s)
            last, count = row.at, count + 1
        if count < 2 or last <= first:
            raise TraceError(f"{self.path}: has no rate: a rate needs two requests at different times")
        return replace(self, speed=rate_per_s * (last - first) / count)

    def faster(self, times: float) -> Trace:
        """A copy of the same duration with a multiple of its rate: it is played faster, and repeated. Raises
        TraceError.

        Without the repetition, a search over rates would compare ever shorter overloads.
        """
        lasts_s = self._length_s() if math.isinf(self.lasts_s) else self.lasts_s
        return replace(self, speed=self.speed * times, lasts_s=lasts_s)

    def _length_s(self) -> float:
        """Duration of the trace in seconds, with a mean gap after its last request; at most `duration_s`."""
        count, start, last = 0, math.nan, math.nan
        for row in self.rows():
            start = start if count else self.format.start(row.at)
            last, count = row.at, count + 1
            if (last - start) / self.speed >= self.duration_s:
                return self.duration_s
        if count < 2 or last <= start:
            raise TraceError(f"{self.path}: has no rate: a rate needs two requests at different times")
        return min(self.duration_s, (last - start) / self.speed * count / (count - 1))

    def rows(self) -> Iterator[TraceRow]:
        """All requests that had a prompt and an answer, as recorded. Raises TraceError."""
        for line, row in self.lines():
            if row.prompt_tokens > 0 and row.output_tokens > 0:
                yield row
            else:
                self.on_empty(line)

    def unread(self) -> tuple[str, ...]:
        """Columns, or keys of the first object, that are not used, such as names of models or sums."""
        return tuple(sorted(_names(_first_line(self.path).strip()) - FORMATS[self.format] - self.format.also))

    def lines(self) -> Iterator[tuple[int, TraceRow]]:
        """(line number, row) of all requests, including those that failed when they were recorded. Raises
        TraceError.
        """
        start, before = None, -math.inf
        try:
            with self.path.open(newline="", encoding=ENCODING) as file:
                for line, row in self.format.read(file):
                    if start is None:
                        start = self.format.start(row.at)
                    if row.at < before:
                        raise Wrong(line, "is earlier than the line before: sort the file by time")
                    if row.at - start > MAX_S:
                        raise Wrong(line, f"is {row.at - start:g} s from the start, must be at most {MAX_S:g} s")
                    before = row.at
                    yield line, row
        except Wrong as wrong:
            raise TraceError(f"{self.path}:{wrong.line}: {wrong}") from None
        except UnicodeDecodeError as error:
            raise TraceError(f"{self.path}: is not UTF-8 at byte {error.start}") from None


def _first_line(path: Path) -> str:
    with path.open(newline="", encoding=ENCODING) as file:
        return file.readline()


def open_trace(path: Path, mix: Mix, speed: float = 1.0) -> Trace:
    """A trace of any known format. Raises TraceError if its format is unknown, or it cannot be read."""
    try:
        first = _first_line(path)
    except (OSError, UnicodeDecodeError) as error:
        packed = isinstance(error, UnicodeDecodeError) and error.object.startswith(GZIP)
        why = "it is packed by gzip: unpack it first" if packed else getattr(error, "strerror", None) or "not UTF-8"
        raise TraceError(f"{path}: cannot be read: {why}") from None
    if not first:
        raise TraceError(f"{path}: is empty: it has no request")
    names = _names(first.strip())
    if "journal" in names:
        raise TraceError(f"{path}:1: is a gateway's journal: make a trace of it by tailgate load convert {path} OUT")
    for fmt, wanted in FORMATS.items():
        if wanted <= names:
            return Trace(path, fmt, mix, speed)
    known = "; ".join(f"{fmt.name}: {', '.join(sorted(wanted))}" for fmt, wanted in FORMATS.items())
    raise TraceError(f"{path}:1: is not the first line of a known format. Known, by their fields: {known}")


def spread(
    rows: Iterable[TraceRow], of: TraceFormat, jitter: Random, moved: Callable[[int], None] = lambda rows: None
) -> Iterator[TraceRow]:
    """Yield the rows. Those of one tick are spread over the tick, or up to the next tick if that comes sooner.

    `moved` is called with the number of rows that were spread.
    """
    if not of.tick_s:
        yield from rows
        return
    held: list[TraceRow] = []

    def released(span_s: float) -> list[TraceRow]:
        if len(held) < 2 and not of.alone_too:
            return held
        moved(len(held))
        for row in held:
            row.at += span_s * jitter.random()
        return sorted(held, key=lambda row: row.at)

    for at, group in groupby(rows, key=lambda row: row.at):
        yield from released(min(of.tick_s, at - held[0].at) if held else 0.0)
        held = list(group)
    yield from released(of.tick_s)


def _names(head: str) -> frozenset[str]:
    """Column names, or the keys of a first object."""
    try:
        names = json.loads(head) if head.startswith("{") else cells(1, head)
    except (ValueError, RecursionError, Wrong):
        return frozenset()
    return frozenset(name.strip() for name in names)
