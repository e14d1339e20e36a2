"""Coordinated omission: an open loop shows the cost of a stall, a closed loop hides it.

The target answers at once, except during one stall. Neither its length nor the machine's speed matters: every request
that was due before its end must wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import cast

import httptools

from gateway.sim.workload.arrivals import Arrival
from loadtests.replay.play import Kept, Plan, Player
from loadtests.replay.request import Outcome
from loadtests.replay.target import Target

BEFORE, DURING = 10, 40
EVERY_S = 0.005
PLAN = Plan(lead_s=0.0, warm_connections=1)
BODY = b'{"choices":[{"message":{"content":"ok"}}]}'
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(BODY), BODY)


class Staller:
    """Answers the first BEFORE requests at once; later ones wait for the release."""

    def __init__(self) -> None:
        self.received = 0
        self.wanted = 0
        self.reached = asyncio.Event()
        """So many have been received as are wanted."""
        self._held: list[asyncio.Transport] | None = []

    def take(self, transport: asyncio.Transport) -> None:
        self.received += 1
        if self.received <= BEFORE or self._held is None:
            transport.write(ANSWER)
        else:
            self._held.append(transport)
        if self.received == self.wanted:
            self.reached.set()

    def release(self) -> None:
        held, self._held = self._held, None
        for transport in held or ():
            transport.write(ANSWER)


class Connection(asyncio.Protocol):
    def __init__(self, of: Staller) -> None:
        self._of = of
        self._parser = httptools.HttpRequestParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        self._of.take(self._transport)


@asynccontextmanager
async def staller(wanted: int) -> AsyncIterator[tuple[Staller, Target]]:
    of = Staller()
    of.wanted = wanted
    server = await asyncio.get_running_loop().create_server(lambda: Connection(of), "127.0.0.1", 0)
    try:
        yield of, Target(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    finally:
        server.close()


def traffic(every_s: float) -> list[Arrival]:
    return [Arrival(every_s * n, "t", "t-1", "m", 10, 10, stream=False) for n in range(BEFORE + DURING)]


async def test_open_loop_sees_every_request_delayed_by_a_stall() -> None:
    async with staller(BEFORE + DURING) as (of, target):
        kept = Kept()
        player = Player(traffic(EVERY_S), target, kept, PLAN)
        playing = asyncio.create_task(player.play())
        await asyncio.wait_for(of.reached.wait(), 20)
        released_s = player.clock()
        of.release()
        await playing
    waited = [request for request in kept.requests if request.number >= BEFORE]
    assert len(waited) == DURING
    for request in waited:
        assert request.outcome is Outcome.FINISHED
        assert request.ended_s >= released_s
    # The first of them waited for the whole stall, counted from when it was due.
    longest_s = max(request.ended_s - request.arrival.at for request in waited)
    assert longest_s >= released_s - EVERY_S * BEFORE >= EVERY_S * (DURING - 1)


async def test_closed_loop_sees_only_as_many_delayed_requests_as_it_has_clients() -> None:
    clients = 2
    async with staller(BEFORE + clients) as (of, target):
        kept = Kept()
        # All are due at once: an open loop has sent them all by now.
        player = Player(traffic(0.0), target, kept, replace(PLAN, clients=clients))
        playing = asyncio.create_task(player.play())
        await asyncio.wait_for(of.reached.wait(), 20)
        for _ in range(100):
            await asyncio.sleep(0)
        stalled, released_s = of.received - BEFORE, player.clock()
        of.release()
        await playing
    assert stalled == clients
    assert len(kept.requests) == BEFORE + DURING
    # The other latencies hide the stall: their clocks began after it.
    assert sum(request.arrival.at < released_s <= request.ended_s for request in kept.requests) == clients
