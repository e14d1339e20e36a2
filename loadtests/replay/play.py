"""Plays traffic to a target: `await play(arrivals, target, recorder, plan)`."""

from __future__ import annotations

import asyncio
import gc
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, count
from pathlib import Path
from random import Random
from typing import Protocol

from gateway.observe.metrics.lag import LoopLag
from gateway.sim.workload.arrivals import Arrival
from loadtests.processes import raise_file_limit
from loadtests.replay.again import Again, Newcomers, Told
from loadtests.replay.clients import Clients
from loadtests.replay.pace import Backlog, pace, rests_s
from loadtests.replay.prompts import Prompts, Sizes
from loadtests.replay.request import FIRST_TURN, Outcome, Request
from loadtests.replay.shard import Shard
from loadtests.replay.target import Target, Writer
from loadtests.replay.written import Written

FILES = 65536
TICK_S = 0.5
SHOW_TICKS = 50
WAITS_S = 0.01
"""Seconds between measurements of the event loop's lateness: short tests, too, need enough of them for a p99."""


class Recorder(Protocol):
    """Called with the outcomes of requests."""

    def gap(self, request: Request, gap_s: float, count: int) -> None:
        """`count` pieces of content arrived together, `gap_s` after the previous ones."""

    def ended(self, request: Request) -> None:
        """A request is over, its last try included. Called once per request."""


class Kept:
    """A recorder that keeps every request in memory, for short tests."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        """Requests in the order of their ends."""

    def gap(self, request: Request, gap_s: float, count: int) -> None:
        """Ignore gaps."""

    def ended(self, request: Request) -> None:
        """Keep the request."""
        self.requests.append(request)


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings of a replay."""

    seed: int = 1
    """Seed of prompts and of the pauses before retries."""
    sizes: Sizes = field(default_factory=Sizes)
    timeout_s: float = 600.0
    """The patience of a client: with a stream, seconds of silence before the first token and between tokens; else
    seconds until the answer."""
    grace_s: float = 60.0
    """Seconds after the last request in which answers may arrive."""
    retries: int = 0
    warmup_s: float = 0.0
    """End of the warm-up: earlier refusals and waits on the loop are not counted (`Played.told` and `lag`). Recorders
    have their own warm-up."""
    clients: int | None = None
    """Number of clients of a closed loop: each sends when its last request is over. None: an open loop."""
    until_s: float | None = None
    """End of a closed loop; an open loop ends with its traffic."""
    gives_up: bool = False
    """Whether the test ends once the generator is hopelessly late: see `Backlog`."""
    recorded: bool = False
    """Whether conversations go on with the recorded answers, instead of the model's own."""
    keeps: bool = False
    """Whether the text of every answer is kept."""
    shard: Shard = field(default_factory=Shard)
    """The part of the traffic that is sent here."""
    begin_at_s: float | None = None
    """Time of the beginning, in seconds since 1970; None: after `lead_s`."""
    lead_s: float = 0.2
    """Seconds between the end of the preparations and the beginning of the test."""
    warm_connections: int = 16


@dataclass(frozen=True, slots=True)
class Now:
    """The state of a running test."""

    at_s: float
    sent: int
    ended: int
    under_way: int
    connections: int
    chunks: int
    all_sent: bool = False
    """Whether all requests were sent. After that, the player only waits for answers and retries."""


@dataclass(slots=True)
class Played:
    """The result of a finished replay."""

    sent: int = 0
    ended: int = 0
    sending_s: float = 0.0
    """Seconds from the beginning to the last request."""
    seconds: float = 0.0
    """Seconds from the beginning to the end."""
    chunks: int = 0
    """Pieces of content that arrived while requests were sent."""
    most_connections: int = 0
    most_under_way: int = 0
    cpu_s: float = 0.0
    """CPU seconds of this process while requests were sent."""
    most_memory_bytes: int = 0
    """The largest resident set of this process, up to the end."""
    interrupted: bool = False
    gave_up: bool = False
    """Whether the generator ended the test because it could not keep up."""
    wrong_row: str | None = None
    """The error in the row of the trace at which the test ended; None if all rows were right."""
    empty_rows: int = 0
    """Rows of the trace with 0 tokens, which are left out."""
    turns: int = 0
    """Turns of conversations after the first that were sent."""
    turns_lost: int = 0
    """Turns that were never sent, because an answer before them failed, or came after the end."""
    told: dict[str, dict[str, Told]] = field(default_factory=dict)
    """Outcomes of clients that were told when to retry, by tier and reason."""
    newcomers: dict[str, Newcomers] = field(default_factory=dict)
    """Outcomes of first tries, by tier."""
    lag: list[float] = field(default_factory=list)
    """Waits on the event loop of the generator after the warm-up, by bucket of gateway.observe.metrics.lag.EDGES."""


@dataclass(slots=True)
class _Item:
    """A request with its bytes."""

    request: Request
    data: bytes

    @property
    def due_s(self) -> float:
        return self.request.arrival.at


class Player:
    """One test. `begins` is called with the monotonic time of the beginning, `show` with the state, twice a second.

    `settled` is called with the requests that are open or will be retried after the last one: if it returns True, they
    are not waited for.
    """

    def __init__(
        self,
        arrivals: Iterable[Arrival],
        target: Target,
        recorder: Recorder,
        plan: Plan,
        *,
        show: Callable[[Now], None] = lambda now: None,
        begins: Callable[[float], None] = lambda at: None,
        settled: Callable[[float, Iterable[Request]], bool] = lambda now, under_way: False,
    ) -> None:
        self._recorder = recorder
        self._plan = plan
        self._show = show
        self._begins = begins
        self._settled = settled
        self._began = time.monotonic()
        self._writer = Writer(target, Prompts(plan.seed, plan.sizes))
        self._random = Random(f"{plan.seed} pauses")
        self._clients = Clients(target, self.clock, self._over, recorder.gap, plan.timeout_s)
        self._items = self._made(arrivals)
        self._counted = Again(plan.warmup_s)
        self._resting: dict[int, tuple[Request, asyncio.TimerHandle]] = {}
        self._numbers = count(FIRST_TURN + plan.shard.index, plan.shard.count)
        """Numbers of later turns of conversations."""
        self._talks = 0
        """Conversations under way that have further turns."""
        self._thinking: dict[int, tuple[Written, asyncio.TimerHandle]] = {}
        self._talked = asyncio.Event()
        self._quiet = asyncio.Event()
        self._exhausted = asyncio.Event()
        self._backlog = Backlog()
        self._stop = asyncio.Event()
        self._all_sent = False
        self._ticks = 0
        self.played = Played()
        self._lag = LoopLag(time.monotonic, self._tick, WAITS_S)
        self._warm_lag = list(self._lag.waits.counts)

    def clock(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    @property
    def chunks(self) -> int:
        """Pieces of content so far."""
        return self._clients.chunks

    def under_way(self) -> Iterator[Request]:
        """The requests that are open."""
        return self._clients.requests()

    @property
    def lag(self) -> LoopLag:
        """The measured waits on the event loop of this process."""
        return self._lag

    async def play(self, stop: asyncio.Event | None = None) -> Played:
        """Play to the end, or until `stop`. Raises OSError if nobody listens, or OwnLimit if this machine is at its
        limit."""
        self._stop = stop = stop or self._stop
        self._clients.on_limit = stop.set
        raise_file_limit(FILES)
        await self._clients.warm(self._plan.warm_connections)
        gc.freeze()  # existing objects stay until the end, so the collector need not read them
        cpu = time.process_time()
        at_s = self._plan.begin_at_s
        self._began = time.monotonic() + (self._plan.lead_s if at_s is None else at_s - time.time())
        self._begins(self._began)
        watching = asyncio.create_task(self._lag.run())
        stopping = asyncio.create_task(stop.wait())
        sending = asyncio.create_task(self._send_all())
        try:
            await asyncio.wait([sending, stopping], return_when=asyncio.FIRST_COMPLETED)
            self.played.sending_s, self.played.cpu_s = self.clock(), time.process_time() - cpu
            self.played.chunks = self.chunks
            if sending.done():
                sending.result()
                self._all_sent = True
                self._stop_thinking()
                await self._until_quiet(stopping)
            self.played.interrupted = stopping.done()
        finally:
            for task in (sending, stopping, watching):
                task.cancel()
            self._finish()
            gc.unfreeze()
        if self._clients.limit is not None:
            raise self._clients.limit
        self.played.most_memory_bytes = _most_memory_bytes()
        return self.played

    async def _send_all(self) -> None:
        if self._plan.clients is None:
            await pace(self._items, self.clock, asyncio.sleep, self._send)
            left_s = None if self._plan.until_s is None else max(0.0, self._plan.until_s - self.clock())
            with suppress(TimeoutError):
                await asyncio.wait_for(self._talks_are_over(), left_s)
        else:
            await asyncio.sleep(max(0.0, -self.clock()))
            for _ in range(self._plan.clients):
                self._send_next()
            left_s = None if self._plan.until_s is None else self._plan.until_s - self.clock()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._exhausted.wait(), left_s)
            self._exhausted.set()

    def _made(self, arrivals: Iterable[Arrival]) -> Iterator[_Item]:
        for number, arrival in self._plan.shard.part(arrivals):
            if self.played.gave_up:
                return
            yield self._item(number, arrival)

    def _item(self, number: int, arrival: Arrival) -> _Item:
        talks = isinstance(arrival, Written) and bool(arrival.later) and not self._plan.recorded
        request = Request(number, arrival, keeps=self._plan.keeps or talks)
        return _Item(request, self._writer.request(number, arrival))

    async def _talks_are_over(self) -> None:
        while self._talks:
            self._talked.clear()
            await self._talked.wait()

    def _go_on(self, request: Request) -> None:
        """After an answer of a conversation: its next question, once its client has read and thought."""
        arrival = request.arrival
        if not isinstance(arrival, Written) or not (arrival.later or arrival.turn > 1):
            return
        self._talks -= 1
        if arrival.later and not self._all_sent and request.outcome is Outcome.FINISHED:
            think_s = self._random.expovariate(1.0 / arrival.think_s) if arrival.think_s else 0.0
            turn = arrival.next_turn(request.ended_s + think_s, None if self._plan.recorded else request.said or "")
            self._talks += 1
            timer = asyncio.get_running_loop().call_later(think_s, self._ask, request.number)
            self._thinking[request.number] = turn, timer
        else:
            self.played.turns_lost += len(arrival.later)
        self._talked.set()

    def _ask(self, after: int) -> None:
        turn, _ = self._thinking.pop(after)
        self.played.turns += 1
        self._send_at(self._item(next(self._numbers), turn), self.clock())

    def _send(self, item: _Item) -> None:
        now = self.clock()
        self._send_at(item, now)
        if self._plan.gives_up and self._backlog.is_hopeless(item.due_s, now):
            self.played.gave_up = True
            self._stop.set()

    def _send_at(self, item: _Item, now: float) -> None:
        request = item.request
        request.sent_s = request.tried_s = now
        self.played.sent += 1
        arrival = request.arrival
        self._talks += isinstance(arrival, Written) and bool(arrival.later) and arrival.turn == 1
        self._clients.send(request, item.data)
        self.played.most_under_way = max(self.played.most_under_way, self._clients.under_way)

    def _send_next(self) -> None:
        """Send the next request of a closed loop's client, after an answer. Its latency counts from now."""
        item = None if self._exhausted.is_set() else next(self._items, None)
        if item is None:
            self._exhausted.set()
            return
        now = self.clock()
        item.request.arrival = replace(item.request.arrival, at=now)
        self._send_at(item, now)

    def _over(self, request: Request, may_retry: bool) -> None:
        again = may_retry and request.tries <= self._plan.retries
        rest_s = rests_s(request, self._random) if again else None
        self._counted.tried(request, rest_s is not None)
        if rest_s is not None:
            loop = asyncio.get_running_loop()
            self._resting[request.number] = (request, loop.call_later(rest_s, self._again, request))
            return
        self._ended(request)
        if self._plan.clients is not None:
            self._send_next()

    def _again(self, request: Request) -> None:
        del self._resting[request.number]
        request.tries += 1
        request.status, request.retry_after_s = 0, None  # these belong to the earlier try
        request.tried_s = self.clock()
        self._clients.send(request, self._writer.request(request.number, request.arrival, request.tries))

    def _ended(self, request: Request) -> None:
        self.played.ended += 1
        self._recorder.ended(request)
        self._go_on(request)
        if not self._clients.under_way and not self._resting:
            self._quiet.set()

    async def _until_quiet(self, stopping: asyncio.Task[bool]) -> None:
        """Wait until nothing is under way, `settled` returns True, or the grace is over."""
        until_s = self.clock() + self._plan.grace_s
        while (self._clients.under_way or self._resting) and (left_s := until_s - self.clock()) > 0.0:
            resting = (request for request, _ in self._resting.values())
            if stopping.done() or self._settled(self.clock(), chain(self._clients.requests(), resting)):
                return
            self._quiet.clear()
            quiet = asyncio.create_task(self._quiet.wait())
            await asyncio.wait([quiet, stopping], timeout=min(TICK_S, left_s), return_when=asyncio.FIRST_COMPLETED)
            quiet.cancel()

    def _finish(self) -> None:
        """Stop sending, and end open requests."""
        self._all_sent = True
        self._stop_thinking()
        self._plan = replace(self._plan, retries=0, clients=None)
        for request, timer in list(self._resting.values()):
            timer.cancel()
            self._ended(request)  # with the outcome of its last try
        self._resting.clear()
        self._clients.close(Outcome.INTERRUPTED if self.played.interrupted else Outcome.UNFINISHED)
        self.played.seconds = self.clock()
        self.played.told, self.played.newcomers = self._counted.tiers, self._counted.newcomers
        counted = zip(self._lag.waits.counts, self._warm_lag, strict=True)
        self.played.lag = [now - before for now, before in counted]

    def _stop_thinking(self) -> None:
        """No further turns are sent."""
        for turn, timer in self._thinking.values():
            timer.cancel()
            self.played.turns_lost += 1 + len(turn.later)
        self._thinking.clear()

    def _tick(self, _: float) -> None:
        if self.clock() < self._plan.warmup_s:  # a stall that ends after it counts
            self._warm_lag = list(self._lag.waits.counts)
        self._ticks += 1
        if self._ticks % SHOW_TICKS == 0:
            of, played = self._clients, self.played
            played.most_connections = max(played.most_connections, len(of.open))
            now = self.clock(), played.sent, played.ended, of.under_way, len(of.open), of.chunks, self._all_sent
            self._show(Now(*now))


def _most_memory_bytes() -> int:
    """From proc_pid_status(5) if it exists: getrusage(2) of Linux also counts the process before its exec."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # macOS gives bytes
    (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


async def play(
    arrivals: Iterable[Arrival],
    target: Target,
    recorder: Recorder,
    plan: Plan | None = None,
    *,
    show: Callable[[Now], None] = lambda now: None,
    stop: asyncio.Event | None = None,
) -> Played:
    """Send each arrival when it is due, and tell the recorder the outcome. Raises the errors of `Player.play`."""
    return await Player(arrivals, target, recorder, plan or Plan(), show=show).play(stop)
