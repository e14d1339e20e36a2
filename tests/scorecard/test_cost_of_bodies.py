"""The cost of bodies has an owner: a tenant beyond its limits or its share of the loop does not slow others down."""

from __future__ import annotations

import asyncio
import math
import time
from statistics import median

import pytest

from gateway.proxy.turns import SHORT_BYTES

from .capture import Call, Capture, whole
from .conftest import Connect, GatewayFactory
from .policies import rules
from .raw import CHAT, Client, chat, head, request
from .waiting import DEADLINE_S

MB = 2**20
ROUNDS = 15
KEYS = {"key-of-greedy": "greedy", "key-of-modest": "modest"}
GREEDY, MODEST = (f"Authorization: Bearer {key}" for key in KEYS)
COUNT = "/v1/messages/count_tokens"
LIMITS = {
    "requests": "limits: {requests: 1/min}",
    "tokens": "limits: {tokens: 1000/min}",
    "concurrency": "limits: {concurrency: 1}",
}


@pytest.mark.parametrize("framing", [f"Content-Length: {8 * MB}", "Transfer-Encoding: chunked"])
@pytest.mark.parametrize("limit", LIMITS)
async def test_tenant_beyond_a_limit_is_refused_before_its_long_body_is_read(
    gateway: GatewayFactory, capture: Capture, connect: Connect, limit: str, framing: str
) -> None:
    gw = await gateway(rules(capture.url, tier=LIMITS[limit], keys=KEYS))
    first, second = await connect(gw.url), await connect(gw.url)
    waiting: list[Call] = []
    capture.answer = waiting.append
    first.send(chat(GREEDY, max_tokens=1))
    await capture.until(lambda: waiting)
    if limit != "concurrency":
        # The replica reports more tokens than the limit of a minute, so it is overdrawn.
        waiting[0].send(whole(LONG))
        assert (await first.response()).status == 200
    second.send(head(CHAT, GREEDY, framing) + (b"10001\r\n%b" % bytes(65537) if "chunked" in framing else b"{"))
    answer = await second.response()
    assert (answer.status, answer.reason) == (429, f"limit-{limit}")
    assert answer.headers["connection"] == "close"
    assert float(answer.headers["retry-after"]) > 0
    assert gw.limits.part_bytes == 0
    third = await connect(gw.url)
    answer = await third.ask(chat(GREEDY))
    assert (answer.status, answer.reason) == (429, f"limit-{limit}")
    assert "connection" not in answer.headers, "a short body is read, and the connection is kept"
    if limit == "concurrency":
        waiting[0].send(whole())


LONG = (
    b'{"id":"c-1","object":"chat.completion","created":1,"model":"emulated","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"Hi"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":3000,"completion_tokens":1,"total_tokens":3001}}'
)


@pytest.mark.parametrize("path", [CHAT, COUNT])
async def test_long_body_of_an_unknown_key_is_refused_unread(
    gateway: GatewayFactory, capture: Capture, connect: Connect, path: str
) -> None:
    gw = await gateway(rules(capture.url, keys=KEYS))
    for lines in ((), ("Authorization: Bearer nobody",)):
        client = await connect(gw.url)
        client.send(head(path, *lines, f"Content-Length: {SHORT_BYTES + 1}"))
        answer = await client.response()
        assert (answer.status, answer.headers["connection"]) == (401, "close")


@pytest.mark.parametrize("path", [CHAT, COUNT])
@pytest.mark.parametrize("size", [8 * MB, SHORT_BYTES - 1000], ids=["long", "short"])
async def test_tenant_whose_bodies_are_refused_does_not_slow_another_down(
    gateway: GatewayFactory, capture: Capture, connect: Connect, path: str, size: int
) -> None:
    """The bodies are refused for their last field, when all of them is parsed. They are compared with equal bodies that
    are refused by their head, in rounds that take turns. Gateway and clients are one process. So CPU seconds measure
    how long a request waits for the loop, whatever else the machine does.
    """
    gw = await gateway(rules(capture.url, keys=KEYS))
    unit = b"word, " if size > MB else b"\\u00e9\\n"
    body = b'{"messages":[{"role":"user","content":"%b"}],"tools":7}' % (unit * (size // len(unit)))
    modest = await connect(gw.url)

    async def asked(count: int) -> float:
        taken = []
        for _ in range(count):
            before = time.process_time()
            assert (await modest.ask(chat(MODEST))).status == 200
            taken.append(time.process_time() - before)
        return median(taken)

    async def beside(where: str, status: int) -> float:
        refused = asyncio.Event()

        async def attack(client: Client) -> None:
            bad = request(where, body, GREEDY)
            while True:
                assert (await client.ask(bad)).status == status
                refused.set()

        attacks = [asyncio.create_task(attack(await connect(gw.url))) for _ in range(2)]
        async with asyncio.timeout(DEADLINE_S):
            await refused.wait()
        median_s = await asked(60)
        for task in attacks:
            assert not task.done()
            task.cancel()
        return median_s

    await asked(10)
    alone_s = beside_s = math.inf
    for _ in range(ROUNDS):
        alone_s = min(alone_s, await asked(60) if size > SHORT_BYTES else await beside("/nowhere", 404))
        beside_s = min(beside_s, await beside(path, 400))
        if beside_s < 2 * alone_s:
            return
    pytest.fail(f"{1000 * beside_s:.1f} ms beside refused bodies, {1000 * alone_s:.1f} ms without")
