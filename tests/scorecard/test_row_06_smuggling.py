"""Row 6: no request hidden in another reaches a replica, and none is answered."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter

from .capture import Capture
from .conftest import Connect, GatewayFactory
from .policies import rules
from .raw import CHAT, chat_body, request
from .smuggling import HIDDEN, attacks
from .state import held
from .waiting import until

AT_ONCE = 50
HEAD = re.compile(
    rb"POST /v1/chat/completions HTTP/1\.1\r\n"
    rb"host: 127\.0\.0\.1:\d+\r\ncontent-type: application/json\r\naccept: text/event-stream, application/json\r\n"
    rb"accept-encoding: identity\r\nx-request-id: [A-Za-z0-9._:-]{1,128}\r\ncontent-length: (\d+)\r\n\r\n"
)
# Bytes in one piece, in two, and in many.
WAYS = 3


def pieces(name: str, data: bytes, way: int) -> list[bytes]:
    """`data` cut at random, but not right after a request if bytes follow it.

    Bytes that arrive after the first answer are an honest second request.
    """
    dice = random.Random(f"{name} {way}")
    alone = name.endswith("-alone") or (name.startswith("line-") and not name.endswith("-pipelined"))
    end = len(data) if alone else data.find(b"\r\n\r\n")
    cuts = sorted(dice.randrange(end) for _ in range((0, 1, 25)[way])) if end > 0 else []
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if a < b]


async def test_no_smuggled_request_gets_through(gateway: GatewayFactory, capture: Capture, connect: Connect) -> None:
    gw = await gateway(rules(capture.url), receive_timeout_s=0.5, keep_alive_s=0.5)
    corpus = list(attacks())
    assert len(corpus) == len(dict(corpus)) > 300
    gate = asyncio.Semaphore(AT_ONCE)

    async def attack(name: str, data: bytes, way: int) -> None:
        async with gate:
            client = await connect(gw.url)
            for piece in pieces(name, data, way):
                client.send(piece)
                await asyncio.sleep(0)
            said = await client.rest()
            await client.close()
        finals = re.findall(rb"HTTP/1\.1 ([2-5]\d\d) ", said)
        assert len(finals) <= 1, f"{name}: answered {finals}"
        top, _, _ = said.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n").partition(b"\r\n\r\n")
        assert b"X-Injected" not in top, name
        assert top.count(b"\n") == top.count(b"\r\n") == top.count(b"\r"), name

    for way in range(WAYS):
        await asyncio.gather(*(attack(name, data, way) for name, data in corpus))
    await until(lambda: not held(gw), seen=lambda: held(gw))
    seen = [call.body for call in capture.calls]
    assert not [body for body in seen if HIDDEN in body]
    # At most one request for each attack, and no other bytes on the wire.
    for prompt, times in Counter(json.loads(body)["messages"][0]["content"] for body in seen).items():
        assert times <= WAYS * sum(f'"{prompt}"'.encode() in data for _, data in corpus), prompt
    for connection in capture.traffic:
        rest = connection.received
        while rest:
            head = HEAD.match(rest)
            assert head is not None, rest[:300]
            rest = rest[head.end() + int(head[1]) :]
    # Some of them are served, or the corpus would prove nothing.
    assert len(seen) > 20


async def test_request_without_the_smuggled_part_is_served(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    """The control: the corpus is made from a request that is served if nothing is wrong with it."""
    gw = await gateway(rules(capture.url))
    client = await connect(gw.url)
    body = chat_body(content="control")
    chunked = b"%x;a=b\r\n%b\r\n0\r\nX-Trailer: y\r\n\r\n" % (len(body), body)
    top = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    assert (await client.ask(top + chunked)).status == 200
    assert (await client.ask(request(CHAT, body))).status == 200
    assert len(capture.calls) == 2
    assert capture.calls[0].body == capture.calls[1].body
