"""Row 12: an unfinished answer of a replica never looks finished, wherever it was cut."""

from __future__ import annotations

import asyncio

import pytest

from .answers import (
    FIELDS,
    FIRST_TOKEN,
    STREAMED,
    Cut,
    asking,
    cuts,
    is_error_event,
    is_never_complete,
    recorded,
    unframed,
)
from .capture import DONE, LAST_CHUNK, STREAM_HEAD, USAGE, Answer, Capture, Then, chunk, completion, token, whole
from .conftest import Connect, GatewayFactory
from .policies import rules
from .raw import CHAT, Response, chat, connect
from .waiting import SOAK

OVER = {
    CHAT: b'"finish_reason":"length"',
    "/v1/completions": b'"finish_reason":"length"',
    "/v1/responses": b"event: response.completed",
    "/v1/messages": b'"stop_reason":"max_tokens"',
}
"""The event that says that the generation is over."""
NEVER_OPEN = "health: {failures: 1000000}"
CLIENTS = 8


async def _answers(url: str, path: str, places: list[int], *, stream: bool) -> dict[int, Response]:
    """The bytes that a client gets, for each place where the answer is cut."""
    left = list(reversed(places))
    answers: dict[int, Response] = {}

    async def ask() -> None:
        client = None
        while left:
            place = left.pop()
            client = client or await connect(url)
            answers[place] = await client.ask(asking(path, f"X-Request-Id: cut-{place}", stream=stream))
            if answers[place].status == 200:  # its connection ends with an error inside the stream
                await client.close()
                client = None
        if client is not None:
            await client.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(CLIENTS):
            group.create_task(ask())
    return answers


@pytest.mark.parametrize("then", [Then.CLOSE, Then.RESET])
@pytest.mark.parametrize("path", STREAMED)
async def test_a_stream_cut_anywhere_ends_in_an_error(
    gateway: GatewayFactory, capture: Capture, path: str, then: Then
) -> None:
    answer = await recorded(path, stream=True)
    gw = await gateway(rules(capture.url, pool=NEVER_OPEN))
    capture.answer = Cut(answer, then)
    places = cuts(answer, every=1 if SOAK or (path == CHAT and then is Then.CLOSE) else 61)
    answers = await _answers(gw.url, path, places, stream=True)
    over = answer.index(b"\n\n", answer.rindex(OVER[path]))
    wrong = {place: why for place in places if place < over and (why := is_never_complete(path, answers[place]))}
    assert not wrong
    # Committed at the first token, not earlier and not later.
    first = answer.index(b"\n\n", answer.index(FIRST_TOKEN[path])) + 2
    assert {answers[place].status for place in places if place < first} == {502}
    assert {answers[place].status for place in places if place >= first} == {200}


@pytest.mark.parametrize("path", STREAMED)
async def test_a_stream_without_framing_cut_anywhere_ends_in_an_error(
    gateway: GatewayFactory, capture: Capture, path: str
) -> None:
    """Here the answer ends with the connection, cut or not: only its content can tell."""
    answer = unframed(await recorded(path, stream=True))
    over = answer.index(b"\n\n", answer.rindex(OVER[path]))
    gw = await gateway(rules(capture.url, pool=NEVER_OPEN))
    capture.answer = Cut(answer, Then.CLOSE)
    places = cuts(answer.removesuffix(b"\n"), every=1 if SOAK else 61)
    answers = await _answers(gw.url, path, [*places, len(answer)], stream=True)
    assert answers[len(answer)].whole
    wrong = {place: why for place in places if place < over and (why := is_never_complete(path, answers[place]))}
    assert not wrong
    late = [answers[place] for place in places if place >= over]
    assert late
    assert all(response.whole and not is_error_event(path, response.events[-1]) for response in late)


@pytest.mark.parametrize("framing", ["length", "chunks", "none"])
@pytest.mark.parametrize("path", FIELDS)
async def test_a_whole_answer_cut_anywhere_is_an_error(
    gateway: GatewayFactory, capture: Capture, path: str, framing: str
) -> None:
    answer = await recorded(path, stream=False)
    if framing != "length":
        answer = unframed(answer)
    if framing == "chunks":
        head, _, body = answer.partition(b"\r\n\r\n")
        half = len(body) // 2
        answer = (
            head + b"\r\ntransfer-encoding: chunked\r\n\r\n" + chunk(body[:half]) + chunk(body[half:]) + b"0\r\n\r\n"
        )
    gw = await gateway(rules(capture.url, pool=NEVER_OPEN))
    capture.answer = Cut(answer, Then.CLOSE)
    places = cuts(answer, every=1 if SOAK else 97)
    answers = await _answers(gw.url, path, [*places, len(answer)], stream=False)
    assert answers[len(answer)].status == 200
    assert {
        place: answers[place].status
        for place in places
        if place <= answer.rindex(b"}") and (answers[place].status, answers[place].whole) != (502, True)
    } == {}


async def test_a_whole_answer_too_long_to_be_held_has_no_end(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    """Its beginning is passed on before its end is known, so that only a missing end can tell."""
    body = completion("x" * 3_000_000)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    gw = await gateway(rules(capture.url, pool=NEVER_OPEN))
    client = await connect(gw.url)
    capture.answer = lambda call: Answer(head + body[:-1], Then.CLOSE)
    response = await client.ask(chat())
    assert (response.status, response.whole) == (200, False)
    capture.answer = lambda call: Answer(head + body)
    client = await connect(gw.url)
    response = await client.ask(chat())
    assert (response.status, response.whole, response.body) == (200, True, body)


ENDINGS = {
    "a stream without [DONE] is whole, as of engines that send none": (token("Hi", "stop") + b"0\r\n\r\n", True),
    "a last chunk before the generation is over": (token("Hi") + b"0\r\n\r\n", False),
    "[DONE] and no finish reason, as of several servers": (
        token("Hi") + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n",
        True,
    ),
    "half an event behind the end": (token("Hi", "stop") + chunk(b"data: [DO") + b"0\r\n\r\n", True),
    "[DONE] without its blank line": (token("Hi", "stop") + chunk(b"data: [DONE]") + b"0\r\n\r\n", True),
    "what follows [DONE]": (token("Hi") + chunk(b"data: [DONE]\n\n") + chunk(b"data: {\n\n") + b"0\r\n\r\n", True),
    "an error, then [DONE], as an engine that is shut down": (
        token("Hi") + chunk(b'data: {"error":{"message":"dead","code":500}}\n\n') + chunk(b"data: [DONE]\n\n0\r\n\r\n"),
        False,
    ),
    "an aborted generation and a peaceful end, as vLLM when it is told to stop": (
        token("", "abort") + USAGE + DONE + LAST_CHUNK,
        False,
    ),
    "[DONE] twice": (token("Hi", "stop") + chunk(b"data: [DONE]\n\n") * 2 + b"0\r\n\r\n", True),
}


@pytest.mark.parametrize("ending", ENDINGS)
async def test_truncated_answer_is_judged_by_its_last_bytes(
    gateway: GatewayFactory, capture: Capture, connect: Connect, ending: str
) -> None:
    data, whole = ENDINGS[ending]
    capture.answer = lambda call: Answer(STREAM_HEAD + token("Oh") + data)
    gw = await gateway(rules(capture.url))
    client = await connect(gw.url)
    response = await client.ask(chat(stream=True))
    if whole:
        assert response.whole
        assert response.body.count(b"[DONE]") == min(1, data.count(b"[DONE]"))
    else:
        assert is_never_complete(CHAT, response) == ""


async def test_a_generation_that_was_aborted_is_an_error(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    """At shutdown vLLM answers with 200 and the tokens so far; only the finish reason tells."""
    chat_answer = completion().replace(b'"finish_reason":"stop"', b'"finish_reason":"abort"')
    message = (
        b'{"type":"message","role":"assistant","model":"emulated","content":[{"type":"text","text":"Hi"}],'
        b'"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":3,"output_tokens":2}}'
    )
    gw = await gateway(rules(capture.url, pool=NEVER_OPEN))
    client = await connect(gw.url)
    for path, answer in ((CHAT, chat_answer), ("/v1/completions", chat_answer), ("/v1/messages", message)):
        capture.answer = lambda call, answer=answer: Answer(whole(answer))
        response = await client.ask(asking(path, stream=False))
        assert (response.status, response.reason) == (502, "upstream-truncated"), path

    cut = (await recorded("/v1/messages", stream=True)).replace(
        b'"stop_reason":"max_tokens"', b'"stop_reason":null        '
    )
    assert b'"stop_reason":null  ' in cut
    capture.answer = lambda call: Answer(cut)
    response = await client.ask(asking("/v1/messages", stream=True))
    assert is_never_complete("/v1/messages", response) == ""
