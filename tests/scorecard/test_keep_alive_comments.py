"""A client that wants comments gets one while it waits; that commits it to a stream, not to a replica."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from gateway.core.results import Outcome

from .capture import DONE, LAST_CHUNK, STREAM_HEAD, Answer, Call, Capture, Then, by_default, token, whole
from .conftest import Connect, GatewayFactory
from .policies import rules
from .raw import Client, chat
from .test_several_processes import two_relays
from .waiting import DEADLINE_S, until

COMMENTS = "sse_comments: 100ms"
COMMENT = b": keep-alive\n\n"
ANSWER = STREAM_HEAD + token("Hi") + token(" there", "stop") + DONE + LAST_CHUNK


async def _first_comment(client: Client, said: bytes = COMMENT) -> dict[str, str]:
    """Wait for the head and a comment. Returns the headers."""
    status, headers = await client.head()
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert re.fullmatch(said, await client.chunk())
    return headers


async def _rest(client: Client) -> bytes:
    return re.sub(rb"(?m)^: .*\n\n", b"", b"".join(await client.rest_of_chunks()))


async def test_keep_alive_comments_before_the_first_token_do_not_count_as_ttft(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    capture.answer = lambda call: None
    gw = await gateway(rules(capture.url, tier=COMMENTS))
    client = await connect(gw.url)
    client.send(chat("X-Request-Id: mine", stream=True, frobnicate=1))
    headers = await _first_comment(client)
    assert (headers["x-request-id"], headers["x-tailgate-changed"]) == ("mine", "frobnicate")
    assert await client.chunk() == COMMENT, "and another one"
    (await capture.first_call()).send(ANSWER)
    body = await _rest(client)
    assert body.count(b"data:") == 3
    assert body.endswith(b"data: [DONE]\n\n")
    (cell,) = [cell for cell in gw.metrics.cells.values() if sum(cell.ttft.counts)]
    assert cell.ttft.sum >= 0.1, "two comments were sent before it"


async def test_unstreamed_answer_gets_no_keep_alive_comment(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    capture.answer = lambda call: None
    gw = await gateway(rules(capture.url, tier="sse_comments: 100ms"))
    streamed, plain = await connect(gw.url), await connect(gw.url)
    plain.send(chat())
    streamed.send(chat(stream=True))
    await _first_comment(streamed)
    await capture.until(lambda: len(capture.calls) == 2)
    (call,) = [call for call in capture.calls if b'"stream":true' not in call.body]
    call.send(whole())
    response = await plain.response()
    assert (response.status, response.headers["content-type"]) == (200, "application/json")


async def test_request_can_be_retried_after_keep_alive_comments(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    async with Capture() as other:
        capture.answer = other.answer = lambda call: None
        gw = await gateway(rules(capture.url, other.url, tier=COMMENTS))
        client = await connect(gw.url)
        client.send(chat(stream=True))
        await _first_comment(client)
        await until(lambda: capture.calls or other.calls)
        (first,) = [*capture.calls, *other.calls]
        capture.answer = other.answer = lambda call: Answer(ANSWER)
        first.send(b"", Then.RESET)
        assert (await _rest(client)).endswith(b"data: [DONE]\n\n")
        assert len(capture.calls) + len(other.calls) == 2


async def test_keep_alive_comments_are_sent_while_a_request_is_queued(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    capture.answer = lambda call: None
    gw = await gateway(rules(capture.url, slots=1, tier=COMMENTS))
    served, waiting = await connect(gw.url), await connect(gw.url)
    served.send(chat(stream=True))
    await capture.until(lambda: capture.calls)
    waiting.send(chat(stream=True))
    await _first_comment(waiting, rb": queued, position 1(, about \d+ s)?\n\n")
    behind = await connect(gw.url)
    behind.send(chat(stream=True))
    await _first_comment(behind, rb": queued, position 2(, about \d+ s)?\n\n")
    assert len(capture.calls) == 1
    capture.answer = by_default
    capture.calls[0].send(ANSWER)
    capture.calls[0].finish()
    for client in (waiting, behind):
        assert (await _rest(client)).endswith(b"data: [DONE]\n\n")


async def test_keep_alive_comments_of_relays_tell_the_position_that_the_decider_knows(
    tmp_path: Path, capture: Capture, connect: Connect
) -> None:
    capture.answer = lambda call: None
    async with two_relays(tmp_path, rules(capture.url, slots=1, tier=COMMENTS)) as served:
        first, waiting = await connect(served.url), await connect(served.url)
        first.send(chat(stream=True))
        await capture.until(lambda: capture.calls)
        waiting.send(chat(stream=True))
        assert (await waiting.head())[0] == 200
        async with asyncio.timeout(DEADLINE_S):
            while not (await waiting.chunk()).startswith(b": queued, position 1"):
                pass
        capture.answer = by_default
        capture.calls[0].send(ANSWER)
        capture.calls[0].finish()
        assert (await _rest(waiting)).endswith(b"data: [DONE]\n\n")


async def test_keep_alive_comments_tell_a_request_on_hold_its_position(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url, tier=COMMENTS, pool="hold: 60s"))
    gw.driver.drain("127.0.0.1:" + capture.url.rpartition(":")[2], True)
    clients = [await connect(gw.url) for _ in range(2)]
    for number, client in enumerate(clients, 1):
        client.send(chat(stream=True))
        await _first_comment(client, rb": on hold, position %d\n\n" % number)
    gw.driver.drain("127.0.0.1:" + capture.url.rpartition(":")[2], False)
    for client in clients:
        assert b"data: [DONE]" in await _rest(client)


CALLED = (
    b'{"id":"1","object":"chat.completion","model":"m","usage":{"prompt_tokens":3,"completion_tokens":2},"choices":[{'
    b'"index":0,"finish_reason":"tool_calls","message":{"role":"assistant","content":null,"tool_calls":'
    b'[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]}}]}'
)


async def test_whole_answer_after_keep_alive_comments_becomes_events(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    capture.answer = lambda call: None
    gw = await gateway(rules(capture.url, tier=COMMENTS))
    client = await connect(gw.url)
    client.send(chat(stream=True, stream_options={"include_usage": True}))
    await _first_comment(client)
    (await capture.first_call()).send(whole(CALLED))
    *events, last = [line[6:] for line in (await _rest(client)).decode().splitlines() if line.startswith("data: ")]
    said, usage = map(json.loads, events)
    assert last == "[DONE]"
    assert said["object"] == usage["object"] == "chat.completion.chunk"
    (choice,) = said["choices"]
    (call,) = choice["delta"]["tool_calls"]
    assert (choice["finish_reason"], call["index"], call["function"]["name"]) == ("tool_calls", 0, "f")
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 2
    (outcome,) = {key[1] for lane in gw.metrics.lanes.values() for key in lane.requests}
    assert outcome is Outcome.OK


ENDS = {
    "refused by the engine": (
        Answer(whole(b'{"error":{"message":"too long","code":400}}', "400 Bad Request")),
        b"too long",
    ),
    "failed": (Answer(whole(b"{}", "500 Oops")), b"upstream_error"),
    "not streamed, and no answer": (Answer(whole(b'{"choices":[]}')), b"upstream_unreadable"),
    "broken off": (Answer(STREAM_HEAD + token("Hi"), Then.CLOSE), b"upstream_truncated"),
}


@pytest.mark.parametrize("end", ENDS)
async def test_failure_after_keep_alive_comments_is_an_error_event_and_the_last_chunk(
    gateway: GatewayFactory, capture: Capture, connect: Connect, end: str
) -> None:
    answer, said = ENDS[end]
    capture.answer = lambda call: None
    gw = await gateway(rules(capture.url, tier=COMMENTS))
    client = await connect(gw.url)
    client.send(chat(stream=True))
    await _first_comment(client)
    (await capture.first_call()).send(answer.data, answer.then)
    response = (await _rest(client)).decode()
    *_, last = [line for line in response.splitlines() if line.startswith("data:")]
    assert said.decode() in last
    assert '"error"' in last
    capture.answer = by_default
    assert (await client.ask(chat(stream=True))).status == 200, "the connection may be used again"
    failed = Outcome.INVALID if end == "refused by the engine" else Outcome.ERROR
    assert {key[1] for lane in gw.metrics.lanes.values() for key in lane.requests} == {failed, Outcome.OK}


async def test_client_that_leaves_after_keep_alive_comments_frees_its_slot(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    def answer(call: Call) -> Answer | None:
        return None if len(capture.calls) == 1 else Answer(ANSWER)

    capture.answer = answer
    gw = await gateway(rules(capture.url, slots=1, tier=COMMENTS))
    client, next_one = await connect(gw.url), await connect(gw.url)
    client.send(chat(stream=True))
    await _first_comment(client)
    await capture.first_call()
    next_one.send(chat(stream=True))
    client.fin()
    assert (await next_one.response()).body.endswith(b"data: [DONE]\n\n")
