"""Interim answers (1xx) of an engine or its proxy are neither passed on nor taken for the answer."""

from __future__ import annotations

import pytest

from .answers import recorded
from .capture import Answer, Capture
from .conftest import Connect, GatewayFactory
from .policies import rules
from .raw import CHAT, chat


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("count", [1, 3000])
async def test_interim_answer_is_skipped_however_often_it_comes(
    gateway: GatewayFactory, capture: Capture, connect: Connect, stream: bool, count: int
) -> None:
    answer = await recorded(CHAT, stream=stream)
    capture.answer = lambda call: Answer(b"HTTP/1.1 103 Early Hints\r\n\r\n" * count + answer)
    gw = await gateway(rules(capture.url))
    client = await connect(gw.url)
    client.send(chat(stream=stream))
    status, _ = await client.head()
    assert status == 200


async def test_answer_of_status_101_is_a_502(gateway: GatewayFactory, capture: Capture, connect: Connect) -> None:
    capture.answer = lambda call: Answer(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
    gw = await gateway(rules(capture.url))
    answer = await (await connect(gw.url)).ask(chat())
    assert (answer.status, answer.error["code"]) == (502, "upstream_truncated")
