"""A replica that costs next to nothing: canned answers on several ports, with streams paced by one wheel.

`python -m loadtests.bench.upstream --ports 4 --interval 0.02` prints its ports as JSON (`[[1, 2, 3, 4]]`; with
`--certificate`, those with TLS follow) and serves until its standard input ends, so that it never outlives the bench.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import ssl
import sys
from collections.abc import Iterable
from itertools import count
from math import gcd
from typing import cast

import httptools
import uvloop

from loadtests.bench import canned

STREAM = re.compile(rb'"stream":\s*true')
USAGE = re.compile(rb'"include_usage":\s*true')
LENGTH = re.compile(rb'"max_(?:completion_)?tokens":\s*(\d+)')
SLOT_S = 0.001

PAGES = {
    b"/health": canned.HEALTHY,
    b"/v1/models": canned.MODELS,
    b"/metrics": canned.METRICS,
    b"/v1/traces": canned.HEALTHY,
}
"""Answers besides completions. An exporter of traces asks a collector for no more than status 200."""


class Stream:
    """One answer under way, with the chunks it still has to send."""

    __slots__ = ("left", "tokens", "transport", "usage")

    def __init__(self, transport: asyncio.Transport, tokens: int, *, usage: bool) -> None:
        self.transport = transport
        self.tokens = tokens
        self.left = tokens
        self.usage = usage

    def step(self) -> bool:
        """Write the next chunk. False once the answer is over, or its reader has left."""
        if self.transport.is_closing():
            return False
        first = self.left == self.tokens
        self.left -= 1
        data = canned.STREAM_HEAD + canned.STREAM_ROLE + canned.STREAM_CHUNK if first else canned.STREAM_CHUNK
        if self.left <= 0:
            data += canned.STREAM_FINISH + (canned.usage_event(self.tokens) if self.usage else b"") + canned.STREAM_END
        self.transport.write(data)
        return self.left > 0


class Wheel:
    """Gives every stream one chunk per interval, streams spread evenly over it.

    One timer for all of them: 200 timers of 20 ms each would cost more than the writes they cause.
    """

    def __init__(self, interval_s: float) -> None:
        self._slots: list[set[Stream]] = [set() for _ in range(max(1, round(interval_s / SLOT_S)))]
        # A step near the golden ratio puts successive streams far apart. The step is coprime to the number of slots, so
        # it reaches every slot.
        slots = len(self._slots)
        self._stride = next(step for step in count(max(1, round(slots * 0.618))) if gcd(step, slots) == 1)
        self._entry = 0
        self._turn = 0

    def add(self, stream: Stream) -> None:
        """Start a stream: its next chunk comes within one interval."""
        self._entry = (self._entry + self._stride) % len(self._slots)
        self._slots[self._entry].add(stream)

    @property
    def streams(self) -> int:
        """Streams that still owe a chunk."""
        return sum(map(len, self._slots))

    def due(self, elapsed_s: float) -> None:
        """Run every slot whose time has come."""
        while self._turn * SLOT_S <= elapsed_s:
            slot = self._slots[self._turn % len(self._slots)]
            slot.difference_update([stream for stream in slot if not stream.step()])
            self._turn += 1

    async def run(self) -> None:
        """Serve all slots in turn, until the task is cancelled."""
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        while True:
            self.due(loop.time() - started_at)
            await asyncio.sleep(SLOT_S)


class Replica(asyncio.Protocol):
    """One connection: HTTP/1.1 with keep-alive, one request at a time."""

    def __init__(self, wheel: Wheel) -> None:
        self._wheel = wheel
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._body: list[bytes] = []
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are not subclasses of asyncio's

    def data_received(self, data: bytes) -> None:
        """Parse; a malformed request closes the connection, which the bench counts as an error."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.abort()

    def on_url(self, url: bytes) -> None:
        """Parser callback."""
        self._url += url

    def on_body(self, body: bytes) -> None:
        """Parser callback."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Parser callback: answer."""
        url, body = self._url, b"".join(self._body)
        self._url, self._body = b"", []
        if url != canned.PATH.encode():
            self._transport.write(PAGES.get(url, canned.NOT_FOUND))
        elif STREAM.search(body):
            length = LENGTH.search(body)
            tokens = max(1, int(length[1])) if length else 16
            stream = Stream(self._transport, tokens, usage=bool(USAGE.search(body)))
            # The first chunk is sent at once: it tells a proxy that counts unread prompts that this one was read.
            if stream.step():
                self._wheel.add(stream)
        else:
            self._transport.write(canned.ANSWER)


async def listen(ports: Iterable[int], wheel: Wheel, tls: ssl.SSLContext | None = None) -> list[asyncio.Server]:
    """Serve on loopback; port 0 is any free one."""
    loop = asyncio.get_running_loop()
    return [
        await loop.create_server(lambda: Replica(wheel), "127.0.0.1", port, backlog=4096, ssl=tls) for port in ports
    ]


async def _main(replicas: int, interval_s: float, certificate: str) -> None:
    wheel = Wheel(interval_s)
    servers = [await listen([0] * replicas, wheel)]
    if certificate:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate)
        servers.append(await listen([0] * replicas, wheel, tls))
    print(json.dumps([[server.sockets[0].getsockname()[1] for server in of] for of in servers]), flush=True)
    turning = asyncio.create_task(wheel.run())
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), ended.set)
    await ended.wait()
    turning.cancel()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ports", type=int, default=4)
    parser.add_argument("--interval", type=float, default=0.02, help="seconds between the chunks of one stream")
    parser.add_argument("--certificate", default="", help="file with certificate and key: serve TLS too, on more ports")
    options = parser.parse_args()
    uvloop.run(_main(options.ports, options.interval, options.certificate))
