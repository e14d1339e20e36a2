"""`python -m loadtests.experiments.staller`: a server that answers in 5 ms, and stalls for a second every ten.

It serves any number of requests at the same time. Answers due during a stall come at its end. It prints its port, and
serves until its standard input ends.
"""

from __future__ import annotations

import argparse
import asyncio
import time

import uvloop

from loadtests.emulator.exchange import Exchange
from loadtests.experiments.served import Served, serve

ANSWER = b'{"choices":[{"message":{"content":"ok"},"finish_reason":"stop"}],"usage":{"completion_tokens":1}}'


def answered_at(came_s: float, service_s: float, stall_s: float, every_s: float) -> float:
    """The time of the answer to a request that arrived at `now`; the stall is the last `stall_s` of every `every_s`."""
    ready_s = came_s + service_s
    cycle, within = divmod(ready_s, every_s)
    return (cycle + 1) * every_s if within >= every_s - stall_s else ready_s


class Staller(Served):
    """Answers when the time has come."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self._options = options
        self._began = time.monotonic()

    def handle(self, exchange: Exchange) -> None:
        of, now = self._options, time.monotonic() - self._began
        due = answered_at(now, of.service, of.stall, of.every)
        asyncio.get_running_loop().call_later(due - now, exchange.reply, 200, ANSWER)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--service", type=float, default=0.005, help="seconds")
    parser.add_argument("--stall", type=float, default=1.0, help="seconds")
    parser.add_argument("--every", type=float, default=10.0, help="seconds")
    uvloop.run(serve(Staller(parser.parse_args())))
