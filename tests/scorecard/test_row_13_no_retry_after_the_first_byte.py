"""Row 13: once a replica has sent a byte, its request is never sent again, and no client sees anything twice."""

from __future__ import annotations

import asyncio

import pytest

from .answers import STREAMED, asking, recorded
from .capture import STREAM_HEAD, Answer, Capture, Then, by_default, token
from .conftest import Connect, GatewayFactory
from .policies import rules
from .raw import CHAT, chat
from .waiting import SOAK

NEVER_OPEN = "health: {failures: 1000000}, router: round-robin"
ROUNDS = 40 if SOAK else 4
BYTES = (1, 2, 9, 17, 100)


@pytest.mark.parametrize("then", [Then.CLOSE, Then.RESET])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_whose_answer_had_begun_is_sent_once(
    gateway: GatewayFactory, capture: Capture, connect: Connect, stream: bool, then: Then
) -> None:
    """On new connections, and on used ones, where a request without any answer would be retried."""
    async with Capture() as other:
        gw = await gateway(rules(capture.url, other.url, pool=NEVER_OPEN))
        answer = await recorded(CHAT, stream=stream)
        client = await connect(gw.url)
        for cut in BYTES:
            for used in (False, True):
                for replica in (capture, other):
                    replica.answer = lambda call, cut=cut: (
                        by_default(call) if b"warm" in call.body else Answer(answer[:cut], then)
                    )
                for number in range(ROUNDS):
                    if used:
                        for _ in range(2):
                            assert (await client.ask(chat(content="warm", max_tokens=3))).status == 200
                    content = f"cut-{cut}-{used}-{number}"
                    response = await client.ask(chat(stream=stream, content=content, max_tokens=3))
                    assert response.status == 502
                    calls = [c for c in (*capture.calls, *other.calls) if content.encode() in c.body]
                    assert len(calls) == 1, f"sent {len(calls)} times after {cut} bytes"


@pytest.mark.parametrize("path", STREAMED)
async def test_request_is_not_retried_after_its_first_byte_was_sent(
    gateway: GatewayFactory, capture: Capture, connect: Connect, path: str
) -> None:
    async with Capture() as other:
        whole = await recorded(path, stream=True)
        cut = whole[: whole.rindex(b"\n\n", 0, len(whole) * 3 // 4) + 2]
        for replica in (capture, other):
            replica.answer = lambda call: Answer(cut, Then.RESET)
        gw = await gateway(rules(capture.url, other.url, pool=NEVER_OPEN))
        client = await connect(gw.url)
        response = await client.ask(asking(path, stream=True))
        assert (response.status, response.whole) == (200, True)
        assert len(capture.calls) + len(other.calls) == 1
        events = response.body.split(b"\n\n")[:-2]  # without the bytes after the last event, and without the error
        assert events
        assert all(event in whole for event in events)
        assert len(set(events)) == len(events)


async def test_request_without_any_answer_byte_is_retried_once_at_most(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    """By another replica; in addition, a used connection, which may have been closed already, is replaced."""
    async with Capture() as other:
        gw = await gateway(rules(capture.url, other.url, pool=NEVER_OPEN))
        clients = [await connect(gw.url) for _ in range(6)]
        answers = await asyncio.gather(*(client.ask(chat()) for client in clients))
        assert {answer.status for answer in answers} == {200}
        for replica in (capture, other):
            replica.calls.clear()
            replica.answer = lambda call: Answer(b"", Then.CLOSE)
        for number in range(6):
            content = f"nothing-{number}"
            response = await clients[0].ask(chat(content=content))
            assert (response.status, response.error["code"]) == (502, "upstream_error")
            tries = [sum(content.encode() in call.body for call in replica.calls) for replica in (capture, other)]
            assert sorted(tries) in ([0, 2], [1, 1], [1, 2], [2, 2])


async def test_answer_that_stops_between_two_tokens_is_not_retried(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    """The client has read the first token when the replica fails: only an error follows."""
    capture.answer = lambda call: call.send(STREAM_HEAD + token("Once"))
    gw = await gateway(rules(capture.url, pool=NEVER_OPEN))
    client = await connect(gw.url)
    client.send(chat(stream=True))
    status, _ = await client.head()
    assert status == 200
    assert b"Once" in await client.chunk()
    capture.calls[0].send(b"", Then.RESET)
    assert b'"upstream_truncated"' in await client.chunk()
    assert await client.rest_of_chunks() == []
    assert len(capture.calls) == 1
    capture.answer = by_default
    assert (await client.ask(chat())).status == 200, "nothing follows the error but the next answer"
