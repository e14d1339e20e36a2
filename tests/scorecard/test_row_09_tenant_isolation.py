"""Row 9: nothing of one tenant reaches another, by cookies or by reused connections to replicas."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable
from functools import partial

import pytest

from .capture import DONE, LAST_CHUNK, STREAM_HEAD, Answer, Call, Capture, chunk, completion, token, whole
from .conftest import Connect, GatewayFactory
from .policies import rules
from .raw import Client, chat, connect
from .waiting import SOAK

TENANTS = {f"key-of-tenant-{number}": f"t{number}" for number in range(8)}
CLIENTS = 24
REQUESTS = 200 if SOAK else 25
PIECES = 4


@pytest.mark.parametrize("stream", [False, True])
async def test_cookies_are_passed_neither_to_replicas_nor_to_clients(
    gateway: GatewayFactory, capture: Capture, connect: Connect, stream: bool
) -> None:
    lines = "set-cookie: session=of-the-first-tenant; Path=/", "x-user: first"
    capture.answer = lambda call: Answer(
        STREAM_HEAD.replace(b"\r\n\r\n", "\r\n".join(["", *lines, "", ""]).encode(), 1)
        + token("Hi", "stop")
        + DONE
        + LAST_CHUNK
        if stream
        else whole(b"", "200 OK", *lines)
    )
    gw = await gateway(rules(capture.url, keys=TENANTS))
    for key in TENANTS:
        client = await connect(gw.url)
        answer = await client.ask(chat(f"Authorization: Bearer {key}", f"Cookie: mine={key}", stream=stream))
        assert (answer.status, answer.whole) == (200, True)
        assert not {"set-cookie", "x-user"} & set(answer.headers)
    assert len(capture.traffic) == 1, "the tenants shared a connection to the replica"
    assert all(not call.header("cookie") for call in capture.calls)


def _echo(call: Call) -> Answer | None:
    """Answer only with the marker of the request: streamed, one piece per turn of the loop."""
    marker = _marker(call.body)
    if b'"stream":true' not in call.body:
        return Answer(whole(completion(marker)))
    pieces = [token(marker) for _ in range(PIECES - 1)]
    asyncio.get_running_loop().call_soon(_speak, call, [*pieces, token(marker, "stop"), DONE + LAST_CHUNK])
    call.send(STREAM_HEAD)
    return None


def _speak(call: Call, pieces: list[bytes]) -> None:
    if call.connection.lost:
        return
    call.send(pieces[0])
    if pieces[1:]:
        asyncio.get_running_loop().call_soon(_speak, call, pieces[1:])
    else:
        call.finish()


def _marker(data: bytes) -> str:
    found = set(re.findall(rb"marker-\d+-\d+", data))
    assert len(found) == 1, f"markers of several requests in one message: {found}"
    return found.pop().decode()


async def test_no_client_gets_the_answer_of_another_when_clients_leave_at_any_moment(
    gateway: GatewayFactory, capture: Capture
) -> None:
    """Few slots, so that clients also leave in the queue and while a connection is being opened."""
    capture.answer = _echo
    gw = await gateway(rules(capture.url, keys=TENANTS, slots=6))
    seen = await asyncio.gather(*(_visitor(gw.url, number) for number in range(CLIENTS)))
    assert sum(seen) > CLIENTS * REQUESTS / 4, "most requests were given up: too few answers were looked at"
    assert any(connection.lost for connection in capture.traffic), "no connection was ever given up"
    assert len(capture.calls) > len(capture.traffic), "no connection was used again"


async def _visitor(url: str, number: int) -> int:
    """Send requests one after another, and leave some. Returns the number of answers, each with only its own marker."""
    draw = random.Random(number)
    key = list(TENANTS)[number % len(TENANTS)]
    client = await connect(url)
    answered = 0
    for count in range(REQUESTS):
        marker = f"marker-{number}-{count}"
        client.send(chat(f"Authorization: Bearer {key}", stream=draw.random() < 0.7, content=marker))
        leave: Callable[[], None] = draw.choice((client.fin, client.rst))
        stays_for = draw.choice((0, 1, 2, 99, 99, 99))
        if stays_for == 0:
            for _ in range(draw.randrange(12)):
                await asyncio.sleep(0)
        else:
            body = (await client.response()).body if stays_for == 99 else await _beginning(client, stays_for)
            assert _marker(body) == marker
            answered += 1
        if stays_for != 99:
            leave()
            await client.close()
            client = await connect(url)
    await client.close()
    return answered


async def _beginning(client: Client, chunks: int) -> bytes:
    _, headers = await client.head()
    if "content-length" in headers:
        return await client.reader.readexactly(int(headers["content-length"]))
    return b"".join([await client.chunk() for _ in range(chunks)])


SURPLUS = whole(completion("of somebody else"))
ENDINGS: dict[str, Callable[[Call], Answer]] = {
    "after a length": lambda _: Answer(whole() + SURPLUS),
    "after the last chunk": lambda _: Answer(
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
        + chunk(completion())
        + LAST_CHUNK
        + SURPLUS
    ),
    "after a stream": lambda _: Answer(STREAM_HEAD + token("Hi", "stop") + DONE + LAST_CHUNK + SURPLUS),
}


@pytest.mark.parametrize("ending", ENDINGS)
async def test_surplus_bytes_of_a_replica_reach_no_client(
    gateway: GatewayFactory, capture: Capture, connect: Connect, ending: str
) -> None:
    answers = iter([ENDINGS[ending]])
    capture.answer = lambda call: next(answers, lambda _: Answer(whole()))(call)
    gw = await gateway(rules(capture.url))
    client = await connect(gw.url)
    first = await client.ask(chat(stream=ending == "after a stream"))
    assert (first.status, first.whole) == (200, True)
    second = await client.ask(chat())
    assert json.loads(second.body)["choices"][0]["message"]["content"] == "Hi"
    assert len(capture.traffic) == 2, "the connection with the surplus was used again"


async def test_idle_connection_is_closed_when_a_replica_sends_bytes_on_it(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url))
    client = await connect(gw.url)
    assert (await client.ask(chat())).status == 200
    idle = capture.traffic[0]
    idle.send(Answer(SURPLUS))
    await capture.until(partial(getattr, idle, "lost"))
    assert json.loads((await client.ask(chat())).body)["choices"][0]["message"]["content"] == "Hi"
    assert len(capture.traffic) == 2
