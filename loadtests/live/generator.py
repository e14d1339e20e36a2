"""`python -m loadtests.live.generator ORDER REPORT`: sends the requests of an order at their times, and reports the
outcomes.

The order is a JSON file: the address, the requests, the begin and end of counting, the longest wait for answers. The
generator is that of `tailgate load run`; here each request is kept, with its objective.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import orjson
import uvloop

from loadtests.live.planned import PlannedRequest
from loadtests.replay.play import Now, Plan, Player
from loadtests.replay.request import Request
from loadtests.replay.target import Length, Target

MODEL = "default"
LEAD_S = 0.5
"""Seconds between the end of the preparations and the beginning of the test."""
WARM_CONNECTIONS = 32
TAIL_S = 1.0
"""Seconds after the last request in which others may still read this process's state."""
TELL_EVERY = 2
"""Number of calls of `show`, one every half second, between two lines of progress."""
BEGINS = r"^begins at ([\d.]+)$"
"""The line printed when it is ready: a time of the monotonic clock, which all processes of a machine share."""


@dataclass(frozen=True, slots=True)
class Order:
    """The requests to send. Times are seconds from the beginning; `grace_s` counts from `until_s`, when counting
    ends.
    """

    url: str
    counted_s: float
    until_s: float
    grace_s: float
    requests: list[PlannedRequest]


@dataclass(frozen=True, slots=True)
class Report:
    """The requests with their outcomes; the other fields cover only the counted time."""

    requests: list[PlannedRequest]
    waits: list[float]
    """Waits on the event loop, by bucket."""
    tokens: int
    """Content events of all answers."""
    most_open: int
    """Most connections at the same time."""


class _Kept:
    """A recorder that writes outcomes into the requests."""

    def __init__(self, requests: list[PlannedRequest]) -> None:
        self._requests = requests

    def gap(self, request: Request, gap_s: float, count: int) -> None:
        """Ignore gaps."""

    def ended(self, request: Request) -> None:
        """Write the outcome into the request with the request's number."""
        self._requests[request.number].note(request)


@dataclass(slots=True)
class _Counted:
    """Counts between two moments."""

    player: Player
    at_first: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    tokens: int = 0

    def begin(self) -> None:
        self.at_first, self.tokens = list(self.player.lag.waits.counts), self.player.chunks

    def end(self) -> None:
        self.waits = [after - before for after, before in zip(self.player.lag.waits.counts, self.at_first, strict=True)]
        self.tokens = self.player.chunks - self.tokens


async def run(order: Order) -> Report:
    """Send the requests, and wait until no open one can still be good. Raises OSError if nobody listens."""
    loop = asyncio.get_running_loop()
    requests = order.requests
    calls = 0

    def show(now: Now) -> None:
        nonlocal calls
        calls += 1
        if calls % TELL_EVERY == 0:
            print(f"{now.at_s:.0f} s: {now.under_way} under way", flush=True)

    def settled(now_s: float, under_way: Iterable[Request]) -> bool:
        """No open request can still be good, and other processes have had time to read this one's state."""
        return now_s >= order.until_s + TAIL_S and not any(requests[of.number].hopes(of, now_s) for of in under_way)

    target = Target(order.url, MODEL, keys={request.key: (request.key,) for request in requests}, length=Length.HIDDEN)
    plan = Plan(
        grace_s=order.until_s - requests[-1].at + order.grace_s, lead_s=LEAD_S, warm_connections=WARM_CONNECTIONS
    )
    player = Player(
        (request.arrival(MODEL) for request in requests),
        target,
        _Kept(requests),
        plan,
        show=show,
        begins=lambda at: print(f"begins at {at:.6f}", flush=True),
        settled=settled,
    )
    counted = _Counted(player)
    loop.call_later(LEAD_S + order.counted_s, counted.begin)
    loop.call_later(LEAD_S + order.until_s, counted.end)
    played = await player.play()
    await asyncio.sleep(order.until_s + TAIL_S - player.clock())
    return Report(requests, counted.waits, counted.tokens, played.most_connections)


def main() -> None:
    """Carry out one order."""
    order_path, report_path = map(Path, sys.argv[1:3])
    raw = orjson.loads(order_path.read_bytes())
    order = Order(**{**raw, "requests": [PlannedRequest(**request) for request in raw["requests"]]})
    report_path.write_bytes(orjson.dumps(asdict(uvloop.run(run(order)))))


if __name__ == "__main__":
    main()
