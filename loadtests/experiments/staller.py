"""`python -m loadtests.experiments.staller`: a server that answers in 5 ms, and stalls for a second every ten.

It serves any number of requests at the same time. Answers due during a stall come at its end. It prints its port, and
serves until its standard input ends.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import cast

import httptools
import uvloop

from loadtests.experiments.served import serve

ANSWER = b'{"choices":[{"message":{"content":"ok"},"finish_reason":"stop"}],"usage":{"completion_tokens":1}}'
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(ANSWER)


def answered_at(came_s: float, service_s: float, stall_s: float, every_s: float) -> float:
    """The time of the answer to a request that arrived at `now`; the stall is the last `stall_s` of every `every_s`."""
    ready_s = came_s + service_s
    cycle, within = divmod(ready_s, every_s)
    return (cycle + 1) * every_s if within >= every_s - stall_s else ready_s


class Connection(asyncio.Protocol):
    """One connection with keep-alive, one request at a time."""

    def __init__(self, options: argparse.Namespace, began: float) -> None:
        self._options = options
        self._began = began
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Feed the parser."""
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        """Answer when the time has come."""
        of, now = self._options, time.monotonic() - self._began
        due = answered_at(now, of.service, of.stall, of.every)
        asyncio.get_running_loop().call_later(due - now, self._transport.write, HEAD + ANSWER)


async def _main(options: argparse.Namespace) -> None:
    began = time.monotonic()
    await serve(lambda: Connection(options, began))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--service", type=float, default=0.005, help="seconds")
    parser.add_argument("--stall", type=float, default=1.0, help="seconds")
    parser.add_argument("--every", type=float, default=10.0, help="seconds")
    uvloop.run(_main(parser.parse_args()))
