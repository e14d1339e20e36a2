"""A gateway, its replicas and clients in one process without sockets, in virtual time."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any, Final

import uvicorn

import gateway.admin_port
from gateway.app import Gateway
from gateway.core.policy import Policy
from gateway.core.redundancy.ttft_quantiles import MIN_SAMPLES
from gateway.core.snapshot import ReplicaState
from gateway.observe.requests.ring import Found
from gateway.observe.requests.row import RequestRow
from gateway.policy import load_text
from gateway.proxy.client.client_connection import ClientConnection
from gateway.settings import Settings
from tests.foreign.client import Answer, Door, may_be_whole, read_answer, request
from tests.foreign.loop import VirtualLoop
from tests.foreign.replica import Part, Play, Replicas
from tests.foreign.script import CHAT, DONE, HI, ROLE, STOP, THERE, chunked, completion, sized, usage

PORTS: Final = (8001, 8002)
TTFT_S: Final = 60.0
OPEN_S: Final = 5.0
SEED: Final = 7
SWEEP_S: Final = 5.0
MAX_TRIES: Final = 100
"""Most requests to send until every replica has had one: each gets a random replica."""
MAX_S: Final = 400.0
"""Longest wait for an answer (seconds). It is longer than every timeout of the policy."""

SOUND_STREAM: Final = chunked(ROLE, HI, THERE, STOP, usage(), DONE)
SOUND_WHOLE: Final = sized(completion())


def sound(body: bytes) -> Play:
    """A healthy replica."""
    return Play([SOUND_STREAM if b'"stream":true' in body else SOUND_WHOLE])


def policy_of(ports: Iterable[int], aggregate: bool, hedged: bool = False, failures: int = 1) -> Policy:
    """One tier, and one pool with a replica at each port; this many counted faults open a breaker."""
    urls = ", ".join(f"http://127.0.0.1:{port}" for port in ports)
    hedge = ", hedge: {holdout: 0%, budget: 100%}, retry: {budget: 100%}" if hedged else ""
    return load_text(
        "apiVersion: tailgate/v1\n"
        "models: {emulated: {pools: [main]}}\n"
        f"pools: {{main: {{replicas: [{urls}], slots: 64, "
        f"health: {{failures: {failures}, open: {OPEN_S:g}s, ejection: {{mode: off}}}}}}}}\n"
        f"tiers: {{free: {{aggregate: {str(aggregate).lower()}, max_tokens: {{default: 16, limit: 4000}}, "
        f"caps: {{n: 4}}, "
        f"timeouts: {{queue: 5s, ttft: {TTFT_S:g}s, idle: 30s, total: 300s}}, admission: {{mode: off}}{hedge}}}}}\n"
        "defaults: {tier: free}\n",
        "policy.yaml",
        {},
    )


@cache
def policy(aggregate: bool, hedged: bool) -> Policy:
    """One replica, or two if hedged."""
    return policy_of(PORTS if hedged else PORTS[:1], aggregate, hedged)


@cache
def _settings() -> Settings:
    return Settings(port=0, admin_port=0)


@cache
def _config() -> uvicorn.Config:
    return uvicorn.Config("none:none", log_config=None)


class Tracebacks(logging.Handler):
    """Keeps log records that must never occur."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info or record.levelno >= logging.ERROR:
            self.seen.append(f"{record.getMessage()} {record.exc_info and record.exc_info[1]!r}")


@contextmanager
def watched(loop: asyncio.AbstractEventLoop) -> Iterator[list[str]]:
    """Collects tracebacks in the log and exceptions in callbacks, inside the block."""
    handler = Tracebacks()
    logger = logging.getLogger("tailgate")
    logger.addHandler(handler)
    loop.set_exception_handler(lambda _, context: handler.seen.append(str(context)))
    try:
        yield handler.seen
    finally:
        logger.removeHandler(handler)
        loop.set_exception_handler(None)


class World:
    """The whole gateway, between a client's bytes and a replica's."""

    def __init__(self, loop: VirtualLoop, aggregate: bool = False, hedged: bool = False) -> None:
        self.loop = loop
        self.replicas = Replicas(loop, PORTS)
        self.set_parts(sound)
        loop.connect = self.replicas.connect
        self.records: list[RequestRow] = []
        app: Any = gateway.admin_port
        real, app.admin_app = app.admin_app, _no_admin
        chance = random.getstate()
        random.seed(SEED)  # the gateway draws its own seed from here
        try:
            self.gateway = Gateway(_settings(), policy(aggregate, hedged), clock=loop.time)
        finally:
            app.admin_app = real
            random.setstate(chance)
        ring = self.gateway.records.ring
        assert ring is not None
        ring.readers.append(self._ended)
        self._state: Any = SimpleNamespace(connections=set())
        self._sweeping = loop.call_later(SWEEP_S, self._sweep)
        self._asked = 0

    def _ended(self, one: Found) -> None:
        if isinstance(one, RequestRow):
            self.records.append(one)

    def set_parts(self, part: Part) -> None:
        """Every replica plays this script from now on."""
        self.replicas.parts = dict.fromkeys(PORTS, part)

    def _sweep(self) -> None:
        now = self.loop.time()
        self.gateway.limits.sweep(now)
        self.gateway.api.upstreams.sweep(now)
        self._sweeping = self.loop.call_later(SWEEP_S, self._sweep)

    def close(self) -> None:
        """Leave nothing behind."""
        self._sweeping.cancel()
        self.gateway.driver.close()
        self.gateway.api.upstreams.close()

    # ---- clients

    def door(self, **pace: Any) -> Door:
        """A connected client."""
        door = Door(self.loop, **pace)
        door.protocol = ClientConnection(self.gateway.handler, self.gateway.limits, _config(), self._state, {})
        door.protocol.connection_made(door)
        return door

    def unlike(self) -> str:
        """A unique prompt."""
        self._asked += 1
        return f"question {self._asked}"

    async def ask(self, door: Door, data: bytes) -> Answer | None:
        """Send a request and wait for the answer. None: the connection ended without one, or nothing ever arrived."""
        door.protocol.data_received(data)
        return await self.answer(door)

    async def answer(self, door: Door) -> Answer | None:
        """Wait for the answer to the last request."""
        try:
            async with asyncio.timeout(MAX_S):
                while True:
                    if door.over or may_be_whole(door.received):
                        answer = read_answer(bytes(door.received))
                        if door.over or (answer is not None and answer.framed):
                            return answer
                    door.news.clear()
                    await door.news.wait()
        except TimeoutError:
            return None

    async def turn(self) -> None:
        """Run everything that is due, with almost no time passing."""
        await asyncio.sleep(0.001)

    async def served(self) -> bool:
        """Whether another client gets a normal answer."""
        door = self.door()
        answer = await self.ask(door, request(CHAT, True, self.unlike()))
        door.close()
        return answer is not None and answer.status == 200 and b"[DONE]" in answer.body

    async def warm(self) -> None:
        """Let the gateway learn TTFT quantiles, so that it hedges late requests."""
        door = self.door()
        for _ in range(MIN_SAMPLES):
            await self.ask(door, request(CHAT, True, self.unlike()))
            door.received.clear()
        door.close()
        await asyncio.sleep(5.0)

    # ---- the fleet

    def down(self) -> list[str]:
        """Replicas that get no requests."""
        return [name for _, name, state, _ in self.gateway.controller.states() if state is not ReplicaState.UP]

    def errors(self) -> dict[str, tuple[float, int]]:
        """Time and count of the last error of each replica."""
        health = {r.spec.name: r.health for pool in self.gateway.controller.state.fleet for r in pool.replicas.values()}
        return {name: (found.error.at, found.error.count) for name, found in health.items()}

    async def recovered(self) -> bool:
        """Whether every replica is up, after the breakers' wait and some requests."""
        for _ in range(MAX_TRIES):
            if not self.down():
                return True
            await asyncio.sleep(OPEN_S)
            await self.served()
        return False

    def held(self) -> list[str]:
        """State that is held although no request is open."""
        found = self.replicas.unsafe()
        if self.gateway.driver.under_way:
            found.append(f"{self.gateway.driver.under_way} requests are under way")
        busy = sum(pool.in_flight for pool in self.gateway.controller.snapshot(self.loop.time()).pools)
        return found + ([f"{busy} slots are taken"] if busy else [])


def _no_admin(*_: object, **__: object) -> object:
    return _config
