"""Playbooks of bytes: input from a client and from replicas, and output to them.

The proxy is the real one. The sockets, the clock and the controller are stand-ins. By default the scripted controller
sends each request to `r1`, commits at the first token and ends with the attempt.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final

from gateway.core.commands import Cancel, Command, Commit, Dispatch, Ended, Refuse
from gateway.core.estimators.histograms import LogHistogram
from gateway.core.history import EarlyRefusal
from gateway.core.policy import Model, Policy, Tier
from gateway.core.pool_spec import PoolSpec
from gateway.core.queueing.limits import Left, LimitExceeded
from gateway.core.request import Request
from gateway.core.results import AttemptOutcome, AttemptResult, Callback, CountSource, Outcome, Reason, Record
from gateway.core.sample import Sample
from gateway.core.serving import models_of
from gateway.driving.local_driver import LocalDriver
from gateway.proxy.client.client_connection import ClientConnection
from gateway.proxy.driver import CommandHandler
from gateway.proxy.handler import RequestHandler
from gateway.proxy.limits import ConnectionLimits
from gateway.proxy.replica.oddities import Oddities
from gateway.proxy.replica.upstream import Upstreams
from gateway.proxy.services import ExchangeServices
from gateway.wire.answers.oddity import Oddity
from tests.core.made import policy, pool, tier
from tests.foreign.loop import VirtualLoop

CHAT: Final = "/v1/chat/completions"
TURNS: Final = 8
"""Turns of the loop after each step: more than any chain of callbacks needs."""
LIMITS: Final = {
    "max_body_bytes": 4000,
    "max_header_bytes": 2000,
    "receive_timeout_s": 10.0,
    "keep_alive_s": 5.0,
    "write_stall_s": 20.0,
    "max_connections": 10,
    "max_receiving_bytes": 6000,
}


# ---- bytes


def body(**fields: object) -> bytes:
    """A chat request."""
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}).encode()


def post(content: bytes | None = None, *lines: str, path: str = CHAT, version: str = "1.1", **fields: object) -> bytes:
    """A POST with its body; `fields` change the body."""
    data = body(**fields) if content is None else content
    head = [f"POST {path} HTTP/{version}", "host: localhost", "x-request-id: id-1", f"content-length: {len(data)}"]
    return "\r\n".join([*head, *lines, "", ""]).encode() + data


def stream(*lines: str, **fields: object) -> bytes:
    """A POST that asks for a stream."""
    return post(body(stream=True, **fields), *lines)


def head(*lines: str, status: str = "200 OK", kind: str = "text/event-stream") -> bytes:
    """The head of a replica's answer."""
    return "\r\n".join([f"HTTP/1.1 {status}", f"content-type: {kind}", *lines, "", ""]).encode()


def chunk(payload: bytes) -> bytes:
    """One chunk."""
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def delta(text: str, finish: str | None = None, model: str = "m") -> bytes:
    """A chat event with content, or with a finish reason."""
    said = {"content": text} if text else {}
    choice = {"index": 0, "delta": said, "finish_reason": finish}
    fields = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": model, "choices": [choice]}
    return b"data: %b\n\n" % json.dumps(fields, separators=(",", ":")).encode()


def whole(text: str = "hello", status: str = "200 OK", *lines: str, **fields: object) -> bytes:
    """A replica's whole answer."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    return sized(
        json.dumps(
            {"id": "c", "object": "chat.completion", "model": "m", "choices": [choice], "usage": usage} | fields
        ),
        status,
        *lines,
    )


def sized(content: str, status: str = "200 OK", *lines: str, kind: str = "application/json") -> bytes:
    """An answer with a length."""
    data = content.encode()
    return head(f"content-length: {len(data)}", *lines, status=status, kind=kind) + data


ROLE: Final = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m",'
    b'"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
)
HI: Final = delta("Hi")
THERE: Final = delta(" there")
STOP: Final = delta("", "stop")
DONE: Final = b"data: [DONE]\n\n"
LAST: Final = b"0\r\n\r\n"
CHUNKED: Final = head("transfer-encoding: chunked")
_HEAD: Final = re.compile(rb"^HTTP/1\.1 [2-5][^\n]*\n(.*?)\r\n\r\n", re.DOTALL | re.MULTILINE)
STREAMED: Final = CHUNKED + b"".join(map(chunk, (ROLE, HI, STOP, DONE))) + LAST


# ---- steps


@dataclass(frozen=True)
class FromClient:
    """The client sends these bytes."""

    data: bytes


@dataclass(frozen=True)
class FromReplica:
    """A replica sends these bytes on its n-th connection."""

    data: bytes
    at: int = 1


@dataclass(frozen=True, init=False)
class ToClient:
    """The client was sent these pieces since the last step, in this order."""

    parts: tuple[bytes, ...]

    def __init__(self, *parts: bytes) -> None:
        object.__setattr__(self, "parts", parts)


@dataclass(frozen=True, init=False)
class Exactly:
    """The client was sent exactly these bytes."""

    data: bytes

    def __init__(self, *parts: bytes) -> None:
        object.__setattr__(self, "data", b"".join(parts))


@dataclass(frozen=True, init=False)
class ToReplica:
    """The same for the n-th connection to a replica."""

    parts: tuple[bytes, ...]
    at: int

    def __init__(self, *parts: bytes, at: int = 1) -> None:
        object.__setattr__(self, "parts", parts)
        object.__setattr__(self, "at", at)


@dataclass(frozen=True)
class ReplicaCloses:
    """A replica closes a connection, properly or with a reset."""

    at: int = 1
    error: Exception | None = None


@dataclass(frozen=True, init=False)
class On:
    """The controller will answer its next call of that name with these commands."""

    call: str
    commands: tuple[Command | int, ...]
    """Commands of the answer. A number stands for the end of the request with that id."""

    def __init__(self, call: str, *commands: Command | int) -> None:
        object.__setattr__(self, "call", call)
        object.__setattr__(self, "commands", commands)


@dataclass(frozen=True, init=False)
class Now:
    """The controller issues these commands by itself."""

    commands: tuple[Command | int, ...]

    def __init__(self, *commands: Command | int) -> None:
        object.__setattr__(self, "commands", commands)


@dataclass(frozen=True, init=False)
class Called:
    """The controller got these calls since the last step, in this order, among others."""

    calls: tuple[str, ...]

    def __init__(self, *calls: str) -> None:
        object.__setattr__(self, "calls", calls)


@dataclass(frozen=True)
class Wait:
    """Time passes, and due timers run."""

    seconds: float


@dataclass(frozen=True)
class Do:
    """Something else."""

    act: Callable[[Play], object]


@dataclass(frozen=True)
class ClientIs:
    """The state of the client's connection: open, closed or aborted."""

    state: str


@dataclass(frozen=True)
class ReplicaIs:
    """The state of a replica's connection: open, paused, closed or aborted."""

    state: str
    at: int = 1


@dataclass(frozen=True)
class Odd:
    """This oddity was counted."""

    kind: Oddity


Leaves: Final = Do(lambda play: play.client.lose())
"""The client is gone."""
Stalls: Final = Do(lambda play: setattr(play.client, "takes", False))
"""The client takes nothing any more."""
Reads: Final = Do(lambda play: play.client.take_all())
"""The client has taken everything."""
Drains: Final = Do(lambda play: setattr(play.handler, "draining", True))
"""The gateway closes connections after their answers."""
Step = (
    FromClient | FromReplica | ToClient | Exactly | ToReplica | ReplicaCloses | On | Now | Called | Wait | Do | ClientIs
) | (ReplicaIs | Odd)


# ---- stand-ins


class Wire(asyncio.Transport):
    """The gateway's end of a connection."""

    def __init__(self, protocol: Any) -> None:
        super().__init__()
        self.protocol = protocol
        self.out = b""
        self.state = "open"
        self.eof = False
        self.reading = True
        self.takes = True
        self.unsent = 0
        self._high = 0
        self._is_lost = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.state != "open":
            return
        self.out += bytes(data)
        if not self.takes:
            before, self.unsent = self.unsent, self.unsent + len(data)
            if before <= self._high < self.unsent:
                self.protocol.pause_writing()

    def take_all(self) -> None:
        """The other side has read all bytes."""
        self.takes, was_full, self.unsent = True, self.unsent > self._high, 0
        if was_full:
            self.protocol.resume_writing()

    def lose(self, error: Exception | None = None) -> None:
        """The connection is closed."""
        if not self._is_lost:
            self._is_lost = True
            self.state = "closed" if self.state == "open" else self.state
            self.protocol.connection_lost(error)

    def _end(self, state: str) -> None:
        if self.state in ("open", "closed") and state != self.state:
            self.state = state
            if state == "aborted" or not self.unsent:
                asyncio.get_running_loop().call_soon(self.lose)

    def close(self) -> None:
        self._end("closed")

    def abort(self) -> None:
        self._end("aborted")

    def is_closing(self) -> bool:
        return self.state != "open"

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.eof = True

    def pause_reading(self) -> None:
        assert self.reading, "uvloop raises where asyncio does not"
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high or 0

    def get_extra_info(self, name: str, default: object = None) -> object:
        return SimpleNamespace(setsockopt=lambda *_: None) if name == "socket" else default


class Loop(VirtualLoop):
    """Connects to replicas by name; `refuses` has unreachable ones, with the reason."""

    def __init__(self) -> None:
        super().__init__()
        self.wires: list[Wire] = []
        self.refuses: dict[str, BaseException] = {}

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.Protocol], host: str, port: int, **_: object
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        await asyncio.sleep(0)
        if isinstance(self.refuses.get(host), TimeoutError):
            await asyncio.sleep(1e6)
        if host in self.refuses:
            raise self.refuses[host]
        protocol = protocol_factory()
        wire = Wire(protocol)
        self.wires.append(wire)
        protocol.connection_made(wire)
        return wire, protocol


class Meter:
    """Records its calls."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.early: list[Reason] = []
        self.errors: list[tuple[str, AttemptOutcome]] = []
        self.odd: list[Oddity] = []
        self.bugs: list[Callback] = []
        self.counts: list[CountSource] = []

    def ended(self, record: Record) -> None:
        self.records.append(record)

    def refused_early(self, refusal: EarlyRefusal) -> None:
        self.early.append(Reason(refusal.why))

    def upstream_error(self, pool: str, replica: str, end: AttemptOutcome) -> None:
        self.errors.append((replica, end))

    def oddity(self, pool: str, replica: str, kind: Oddity) -> None:
        self.odd.append(kind)

    def token_count(self, source: CountSource) -> None:
        self.counts.append(source)

    def bug(self, callback: Callback) -> None:
        self.bugs.append(callback)

    def gaps(self, tier: str, pool: str) -> LogHistogram:
        return LogHistogram((0.1, 1.0))


class Catalog:
    """The models of the policy."""

    def listing(self, policy: Policy, tier: Tier | None = None) -> Sequence[Mapping[str, object]]:
        return [{"id": name, "object": "model"} for name in policy.models]

    def usable(self, policy: Policy, tier: Tier) -> Sequence[str]:
        return models_of(policy, tier)

    def one(self, policy: Policy, name: str, tier: Tier | None = None) -> Mapping[str, object] | None:
        return {"id": name, "object": "model"} if name in policy.models else None

    def base_of(self, policy: Policy, name: str, tier: Tier | None = None) -> Model | None:
        return None

    def is_adapter(self, pools: Iterable[PoolSpec], name: str) -> bool:
        return False


@dataclass
class Script:
    """A scripted controller."""

    now: Callable[[], float]
    open_requests: dict[int, Request] = field(default_factory=dict)
    attempts: dict[int, int] = field(default_factory=dict)
    """The request of each open attempt."""
    committed: set[int] = field(default_factory=set)
    calls: list[str] = field(default_factory=list)
    results: list[AttemptResult] = field(default_factory=list)
    script: dict[str, list[tuple[Command | int, ...]]] = field(default_factory=dict)
    decided: list[Command] = field(default_factory=list)
    woken: int = 0
    remaining: Left = (None, None)
    is_up: bool = True
    engine_restarts: dict[str, int] = field(default_factory=dict)
    prompts: Any = field(default_factory=lambda: SimpleNamespace(estimate=lambda name, size: (size // 4, size // 3)))

    def _say(self, call: str, subject: object, usual: list[Command | int]) -> list[Command]:
        self.calls.append(f"{call} {subject}")
        waiting = self.script.get(call)
        said = list(waiting.pop(0)) if waiting else usual
        self.decided = [self._ended(c) if isinstance(c, int) else c for c in said]
        for command in self.decided:
            if isinstance(command, Dispatch):
                self.attempts[command.attempt] = command.request_id
            elif isinstance(command, Commit):
                self.committed.add(command.request_id)
        return self.decided

    def _ended(self, request_id: int) -> Command:
        request = self.open_requests.pop(request_id)
        return Ended(Record(request, Outcome.OK, None, "p", "r1", 0.0, None, None, 0.0, 1, 1, True, True, 1))

    def _of(self, request_id: int) -> list[int]:
        return [attempt for attempt, owner in self.attempts.items() if owner == request_id]

    # ---- calls

    def arrive(self, ask: Request, now: float) -> list[Command]:
        self.open_requests[ask.id] = ask
        return self._say("arrive", ask.id, [Dispatch(ask.id, ask.id, "r1", ask.max_tokens or 0)])

    def sent(self, attempt: int, now: float) -> None:
        self.calls.append(f"sent {attempt}")

    def first_token(self, attempt: int, now: float) -> list[Command]:
        return self._say("first_token", attempt, self._commit(attempt))

    def full(self, attempt: int, now: float) -> list[Command]:
        return self._say("full", attempt, self._commit(attempt))

    def _commit(self, attempt: int) -> list[Command | int]:
        request_id = self.attempts[attempt]
        return [] if request_id in self.committed else [Commit(request_id, attempt)]

    def progress(self, attempt: int, tokens: int, now: float) -> list[Command]:
        return self._say("progress", attempt, [])

    def repeats(self, attempt: int, now: float) -> list[Command]:
        return self._say("repeats", attempt, [])

    def paused(self, attempt: int, now: float) -> list[Command]:
        return self._say("paused", attempt, [])

    def resumed(self, attempt: int, now: float) -> list[Command]:
        return self._say("resumed", attempt, [])

    def finish(self, attempt: int, result: AttemptResult, now: float) -> list[Command]:
        request_id = self.attempts[attempt]
        self.results.append(result)
        usual: list[Command | int] = []
        if request_id in self.open_requests and result.end is not AttemptOutcome.CANCELLED:
            shows = result.end in (AttemptOutcome.COMPLETE, AttemptOutcome.REJECTED)
            usual += self._commit(attempt) if shows else [Refuse(request_id, Reason.UPSTREAM_ERROR)]
            usual.append(request_id)
        answer = self._say("finish", f"{attempt} {result.end.value}", usual)
        del self.attempts[attempt]
        return answer

    def leave(self, request_id: int, now: float, why: Reason) -> list[Command]:
        return self._say(
            "leave", f"{request_id} {why.value}", [*(Cancel(request_id, a) for a in self._of(request_id)), request_id]
        )

    def fail(self, request_id: int, now: float) -> list[Command]:
        if request_id not in self.open_requests:
            return []
        return self._say(
            "fail",
            request_id,
            [Refuse(request_id, Reason.INTERNAL), *(Cancel(request_id, a) for a in self._of(request_id)), request_id],
        )

    def observe(self, replica: str, sample: Sample, now: float) -> list[Command]:
        return self._say("observe", replica, [])

    def configure(self, policy: Policy, now: float) -> list[Command]:
        return self._say("configure", "", [])

    def drain(self, replica: str, on: bool, now: float) -> list[Command]:
        return self._say("drain", replica, [])

    def shut(self, now: float) -> list[Command]:
        return self._say("shut", "", [])

    def wake(self, now: float) -> list[Command]:
        return self._say("wake", "", [])

    # ---- reads

    def wake_at(self) -> float:
        return float("inf")

    def is_open(self, attempt: int) -> bool:
        return attempt in self.attempts

    def knows(self, request_id: int) -> bool:
        return request_id in self.open_requests

    def alive(self) -> bool:
        return self.is_up

    def exceeded(self, tenant: str, tier: Tier, tokens: int, now: float) -> LimitExceeded | None:
        return None

    def suspects(self, now: float) -> bool:
        return False

    def restarts(self, replica: str) -> int:
        return self.engine_restarts.get(replica, 0)

    def left(self, tenant: str, tier: str, now: float) -> Left:
        return self.remaining


# ---- the play


class Play:
    """One client, the replicas `r1` and `r2`, and the proxy between them."""

    def __init__(self, loop: Loop, rules: Policy | None = None, **limits: Any) -> None:
        self.loop = loop
        rules = rules or policy(pool("p", "r1", "r2"), tier("std"))
        self.meter = Meter()
        self.controller = Script(loop.time)
        self.driver = LocalDriver(self.controller, self.meter, loop, loop.time)  # type: ignore[arg-type]
        self.upstreams = Upstreams(Oddities(self.meter, loop.time), loop.time)
        self.upstreams.configure(rules.pools.values())
        services = ExchangeServices(self.driver, self.upstreams, self.meter, None)
        self.handler: RequestHandler = RequestHandler(rules, services, Catalog(), "127.0.0.1")
        self.limits = ConnectionLimits(**(LIMITS | limits))
        self.client: Wire = self.connect()
        self._seen: dict[int, int] = {}
        self._calls = 0

    def connect(self) -> Wire:
        """Another client, controlled by the test."""
        server: Any = SimpleNamespace(connections=set())
        config: Any = None
        protocol = ClientConnection(self.handler, self.limits, config, server, {})
        wire = Wire(protocol)
        self._in_loop(lambda: protocol.connection_made(wire))
        return wire

    def __call__(self, *steps: Step) -> Play:
        for number, step in enumerate(steps, 1):
            try:
                self._play(step)
            except AssertionError as error:
                error.add_note(f"in step {number}: {step}")
                raise
        return self

    @property
    def protocol(self) -> ClientConnection:
        """The client's connection."""
        protocol: ClientConnection = self.client.protocol
        return protocol

    @property
    def exchanges(self) -> list[CommandHandler]:
        """Requests under way."""
        return self.driver.requests

    def _play(self, step: Step) -> None:
        match step:
            case FromClient(data):
                self._in_loop(lambda: self.protocol.data_received(data))
            case FromReplica(data, at):
                wire = self.loop.wires[at - 1]
                self._in_loop(lambda: wire.protocol.data_received(data))
            case ReplicaCloses(at, error):
                wire = self.loop.wires[at - 1]
                self._in_loop(lambda: wire.lose(error))
            case ToClient(parts):
                told = self._new(self.client)
                _in_order(told, parts)
                _each_header_once(told)
            case Exactly(data):
                assert self._new(self.client) == data
            case ToReplica(parts, at):
                _in_order(self._new(self.loop.wires[at - 1]), parts)
            case On(call, commands):
                self.controller.script.setdefault(call, []).append(commands)
            case Now(commands):
                self.controller.script["observe"] = [commands]
                self._in_loop(lambda: self.driver.observe("r1", Sample()))
            case Called(calls):
                new = self.controller.calls[self._calls :]
                self._calls += len(new)
                rest = iter(new)
                assert all(call in rest for call in calls), new
            case Wait(seconds):
                self._wait(seconds)
            case Do(act):
                self._in_loop(lambda: act(self))
            case ClientIs(state):
                assert self.client.state == state
            case ReplicaIs(state, at):
                wire = self.loop.wires[at - 1]
                assert (wire.state if wire.reading or wire.state != "open" else "paused") == state
            case Odd(kind):
                assert kind in self.meter.odd, self.meter.odd

    def _new(self, wire: Wire) -> bytes:
        seen = self._seen.get(id(wire), 0)
        self._seen[id(wire)] = len(wire.out)
        return wire.out[seen:]

    def _wait(self, seconds: float) -> None:
        end = self.loop.time() + seconds
        while self.loop.time() < end:
            self._in_loop(lambda: None, min(1.0, end - self.loop.time()))
            now = self.loop.time()

            def sweep(now: float = now) -> None:
                self.handler.services.keep_alives.sweep(now)
                self.upstreams.sweep(now)
                while self.limits.sweep(now):
                    pass

            self._in_loop(sweep)

    def _in_loop(self, act: Callable[[], object], seconds: float = 0.0) -> None:
        async def go() -> None:
            act()
            if seconds:
                await asyncio.sleep(seconds)
            for _ in range(TURNS):
                await asyncio.sleep(0)

        self.loop.run_until_complete(go())

    def over(self) -> None:
        """Check that nothing is held, and that nothing of ours raised."""
        self._in_loop(lambda: self.client.abort())
        self._in_loop(self.upstreams.close)
        assert not self.meter.bugs
        assert self.driver.under_way == 0
        assert not self.controller.attempts
        assert self.upstreams.open_connections == 0
        assert not self.limits.parts
        assert self.limits.connections == 0
        assert not any(occupancy.open for occupancy in self.limits.occupancies.values())


def _each_header_once(data: bytes) -> None:
    for head in _HEAD.findall(data):
        names = [line.partition(b":")[0].lower() for line in head.split(b"\r\n")]
        assert len(names) == len(set(names)), head


def _in_order(data: bytes, parts: tuple[bytes, ...]) -> None:
    if not parts:
        assert data == b""
    at = 0
    for part in parts:
        found = data.find(part, at)
        assert found >= 0, f"{part!r} is not in {data[at:]!r}"
        at = found + len(part)
