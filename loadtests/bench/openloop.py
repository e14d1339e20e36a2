"""An open loop: each request is sent when it is due, without waiting for earlier answers. Latency counts from that
time.

A plain loop around select(): asyncio's timers and epoll both round up to a millisecond, as much as the measured
latency.
"""

from __future__ import annotations

import random
import select
import socket
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from loadtests.bench import canned
from loadtests.bench.answer import Answer, BadAnswer
from loadtests.quantiles import rank

GRACE_S = 5.0
"""Seconds after the last request in which answers may still arrive."""


@dataclass(frozen=True, slots=True)
class Open:
    """Poisson arrivals at `rate` per second over at most `connections` connections."""

    port: int
    rate: float
    seconds: float = 4.0
    warmup_s: float = 0.5
    connections: int = 64
    seed: int = 1


@dataclass(frozen=True, slots=True)
class OpenResult:
    """Latencies in seconds, from the moment a request was due to the end of its answer; warm-up left out."""

    requests: int
    p50_s: float
    p99_s: float
    errors: list[str]


def arrivals(rate: float, seconds: float, seed: int) -> Iterator[float]:
    """Times of a Poisson process on [0, seconds); one seed always gives the same times."""
    source = random.Random(seed)
    at = source.expovariate(rate)
    while at < seconds:
        yield at
        at += source.expovariate(rate)


class _Connection:
    """A socket and the request that is under way on it."""

    __slots__ = ("answer", "due_at", "sock")

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.setblocking(False)
        self.answer = Answer()
        self.due_at = 0.0

    def send(self, request: bytes, due_at: float) -> None:
        """A request of 2 kB fits the buffer of an idle socket, so a short write is an error."""
        self.due_at = due_at
        if self.sock.send(request) != len(request):
            raise BadAnswer("the socket did not take a whole request")

    def read(self, length: int) -> bool:
        """Whether the answer is complete now. Raises BadAnswer."""
        data = self.sock.recv(65536)
        if not data:
            raise BadAnswer("connection lost")
        self.answer.feed(data)
        if not self.answer.done:
            return False
        self.answer.check_plain(length)
        self.answer.reset()
        return True


def run_open(spec: Open, length: int) -> OpenResult:
    """Send every request when it is due, or as soon after that as a connection is free."""
    connections = [_Connection(spec.port) for _ in range(spec.connections)]
    try:
        taken = _drive(spec, length, connections)
    except (BadAnswer, OSError) as error:
        return OpenResult(0, 0.0, 0.0, [str(error)])
    finally:
        for connection in connections:
            connection.sock.close()
    taken.sort()
    return OpenResult(len(taken), rank(taken, 0.5), rank(taken, 0.99), [])


def _drive(spec: Open, length: int, connections: list[_Connection]) -> list[float]:
    """The latencies of every request due after the warm-up."""
    request = canned.request(f"127.0.0.1:{spec.port}", stream=False)
    started_at = time.monotonic()
    dues = deque(started_at + at for at in arrivals(spec.rate, spec.warmup_s + spec.seconds, spec.seed))
    count_from, give_up_at = started_at + spec.warmup_s, started_at + spec.warmup_s + spec.seconds + GRACE_S
    idle, busy, taken = list(connections), dict[int, _Connection](), list[float]()
    while dues or busy:
        now = time.monotonic()
        while idle and dues and dues[0] <= now:
            connection = idle.pop()
            connection.send(request, dues.popleft())
            busy[connection.sock.fileno()] = connection
        # No connection is idle, so only an answer can free one.
        until = dues[0] if dues and idle else give_up_at
        readable, _, _ = select.select(list(busy), [], [], max(0.0, until - time.monotonic()))
        for number in readable:
            connection = busy[number]
            if connection.read(length):
                del busy[number]
                idle.append(connection)
                if connection.due_at >= count_from:
                    taken.append(time.monotonic() - connection.due_at)
        if now > give_up_at:
            raise BadAnswer(f"{len(busy)} requests unanswered and {len(dues)} unsent {GRACE_S:.0f} s after the end")
    return taken
