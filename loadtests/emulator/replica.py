"""One emulated replica: a port, an engine, a fault, and a memory of what was asked of it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections import Counter, deque
from collections.abc import Callable
from functools import partial

from loadtests.emulator import asks, errors, routes
from loadtests.emulator.answers import ANSWERS
from loadtests.emulator.asks import Ask, Quirk, Settings
from loadtests.emulator.connection import Connection
from loadtests.emulator.engine import Engine
from loadtests.emulator.exchange import FAULTY, Exchange, FaultyExchange, Received, reset
from loadtests.emulator.faults import Fault, FaultKind

PHRASE = (b" all", b" work", b" and", b" no", b" play")
KEPT_BYTES = 64 * 1024 * 1024


class EmulatedReplica:
    """Speaks vLLM's HTTP API over `engine`. `requests` holds the last generations that came in, oldest first."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        keep_alive_s: float = 5.0,
        keep_requests: int = 256,
        max_queued: int | None = None,
    ) -> None:
        self.engine = engine
        self.settings = settings
        self.requests: deque[Received] = deque(maxlen=keep_requests)
        self.connections: set[Connection] = set()
        self.connections_total = 0
        self.answered: Counter[tuple[str, int]] = Counter()
        """Answers by path and status; a stream counts when its head is sent."""
        self.finished: Counter[str] = Counter()
        """Sequences by finish reason."""
        self.rejected_total = 0
        self.in_flight = 0
        self.active: Fault | None = None
        self.peers: list[EmulatedReplica] = [self]
        self._keep_alive_s = keep_alive_s
        self._max_queued = max_queued
        self._kept_bytes = 0
        self._held: list[Exchange] = []
        self._answers = 0
        self._changed = asyncio.Event()
        self._strikes_left: int | None = None
        self._fault_timer: asyncio.TimerHandle | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._server: asyncio.Server | None = None
        self._host = host
        # Bound but not listening: it keeps the port ours while the listener is closed, and connections are refused.
        self._placeholder = _bound(host, port)
        self.port: int = self._placeholder.getsockname()[1]

    # What tests and experiments see.

    @property
    def url(self) -> str:
        """Where to send requests, without a path."""
        return f"http://{self._host}:{self.port}"

    @property
    def running(self) -> int:
        """Sequences that hold a slot of the engine."""
        return self.engine.model.running

    @property
    def waiting(self) -> int:
        """Sequences that wait for one."""
        return self.engine.model.waiting

    @property
    def received_total(self) -> int:
        """Generations received, refused ones included."""
        return self._answers

    async def until(self, condition: Callable[[EmulatedReplica], bool], timeout_s: float = 10.0) -> None:
        """Wait until the condition holds; it is looked at whenever something happens here. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while not condition(self):
                self._changed.clear()
                await self._changed.wait()

    def fault(self, fault: Fault | FaultKind | str | None, **details: object) -> None:
        """Switch to a fault, `fault("slow", factor=8)`; None ends it. Raises ValueError naming a bad detail."""
        if fault is not None and not isinstance(fault, Fault):
            fault = Fault(FaultKind(fault), **details)  # type: ignore[arg-type]
        before, self.active = self.active, fault
        self._strikes_left = None if fault is None else fault.count
        if self._fault_timer is not None:
            self._fault_timer.cancel()
            self._fault_timer = None
        if fault is not None and fault.for_s is not None:
            self._fault_timer = asyncio.get_running_loop().call_later(fault.for_s, self.fault, None)
        self._leave_state(before, fault)
        self._enter_state(fault)
        self.notify()

    def _enter_state(self, fault: Fault | None) -> None:
        kind = None if fault is None else fault.kind
        self.engine.slow(fault.factor if fault is not None and kind is FaultKind.SLOW else 1.0)
        self.engine.pause(kind is FaultKind.PAUSE)
        if fault is not None and kind is FaultKind.REFUSE:
            if fault.how != "reset":
                self._stop_listening()
            for connection in list(self.connections):
                connection.leave()
        elif kind is FaultKind.DEAD:
            self.die()

    def _leave_state(self, before: Fault | None, after: Fault | None) -> None:
        if before is None:
            return
        if before.kind in (FaultKind.REFUSE, FaultKind.DEAD):
            self._listen_again(after)
        if before.kind is FaultKind.PAUSE:
            held, self._held = self._held, []
            asyncio.get_running_loop().call_soon(self._handle_all, held)

    def die(self) -> None:
        """Reset every connection, close the port, lose all work. `fault(None)` brings it back."""
        self.active = Fault(FaultKind.DEAD)
        self._stop_listening()
        for connection in list(self.connections):
            if connection.busy is not None:
                connection.busy.gone()
            reset(connection.transport)
        self.notify()

    # Life.

    async def start(self) -> None:
        """Listen. Raises OSError if the port is taken."""
        await self._listen()
        self._sweep()

    async def close(self) -> None:
        """End everything at once."""
        for timer in (self._sweeper, self._fault_timer):
            if timer is not None:
                timer.cancel()
        self._stop_listening()
        for connection in list(self.connections):
            connection.transport.abort()
        self.engine.close()
        self._placeholder.close()

    async def _listen(self) -> None:
        listener = _bound(self._host, self.port)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self), sock=listener, backlog=2048)

    def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def _listen_again(self, after: Fault | None) -> None:
        closed = after is not None and after.kind in (FaultKind.REFUSE, FaultKind.DEAD)
        if self._server is None and not closed:
            self._task = asyncio.get_running_loop().create_task(self._listen())

    def _sweep(self) -> None:
        """Close what has been idle for too long."""
        before = time.monotonic() - self._keep_alive_s
        for connection in list(self.connections):
            if connection.busy is None and connection.idle_since < before:
                connection.transport.close()
        self._sweeper = asyncio.get_running_loop().call_later(min(1.0, self._keep_alive_s), self._sweep)

    # What connections call.

    def accepted(self, transport: asyncio.Transport) -> bool:
        """Whether a new connection is let in."""
        if self.active is not None and self.active.kind is FaultKind.REFUSE:
            reset(transport)
            return False
        return True

    def exchange(self, transport: asyncio.Transport, owner: Connection, received: Received, keep: bool) -> Exchange:
        """The exchange for this request, which may be a faulty one."""
        fault = self.active
        if fault is None or fault.kind not in FAULTY or received.path not in ANSWERS:
            return Exchange(transport, owner, received, keep)
        faulty = FaultyExchange(transport, owner, received, keep)
        faulty.fault = fault
        faulty.failure = ANSWERS[received.path].failure
        return faulty

    def handle(self, exchange: Exchange) -> None:
        """Answer a request, or hold it for as long as the replica is paused."""
        received = exchange.received
        paused = self.active is not None and self.active.kind is FaultKind.PAUSE
        if paused and not received.path.startswith("/emulator/"):
            self._remember(received)
            self._held.append(exchange)
        elif received.path in ANSWERS and received.method == "POST":
            self._remember(received)
            self._generate(exchange)
        else:
            routes.answer(self, exchange)
        self.notify()

    def notify(self) -> None:
        """Something happened: whoever waits in `until` looks again."""
        self._changed.set()

    def _handle_all(self, exchanges: list[Exchange]) -> None:
        for exchange in exchanges:
            if not exchange.over and not exchange.transport.is_closing():
                self.handle(exchange)

    def _remember(self, received: Received) -> None:
        if received in self.requests or received.path not in ANSWERS:
            return
        self._answers += 1
        if self.requests.maxlen and len(self.requests) == self.requests.maxlen:
            self._kept_bytes -= len(self.requests[0].body)
        self.requests.append(received)
        self._kept_bytes += len(received.body)
        while self._kept_bytes > KEPT_BYTES and len(self.requests) > 1:
            self._kept_bytes -= len(self.requests.popleft().body)

    # A generation.

    def _generate(self, exchange: Exchange) -> None:
        received, fault = exchange.received, self._strike()
        kind = None if fault is None else fault.kind
        try:
            if fault is not None and self._spoilt_at_once(exchange, fault):
                return
            quirk = Quirk() if kind is FaultKind.BALLOON else Quirk(PHRASE) if kind is FaultKind.REPEAT else None
            ask = asks.parse(received.path, received.body, self.settings, quirk)
            if kind is FaultKind.ERROR_200:
                self._error_200(exchange, ask)
                return
            if self._max_queued is not None and self.waiting + len(ask.choices) > self._max_queued:
                self.rejected_total += 1
                raise errors.busy()
        except errors.Rejected as rejected:
            self._reply(exchange, rejected.status, rejected.body(received.path))
            return
        headers = b"set-cookie: emulator=%d; Path=/\r\n" % self.port if kind is FaultKind.SET_COOKIE else b""
        self._start(exchange, ask, headers)

    def _strike(self) -> Fault | None:
        """The fault that this request gets."""
        fault = self.active
        if self._strikes_left is not None:
            self._strikes_left -= 1
            if self._strikes_left == 0:
                self.fault(None)
        return fault

    def _spoilt_at_once(self, exchange: Exchange, fault: Fault) -> bool:
        """Whether the fault leaves nothing to be done."""
        match fault.kind:
            case FaultKind.DIE_ON_MARKER if fault.marker.encode() in exchange.received.body:
                self.die()
            case FaultKind.STATUS_503:
                headers = b"retry-after: %d\r\n" % fault.retry_after_s
                self._reply(exchange, 503, errors.busy().body(exchange.received.path), headers)
            case FaultKind.STATUS_500:
                shut = errors.Rejected(500, "cannot schedule new futures after shutdown", "InternalServerError")
                self._reply(exchange, 500, shut.body(exchange.received.path))
            case FaultKind.GARBAGE if fault.how != "json":
                exchange.transport.write(b"\x00\x01\x02 this is not HTTP\r\n\xff\xfe\r\n\r\n")
                exchange.transport.close()
            case _:
                return False
        return True

    def _error_200(self, exchange: Exchange, ask: Ask) -> None:
        if not ask.stream:
            raise errors.busy()
        exchange.open()
        body = errors.busy().body(ask.path)
        name = b"event: error\n" if ask.path == errors.MESSAGES else b""
        for event in (b"%bdata: %b\n\n" % (name, body), b"data: [DONE]\n\n"):
            exchange.event(b"%x\r\n%b\r\n" % (len(event), event))
        self.answered[(ask.path, 200)] += 1
        exchange.close()

    def _reply(self, exchange: Exchange, status: int, body: bytes, headers: bytes = b"") -> None:
        self.answered[(exchange.received.path, status)] += 1
        exchange.reply(status, body, headers)

    def _start(self, exchange: Exchange, ask: Ask, headers: bytes) -> None:
        """Put every sequence of a request into the engine."""
        answer = ANSWERS[ask.path](ask, self.port << 40 | self._answers, int(time.time()), exchange.event)
        left = len(ask.choices)
        ids: list[int] = []
        self.in_flight += 1

        def gone() -> None:
            self.in_flight -= 1
            for id in ids:
                if self.engine.cancel(id):
                    self.finished["abort"] += 1
            self.notify()

        def ended(reason: str) -> None:
            nonlocal left
            left -= 1
            self.finished[reason] += 1
            if left:
                return
            self.in_flight -= 1
            exchange.on_gone = None
            if ask.stream:
                answer.closing()
                exchange.close()
            else:
                self._reply(exchange, 200, answer.body(), headers + self._load(exchange))
            self.notify()

        exchange.on_gone = gone
        if ask.stream:
            self.answered[(ask.path, 200)] += 1
            exchange.open(headers)
            answer.opening()
        for index, choice in enumerate(ask.choices):
            if exchange.over:
                break
            voice = answer.voice(index) if ask.stream else None
            end = partial(ended, choice.finish_reason)
            ids.append(self.engine.submit(choice.prompt_tokens, choice.output_tokens, voice, end))

    def _load(self, exchange: Exchange) -> bytes:
        """vLLM's load report on answers that are not streamed, for those who ask for it."""
        if b"endpoint-load-metrics-format" not in exchange.received.head.lower():
            return b""
        metrics = '{"named_metrics": {"num_requests_waiting": %.1f, "kv_cache_usage_perc": %s}}'
        return f"endpoint-load-metrics: JSON {metrics % (self.waiting, self.engine.model.kv_fraction)}\r\n".encode()


def _bound(host: str, port: int) -> socket.socket:
    """A bound socket whose port can be bound again by this process."""
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(AttributeError, OSError):
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound
