"""`python -m loadtests.live.generator ORDER`: sends what the order says, when it says, and writes what came of it.

The order is a JSON file: the address, the shots, when counting begins and ends, how long to wait for answers at most.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import orjson
import uvloop

from gateway.observe.lag import LoopLag
from loadtests.live.clients import Clients, request
from loadtests.live.pace import Shot, pace

LEAD_S = 0.5
"""From ready to the beginning."""
WARM_CONNECTIONS = 32
TAIL_S = 1.0
"""After the last request, in which others may still look at this process."""
LOOK_S = 0.5
BEGINS = r"^begins at ([\d.]+)$"
"""What it prints when it is ready: a time of the monotonic clock, which all processes of a machine share."""


@dataclass(frozen=True, slots=True)
class Order:
    """Times in seconds from the beginning; `grace_s` from `until_s`, when counting ends."""

    host: str
    port: int
    counted_s: float
    until_s: float
    grace_s: float
    shots: list[Shot]


@dataclass(frozen=True, slots=True)
class Report:
    """The shots with what became of them; the rest is of the time that counts."""

    shots: list[Shot]
    waits: list[float]
    """On the event loop, by bucket."""
    tokens: int
    """That came, of all answers."""
    most_open: int
    """Connections at the same time."""


@dataclass(slots=True)
class _Watch:
    """What happened between two moments."""

    lag: LoopLag
    clients: Clients
    at_first: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    tokens: int = 0
    most_open: int = 0

    def begin(self) -> None:
        self.at_first = list(self.lag.waits.counts)
        self.tokens = self.clients.tokens

    def end(self) -> None:
        self.waits = [after - before for after, before in zip(self.lag.waits.counts, self.at_first, strict=True)]
        self.tokens = self.clients.tokens - self.tokens

    def look(self) -> None:
        self.most_open = max(self.most_open, len(self.clients.open))


async def run(order: Order) -> Report:
    """Send, and wait until no request may turn out good any more. Raises OSError if nobody listens."""
    loop = asyncio.get_running_loop()
    began = time.monotonic()

    def clock() -> float:
        return time.monotonic() - began

    bodies = {id(shot): request(shot, f"{order.host}:{order.port}") for shot in order.shots}
    clients = Clients(order.host, order.port, clock)
    await clients.warm(WARM_CONNECTIONS)
    watch = _Watch(LoopLag(time.monotonic, lambda _: watch.look()), clients)
    gc.freeze()  # the shots are as many as they will ever be: no collection need look at them
    watching = asyncio.create_task(watch.lag.run())
    began = time.monotonic() + LEAD_S
    print(f"begins at {began:.6f}", flush=True)
    loop.call_later(LEAD_S + order.counted_s, watch.begin)
    loop.call_later(LEAD_S + order.until_s, watch.end)
    telling = asyncio.create_task(_tell(clients, clock))
    await pace(order.shots, clock, asyncio.sleep, lambda shot: clients.send(shot, bodies.pop(id(shot))))
    await asyncio.sleep(order.until_s + TAIL_S - clock())
    await _settled(order, clock)
    for task in (watching, telling):
        task.cancel()
    shots = [Shot(**asdict(shot)) for shot in order.shots]  # before connections are cut
    clients.close()
    return Report(shots, watch.waits, watch.tokens, watch.most_open)


async def _settled(order: Order, clock: Callable[[], float]) -> None:
    """Until nothing can change any more in what is good, or patience ends."""
    for _ in range(round(order.grace_s / LOOK_S)):
        if not any(shot.hopes(clock()) for shot in order.shots):
            return
        await asyncio.sleep(LOOK_S)


async def _tell(clients: Clients, clock: Callable[[], float]) -> None:
    while True:
        await asyncio.sleep(1.0)
        print(f"{clock():.0f} s: {len(clients.under_way)} under way", flush=True)


def main() -> None:
    """Carry out one order."""
    order_path, report_path = map(Path, sys.argv[1:3])
    raw = orjson.loads(order_path.read_bytes())
    order = Order(**{**raw, "shots": [Shot(**shot) for shot in raw["shots"]]})
    report_path.write_bytes(orjson.dumps(asdict(uvloop.run(run(order)))))


if __name__ == "__main__":
    main()
