"""Many streams at once: each is read to its end, event by event, or is held open and watched."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import cast

from loadtests.bench import canned
from loadtests.bench.answer import Answer, BadAnswer
from loadtests.bench.patience import until
from loadtests.processes import tree_usage

MAX_ERRORS = 10
WARM_CHUNKS = 10
PROBING = 8
"""Connections that probes use in turn."""
SLACK_S = 20.0
"""Seconds by which a stream may end too late before it counts as lost."""


@dataclass(frozen=True, slots=True)
class Streams:
    """`streams` answers of `chunks` content chunks each, all at once; CPU of process `watch` from first to last."""

    port: int
    watch: int
    interval_s: float
    streams: int = 200
    chunks: int = 200


@dataclass(frozen=True, slots=True)
class StreamsResult:
    """`chunks` counts content chunks of all streams."""

    chunks: int
    seconds: float
    cpu_s: float
    errors: list[str]


@dataclass(frozen=True, slots=True)
class Hold:
    """`streams` answers that stay open while they are watched for `seconds`. Each must get `chunks` in that time."""

    port: int
    watch: int
    interval_s: float
    streams: int = 5000
    chunks: int = 2
    seconds: float = 11.0
    opened_per_s: float = 1000.0
    probes: int = 0
    """Answers of one token that are asked for meanwhile, one after another."""


@dataclass(frozen=True, slots=True)
class HoldResult:
    """Resident bytes without streams and with all of them, the fewest events that any stream got, and the CPU for all
    `events`.
    """

    alive: int
    fewest_events: int
    events: int
    cpu_s: float
    rss_before: int
    rss_after: int
    ttft_p50_s: float
    """Of the probes; 0 without any."""
    errors: list[str]


class Reader(asyncio.Protocol):
    """One connection that reads one stream at a time."""

    def __init__(self) -> None:
        self.answer = Answer()
        self.error: str | None = None
        self.begun: asyncio.Future[None]
        self.ended: asyncio.Future[None]
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are not subclasses of asyncio's

    def ask(self, port: int, chunks: int) -> None:
        """Start a stream of `chunks`."""
        loop = asyncio.get_running_loop()
        self.answer.reset()
        self.begun, self.ended = loop.create_future(), loop.create_future()
        self._transport.write(canned.request(f"127.0.0.1:{port}", stream=True, max_tokens=chunks))

    def data_received(self, data: bytes) -> None:
        """Count the events, and wake the waiting task."""
        try:
            self.answer.feed(data)
        except BadAnswer as error:
            self._fail(str(error))
            self._transport.abort()
            return
        # The role chunk opens a stream; the second event is its first token.
        if self.answer.events >= 2 and not self.begun.done():
            self.begun.set_result(None)
        if self.answer.done:
            self._settle()

    def connection_lost(self, error: Exception | None) -> None:
        """The end of the connection is an error only if a stream was under way."""
        if not self.answer.done:
            self._fail(f"connection lost: {error or 'closed by the other side'}")

    def close(self) -> None:
        """Close the connection, even during a stream."""
        self._transport.abort()

    def _fail(self, what: str) -> None:
        self.error = self.error or what
        self._settle()

    def _settle(self) -> None:
        for future in (self.begun, self.ended):
            if not future.done():
                future.set_result(None)


async def _connect(port: int) -> Reader:
    loop = asyncio.get_running_loop()
    _, reader = await loop.create_connection(Reader, "127.0.0.1", port)
    return reader


async def _read_all(readers: list[Reader], port: int, chunks: int, deadline_s: float) -> list[str]:
    """Start one stream on each connection and read all to their ends. Returns the errors."""
    for reader in readers:
        reader.ask(port, chunks)
    _, late = await asyncio.wait([reader.ended for reader in readers], timeout=deadline_s)
    errors = [f"{len(late)} streams had not ended after {deadline_s:.0f} s"] if late else []
    for reader in readers:
        if reader.error is not None:
            errors.append(reader.error)
            continue
        try:
            reader.answer.check_stream(chunks)
        except BadAnswer as error:
            errors.append(str(error))
    return errors[:MAX_ERRORS]


async def run_streams(spec: Streams) -> StreamsResult:
    """Run short streams first, so that every connection is warm, then the measured streams."""
    readers = [await _connect(spec.port) for _ in range(spec.streams)]
    read = partial(_read_all, readers, spec.port)
    errors = await read(WARM_CHUNKS, WARM_CHUNKS * spec.interval_s + SLACK_S)
    before, started_at = tree_usage(spec.watch).cpu_s, time.monotonic()
    if not errors:
        errors = await read(spec.chunks, spec.chunks * spec.interval_s + SLACK_S)
    after, ended_at = tree_usage(spec.watch).cpu_s, time.monotonic()
    for reader in readers:
        reader.close()
    return StreamsResult(spec.chunks * spec.streams, ended_at - started_at, after - before, errors)


async def run_hold(spec: Hold) -> HoldResult:
    """Open all streams at a steady pace, wait for the first token of each, then watch them."""
    before = tree_usage(spec.watch).rss_bytes
    readers: list[Reader] = []
    started_at = time.monotonic()
    # More chunks than can be sent before the streams are closed, so that none ends.
    chunks = 100 + round((spec.seconds + 3 * SLACK_S) / spec.interval_s)
    while len(readers) < spec.streams:
        if len(readers) <= (time.monotonic() - started_at) * spec.opened_per_s:
            readers.append(await _connect(spec.port))
            readers[-1].ask(spec.port, chunks)
        else:
            await asyncio.sleep(0.001)
    _, silent = await asyncio.wait([reader.begun for reader in readers], timeout=2 * spec.interval_s + SLACK_S)
    at_start, used = [reader.answer.events for reader in readers], tree_usage(spec.watch).cpu_s
    ttfts_s, probe_errors = await _probe(spec)
    # A late stream is not lost: the machine may be slower than the pace.
    await until(lambda: _fewest(readers, at_start, spec.chunks) >= spec.chunks, SLACK_S, spec.interval_s / 4)
    after = tree_usage(spec.watch)
    events = sum(reader.answer.events for reader in readers) - sum(at_start)
    fewest = _fewest(readers, at_start, 0)
    errors = [reader.error for reader in readers if reader.error is not None]
    refused = [reader.answer for reader in readers if reader.answer.status not in (0, 200)]
    errors += [f"status {answer.status}: {answer.first[:300]!r}" for answer in refused]
    errors += [*probe_errors, *([f"{len(silent)} streams had no first token"] if silent else [])]
    alive = sum(reader.error is None and not reader.answer.done for reader in readers)
    for reader in readers:
        reader.close()
    ttft_p50_s = median(ttfts_s) if ttfts_s else 0.0
    used = after.cpu_s - used
    return HoldResult(alive, fewest, events, used, before, after.rss_bytes, ttft_p50_s, errors[:MAX_ERRORS])


def _fewest(readers: list[Reader], at_start: list[int], none: int) -> int:
    """The fewest events that any open stream got since `at_start`; `none` if no stream is open."""
    since = (r.answer.events - start for r, start in zip(readers, at_start, strict=True) if not r.ended.done())
    return min(since, default=none)


async def _probe(spec: Hold) -> tuple[list[float], list[str]]:
    """Let the seconds pass, and return the TTFT (seconds) and errors of all probes in that time."""
    until_s = time.monotonic() + spec.seconds
    ttfts_s: list[float] = []
    errors: list[str] = []
    readers = [await _connect(spec.port) for _ in range(min(PROBING, spec.probes))]
    for number in range(spec.probes):
        reader = readers[number % PROBING]
        asked_at = time.monotonic()
        reader.ask(spec.port, 1)
        await asyncio.wait([reader.begun], timeout=SLACK_S)
        ttfts_s.append(time.monotonic() - asked_at)
        await asyncio.wait([reader.ended], timeout=SLACK_S)
        if reader.error is not None or not reader.answer.done:
            errors.append(f"probe: {reader.error or 'it did not end'}")
            break
        await asyncio.sleep(max(0.0, (until_s - time.monotonic()) / (spec.probes - number)))
    for reader in readers:
        reader.close()
    await asyncio.sleep(max(0.0, until_s - time.monotonic()))
    return ttfts_s, errors
