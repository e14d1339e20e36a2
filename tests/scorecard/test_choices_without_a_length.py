"""Two choices in a body that ends with its connection: each needs a finish reason, or there is a `[DONE]`."""

from __future__ import annotations

import pytest

from .capture import Answer, Capture, Then
from .conftest import Connect, GatewayFactory
from .policies import rules
from .raw import chat

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
TEXT = b'data: {"choices":[{"index":%d,"delta":{"content":"Hi"},"finish_reason":null}]}\n\n'
END = b'data: {"choices":[{"index":%d,"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"
BEGUN = HEAD + TEXT % 0 + TEXT % 1 + END % 0


@pytest.mark.parametrize(
    ("answer", "is_whole"),
    [(BEGUN, False), (BEGUN + END % 0, False), (BEGUN + END % 1, True), (BEGUN + DONE, True)],
    ids=["one end", "one end twice", "both ends", "one end and [DONE]"],
)
async def test_unframed_stream_is_whole_only_if_every_choice_ended_or_done_was_sent(
    gateway: GatewayFactory, capture: Capture, connect: Connect, answer: bytes, is_whole: bool
) -> None:
    gw = await gateway(rules(capture.url, tier="caps: {n: 2}"))
    capture.answer = lambda call: Answer(answer, Then.CLOSE)
    client = await connect(gw.url)
    client.send(chat(stream=True, n=2))
    assert (await client.head())[0] == 200
    assert (b'"error"' in b"".join(await client.rest_of_chunks())) is not is_whole
