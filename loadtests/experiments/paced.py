"""`python -m loadtests.experiments.paced`: a target with known latencies, at any load.

The n-th request has the n-th of a hundred times to its first token, from 200 to 400 ms, in a fixed mixed order. Every
token after it takes 20 to 30 ms, likewise. Any tester that sends a multiple of a hundred requests must see the same
percentiles. Answers are streamed on request. It prints its port, and serves until its standard input ends.
"""

from __future__ import annotations

import argparse
import asyncio

import orjson
import uvloop

from loadtests.emulator.exchange import Exchange
from loadtests.experiments.served import Served, serve

KINDS = 100
STRIDE = 37
"""Step from the time of one request to that of the next: coprime to KINDS, so that neighbours differ."""
TTFT_S = (0.200, 0.400)
ITL_S = (0.020, 0.030)
TOKENS = 16
MODELS = b'{"object":"list","data":[{"id":"m","object":"model"}]}'


def times(n: int) -> tuple[float, float]:
    """TTFT and ITL of the n-th request, in seconds."""
    share = n * STRIDE % KINDS / (KINDS - 1)
    other = (n * STRIDE * STRIDE + 13) % KINDS / (KINDS - 1)
    return TTFT_S[0] + share * (TTFT_S[1] - TTFT_S[0]), ITL_S[0] + other * (ITL_S[1] - ITL_S[0])


class Target(Served):
    """Answers a request for models at once, and every other one when its time has come."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self._tokens = tokens
        self._usage = {"prompt_tokens": 10, "completion_tokens": tokens, "total_tokens": 10 + tokens}
        self._count = 0

    def handle(self, exchange: Exchange) -> None:
        if not exchange.received.body:
            exchange.reply(200, MODELS)
            return
        ttft_s, itl_s = times(self._count)
        self._count += 1
        loop = asyncio.get_running_loop()
        if orjson.loads(exchange.received.body).get("stream"):
            began = loop.time()
            for n in range(self._tokens):
                loop.call_at(began + ttft_s + n * itl_s, self._token, exchange, n)
            return
        message = {"role": "assistant", "content": " a" * self._tokens}
        choice = {"index": 0, "message": message, "finish_reason": "length"}
        answer = orjson.dumps(
            {"id": "c", "object": "chat.completion", "model": "m", "choices": [choice], "usage": self._usage}
        )
        loop.call_later(ttft_s + itl_s * (self._tokens - 1), exchange.reply, 200, answer)

    def _token(self, exchange: Exchange, n: int) -> None:
        last = n == self._tokens - 1
        if n == 0:
            exchange.open()
        exchange.event(_event([{"index": 0, "delta": {"content": " a"}, "finish_reason": "length" if last else None}]))
        if last:
            exchange.event(_event([], usage=self._usage) + _frame(b"[DONE]"))
            exchange.close()


def _event(choices: list[dict[str, object]], **more: object) -> bytes:
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices}
    return _frame(orjson.dumps(chunk | more))


def _frame(data: bytes) -> bytes:
    return b"%x\r\ndata: %b\n\n\r\n" % (len(data) + 8, data)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of each answer")
    uvloop.run(serve(Target(parser.parse_args().tokens)))
