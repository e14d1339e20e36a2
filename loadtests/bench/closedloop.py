"""A closed loop: each client sends its next request when the last one is answered. It finds the rate at saturation."""

from __future__ import annotations

import asyncio
import socket
import time
from dataclasses import dataclass, field
from functools import partial
from typing import cast

from loadtests.bench import canned
from loadtests.bench.answer import Answer, BadAnswer, same_content
from loadtests.bench.patience import until
from loadtests.processes import command_of, tree_of

MAX_ERRORS = 10
"""Number of errors that are quoted. One error is enough to make the run void."""


@dataclass(frozen=True, slots=True)
class Closed:
    """`connections` clients against a port; the CPU of process `watch` (with children) is read.

    Measured for `seconds`, and up to `patience_s` longer until `least` requests have been answered.
    """

    port: int
    watch: int
    connections: int = 32
    warmup_s: float = 0.5
    seconds: float = 3.0
    least: int = 100
    patience_s: float = 10.0


@dataclass(frozen=True, slots=True)
class ClosedResult:
    """Outcomes between the end of the warm-up and the end of the run."""

    requests: int
    seconds: float
    cpu_s: float
    processes: list[tuple[str, float]]
    """Command line and CPU seconds of each process that was watched."""
    errors: list[str]


def first_answer(port: int) -> int:
    """Send one request, check that the answer has the upstream's content, and return its length in bytes.

    Raises BadAnswer or OSError.
    """
    answer = Answer(keep=True)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
        sock.sendall(canned.request(f"127.0.0.1:{port}", stream=False))
        while not answer.done:
            data = sock.recv(65536)
            if not data:
                raise BadAnswer("connection closed before the answer was complete")
            answer.feed(data)
    body = b"".join(answer.pieces or [])
    if answer.status != 200 or not same_content(body):
        raise BadAnswer(f"status {answer.status}: {body[:300]!r}")
    return len(body)


@dataclass(slots=True)
class _Run:
    """The state that clients of one closed loop share."""

    request: bytes
    length: int
    answered: int = 0
    over: bool = False
    errors: list[str] = field(default_factory=list)

    def fail(self, what: str) -> None:
        """Count an error, unless the run is over."""
        if not self.over and len(self.errors) < MAX_ERRORS:
            self.errors.append(what)


class _Client(asyncio.Protocol):
    """One connection."""

    def __init__(self, run: _Run) -> None:
        self._run = run
        self._answer = Answer()
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first request."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are not subclasses of asyncio's
        self._transport.write(self._run.request)

    def data_received(self, data: bytes) -> None:
        """Check a complete answer, and send the next request."""
        answer = self._answer
        try:
            answer.feed(data)
            if not answer.done:
                return
            answer.check_plain(self._run.length)
        except BadAnswer as error:
            self._run.fail(str(error))
            self._transport.abort()
            return
        answer.reset()
        self._run.answered += 1
        self._transport.write(self._run.request)

    def connection_lost(self, error: Exception | None) -> None:
        """A connection that ends before the run does is an error."""
        self._run.fail(f"connection lost: {error or 'closed by the other side'}")


async def run_closed(spec: Closed, length: int) -> ClosedResult:
    """Warm up, then measure for `seconds`. `length`: bytes that each answer's body must have."""
    run = _Run(canned.request(f"127.0.0.1:{spec.port}", stream=False), length)
    loop = asyncio.get_running_loop()
    transports = []
    for _ in range(spec.connections):
        transport, _ = await loop.create_connection(partial(_Client, run), "127.0.0.1", spec.port)
        transports.append(transport)
    await asyncio.sleep(spec.warmup_s)
    before, answered, started_at = _cpu_by_pid(spec.watch), run.answered, time.monotonic()
    await asyncio.sleep(spec.seconds)
    await until(lambda: run.answered - answered >= spec.least or bool(run.errors), spec.patience_s)
    after, requests, ended_at = _cpu_by_pid(spec.watch), run.answered - answered, time.monotonic()
    if requests < spec.least:
        run.fail(f"{requests} requests were answered, fewer than {spec.least}")
    run.over = True
    for transport in transports:
        transport.abort()
    processes = [(command_of(pid), cpu_s - before.get(pid, 0.0)) for pid, cpu_s in after.items()]
    return ClosedResult(requests, ended_at - started_at, sum(cpu_s for _, cpu_s in processes), processes, run.errors)


def _cpu_by_pid(root: int) -> dict[int, float]:
    return {entry.pid: entry.usage.cpu_s for entry in tree_of(root)}
