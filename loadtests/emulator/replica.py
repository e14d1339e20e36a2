"""One emulated replica: a port, an engine, a fault, and a record of its requests."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence

from gateway.core.estimators.histograms import LogHistogram
from loadtests.emulator import errors, generations, routes
from loadtests.emulator.answers import ANSWERS
from loadtests.emulator.asks import Settings
from loadtests.emulator.connection import Connection
from loadtests.emulator.engine import Engine
from loadtests.emulator.exchange import FAULTY, Exchange, FaultyExchange, Received, reset
from loadtests.emulator.faults import Fault, FaultKind
from loadtests.emulator.port import Port
from loadtests.emulator.stored import StoredResponses

KEPT_BYTES = 64 * 1024 * 1024


class EmulatedReplica:
    """Speaks vLLM's HTTP API over `engines`, its data-parallel ranks.

    `requests` holds the latest generations received, oldest first.
    """

    def __init__(
        self,
        engines: Sequence[Engine],
        settings: Settings,
        port: Port,
        *,
        keep_alive_s: float = 5.0,
        keep_requests: int = 256,
        max_queued: int | None = None,
    ) -> None:
        self.engines = engines
        self.settings = settings
        self.requests: deque[Received] = deque(maxlen=keep_requests)
        self.received_total = 0
        """Generations received, refused ones included."""
        self.connections: set[Connection] = set()
        self.connections_total = 0
        self.answered: Counter[tuple[str, int]] = Counter()
        """Generations by path and status; a stream counts when its head is sent."""
        self.finished: Counter[str] = Counter()
        """Sequences by finish reason."""
        self.rejected_total = 0
        self.in_flight = 0
        self.adapters_in_flight: Counter[str] = Counter()
        """Requests under way by LoRA adapter."""
        self.stored: StoredResponses | None = StoredResponses() if settings.responses_store else None
        """The responses that it keeps, if it keeps any."""
        self.active: Fault | None = None
        """The fault that is on."""
        self.peers: list[EmulatedReplica] = [self]
        self.loop_waits: LogHistogram | None = None
        """Lateness of the event loop, if somebody measures it."""
        self._port = port
        self._keep_alive_s = keep_alive_s
        self._max_queued = max_queued
        self._kept_bytes = 0
        self._held: list[Exchange] = []
        self._answers = 0
        self._changed = asyncio.Event()
        self._strikes_left: int | None = None
        self._fault_timer: asyncio.TimerHandle | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._opening: asyncio.Task[None] | None = None
        for engine in engines:
            engine.on_turn = self.notify

    # For tests and experiments.

    @property
    def port(self) -> int:
        return self._port.number

    @property
    def url(self) -> str:
        """Base URL for requests, without a path."""
        return f"http://{self._port.host}:{self._port.number}"

    @property
    def listening(self) -> bool:
        """Whether the port is open."""
        return self._port.listening

    @property
    def engine(self) -> Engine:
        """The engine of rank 0. Most replicas have no other rank."""
        return self.engines[0]

    @property
    def running(self) -> int:
        """Sequences that hold a slot of an engine."""
        return sum(engine.model.running for engine in self.engines)

    @property
    def waiting(self) -> int:
        """Sequences that wait for a slot."""
        return sum(engine.model.waiting for engine in self.engines)

    async def until(self, condition: Callable[[EmulatedReplica], bool], timeout_s: float = 10.0) -> None:
        """Wait until the condition holds; it is checked whenever something happens here. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while not condition(self):
                self._changed.clear()
                await self._changed.wait()

    def notify(self) -> None:
        """Check the conditions of `until` again, after any change."""
        self._changed.set()

    def fault(self, fault: Fault | FaultKind | str | None, **details: object) -> None:
        """Switch a fault on, for example `fault("slow", factor=8)`. None ends the fault. Raises ValueError that names a
        bad detail.
        """
        if fault is not None and not isinstance(fault, Fault):
            fault = Fault(FaultKind(fault), **details)  # type: ignore[arg-type]
        before, self.active = self.active, fault
        self._strikes_left = None if fault is None else fault.count
        if self._fault_timer is not None:
            self._fault_timer.cancel()
            self._fault_timer = None
        if fault is not None and fault.for_s is not None:
            self._fault_timer = asyncio.get_running_loop().call_later(fault.for_s, self.fault, None)
        if before is not None and before.kind is FaultKind.PAUSE:
            held, self._held = self._held, []
            asyncio.get_running_loop().call_soon(self._dispatch_all, held)
        self._take_effect(fault)
        self.notify()

    def _take_effect(self, fault: Fault | None) -> None:
        """The effects of a fault that begin at once, for every client."""
        kind = None if fault is None else fault.kind
        for engine in self.engines:
            engine.slow(fault.factor if fault is not None and kind is FaultKind.SLOW else 1.0)
            engine.pause(kind is FaultKind.PAUSE)
        if kind is FaultKind.DEAD or (fault is not None and kind is FaultKind.REFUSE and fault.how != "reset"):
            self._port.shut()
        elif not self._port.listening:
            self._opening = asyncio.get_running_loop().create_task(self._open())
        for connection in list(self.connections):
            if kind is FaultKind.DEAD:
                connection.kill()
            elif kind is FaultKind.REFUSE:
                connection.leave()

    # Start and end.

    async def start(self) -> None:
        """Listen. Raises OSError if the port is taken."""
        await self._open()
        self._sweep()

    async def close(self) -> None:
        """End everything at once."""
        for handle in (self._sweeper, self._fault_timer, self._opening):
            if handle is not None:
                handle.cancel()
        self._port.close()
        for connection in list(self.connections):
            connection.transport.abort()
        for engine in self.engines:
            engine.close()

    async def _open(self) -> None:
        await self._port.open(lambda: Connection(self))
        self.notify()

    def _sweep(self) -> None:
        """Close connections that were idle for too long."""
        before = time.monotonic() - self._keep_alive_s
        for connection in list(self.connections):
            if connection.busy is None and connection.idle_since < before:
                connection.transport.close()
        self._sweeper = asyncio.get_running_loop().call_later(min(1.0, self._keep_alive_s), self._sweep)

    # Called by connections.

    def accepted(self, transport: asyncio.Transport) -> bool:
        """Whether a new connection is accepted."""
        self.connections_total += 1
        if self.active is not None and self.active.kind is FaultKind.REFUSE:
            reset(transport)
            return False
        return True

    def exchange(self, transport: asyncio.Transport, owner: Connection, received: Received, keep: bool) -> Exchange:
        """The exchange for this request, which may be a faulty one."""
        fault = self.active
        if fault is None or fault.kind not in FAULTY or received.path not in ANSWERS:
            return Exchange(transport, owner, received, keep)
        return FaultyExchange(transport, owner, received, keep, fault, ANSWERS[received.path].failure)

    def handle(self, exchange: Exchange) -> None:
        """Answer a request, or hold it for as long as the replica is paused."""
        received = exchange.received
        if received.path in ANSWERS:
            self._remember(received)
        paused = self.active is not None and self.active.kind is FaultKind.PAUSE
        if paused and not received.path.startswith("/emulator/"):
            self._held.append(exchange)
        else:
            self._dispatch(exchange)
        self.notify()

    def _dispatch(self, exchange: Exchange) -> None:
        received = exchange.received
        if received.path in ANSWERS and received.method == "POST":
            generations.answer(self, exchange)
        else:
            routes.answer(self, exchange)

    def _dispatch_all(self, held: list[Exchange]) -> None:
        for exchange in held:
            if not exchange.over and not exchange.transport.is_closing():
                self._dispatch(exchange)

    def _remember(self, received: Received) -> None:
        self.received_total += 1
        requests = self.requests
        if requests.maxlen and len(requests) == requests.maxlen:
            self._kept_bytes -= len(requests[0].body)
        requests.append(received)
        self._kept_bytes += len(received.body)
        while self._kept_bytes > KEPT_BYTES and len(requests) > 1:
            self._kept_bytes -= len(requests.popleft().body)

    # Called by generations.

    def strike(self) -> Fault | None:
        """The fault that this request gets. The last of the fault's `count` requests switches it off."""
        fault = self.active
        if self._strikes_left is not None:
            self._strikes_left -= 1
            if not self._strikes_left:
                self.fault(None)
        return fault

    def rank_for(self, received: Received) -> Engine:
        """The engine that a request names in `X-data-parallel-rank`, else the least busy. Raises Rejected.

        The score is that of vLLM's `DPLBAsyncMPClient`. A value that is no number is ignored there, too.
        """
        named = received.header("x-data-parallel-rank")
        if named is None or not re.fullmatch(r"-?\d{1,9}", named):
            return min(self.engines, key=lambda engine: 4 * engine.model.waiting + engine.model.running)
        if not 0 <= int(named) < len(self.engines):
            raise errors.no_such_rank(int(named), len(self.engines))
        return self.engines[int(named)]

    def admit(self, sequences: int) -> None:
        """Raises Rejected if the queue is full."""
        if self._max_queued is not None and self.waiting + sequences > self._max_queued:
            self.rejected_total += 1
            raise errors.busy()

    def number_of_answer(self) -> int:
        """A new number with every call; other replicas have other numbers."""
        self._answers += 1
        return self.port << 40 | self._answers
