"""Answers that are compressed without being asked for: some proxies in front of engines compress everything."""

from __future__ import annotations

import gzip
import json
import random

import pytest

from .capture import DONE, STREAM_HEAD, Answer, Capture, completion, token, whole
from .conftest import Connect, GatewayFactory
from .policies import rules
from .raw import chat

WORDS = random.Random(1).randbytes(1_200_000).hex()
"""More than is held, also compressed."""
EVENTS = (b"".join((token("Hi"), token(" there", "stop"), DONE))).replace(b"\r\n", b"")


@pytest.mark.parametrize(
    ("body", "lines", "stream"),
    [
        (completion(), ("content-encoding: gzip",), False),
        (completion(WORDS), ("Content-Encoding: gzip",), False),
        (EVENTS, ("content-encoding: gzip", "x-content-type: text/event-stream"), True),
    ],
    ids=["whole", "longer than is held", "streamed"],
)
async def test_answer_keeps_the_content_encoding_of_the_replica(
    gateway: GatewayFactory, capture: Capture, connect: Connect, body: bytes, lines: tuple[str, ...], stream: bool
) -> None:
    capture.answer = lambda call: Answer(whole(gzip.compress(body), "200 OK", *lines))
    gw = await gateway(rules(capture.url))
    client = await connect(gw.url)
    for _ in range(2):
        response = await client.ask(chat(stream=stream))
        assert response.status == 200
        assert response.headers["content-encoding"] == "gzip"
        assert gzip.decompress(response.body) == body
    assert gw.controller.alive()


async def test_false_content_encoding_of_a_replica_is_not_passed_on(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url))
    client = await connect(gw.url)
    for text in ("Hi", WORDS):
        answer = whole(completion(text), "200 OK", "content-encoding: gzip")
        capture.answer = lambda call, answer=answer: Answer(answer)
        response = await client.ask(chat())
        assert "content-encoding" not in response.headers
        assert json.loads(response.body)["choices"][0]["message"]["content"] == text
    capture.answer = lambda call: Answer(
        STREAM_HEAD.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n")
        + token("Hi", "stop")
        + DONE
        + b"0\r\n\r\n"
    )
    response = await client.ask(chat(stream=True))
    assert "content-encoding" not in response.headers
    assert response.events[-1] == "[DONE]"
