"""`python -m loadtests.experiments.paced`: a target with known latencies, at any load.

The n-th request has the n-th of a hundred times to its first token, from 200 to 400 ms, in a fixed mixed order. Every
token after it takes 20 to 30 ms, likewise. Any tester that sends a multiple of a hundred requests must see the same
percentiles. Answers are streamed on request. It prints its port, and serves until its standard input ends.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import cast

import httptools
import orjson
import uvloop

from loadtests.experiments.served import serve

KINDS = 100
STRIDE = 37
"""Step from the time of one request to that of the next: coprime to KINDS, so that neighbours differ."""
TTFT_S = (0.200, 0.400)
ITL_S = (0.020, 0.030)
TOKENS = 16
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def times(n: int) -> tuple[float, float]:
    """TTFT and ITL of the n-th request, in seconds."""
    share = n * STRIDE % KINDS / (KINDS - 1)
    other = (n * STRIDE * STRIDE + 13) % KINDS / (KINDS - 1)
    return TTFT_S[0] + share * (TTFT_S[1] - TTFT_S[0]), ITL_S[0] + other * (ITL_S[1] - ITL_S[0])


class Target:
    """State that all connections share."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self._count = 0

    def next(self) -> tuple[float, float]:
        """TTFT and ITL of the next request."""
        self._count += 1
        return times(self._count - 1)


class Connection(asyncio.Protocol):
    """One connection with keep-alive, one request at a time."""

    def __init__(self, of: Target) -> None:
        self._of = of
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Feed the parser."""
        self._parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        """Collect the body."""
        self._body += data

    def on_message_complete(self) -> None:
        """Answer when the time has come."""
        body, self._body = self._body, b""
        if not body:
            self._whole(b'{"object":"list","data":[{"id":"m","object":"model"}]}')
            return
        loop, (ttft_s, itl_s) = asyncio.get_running_loop(), self._of.next()
        if not orjson.loads(body).get("stream"):
            said = {
                "index": 0,
                "message": {"role": "assistant", "content": " a" * self._of.tokens},
                "finish_reason": "length",
            }
            answer = orjson.dumps(
                {"id": "c", "object": "chat.completion", "model": "m", "choices": [said], "usage": self._usage()}
            )
            loop.call_later(ttft_s + itl_s * (self._of.tokens - 1), self._whole, answer)
            return
        began = loop.time()
        for n in range(self._of.tokens):
            loop.call_at(began + ttft_s + n * itl_s, self._token, n)

    def _token(self, n: int) -> None:
        last = n == self._of.tokens - 1
        data = self._event({"content": " a"}, "length" if last else None)
        if n == 0:
            data = HEAD + data
        if last:
            usage = orjson.dumps(
                {"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": [], "usage": self._usage()}
            )
            data += _frame(b"data: " + usage + b"\n\n") + _frame(b"data: [DONE]\n\n") + b"0\r\n\r\n"
        if not self._transport.is_closing():
            self._transport.write(data)

    def _event(self, delta: dict[str, str], finish: str | None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
        return _frame(b"data: " + orjson.dumps(chunk) + b"\n\n")

    def _usage(self) -> dict[str, int]:
        return {"prompt_tokens": 10, "completion_tokens": self._of.tokens, "total_tokens": 10 + self._of.tokens}

    def _whole(self, body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        if not self._transport.is_closing():
            self._transport.write(head + body)


def _frame(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def _main(tokens: int) -> None:
    of = Target(tokens)
    await serve(lambda: Connection(of))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of each answer")
    uvloop.run(_main(parser.parse_args().tokens))
