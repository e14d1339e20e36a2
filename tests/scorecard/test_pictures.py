"""A picture is charged by the size in its own header, and by what the engine counted for earlier ones."""

from __future__ import annotations

import base64
import struct

import pytest

from .capture import Capture
from .conftest import Connect, EmulatorFactory, GatewayFactory
from .policies import rules
from .raw import MODEL, chat, chat_body, request


def png(width: int, height: int) -> str:
    head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sIIBBBBB", 13, b"IHDR", width, height, 8, 6, 0, 0, 0)
    return "data:image/png;base64," + base64.b64encode(head + bytes(60)).decode()


@pytest.mark.parametrize(("width", "served"), [(280, True), (3360, False)])
async def test_picture_is_refused_if_its_tokens_exceed_the_pool_limit(
    gateway: GatewayFactory, capture: Capture, connect: Connect, width: int, served: bool
) -> None:
    policy = rules(capture.url, tier="caps: {media: true}", pool="max_prompt_tokens: 1000")
    gw = await gateway(policy)
    client = await connect(gw.url)
    content = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": png(width, width)}}]
    body = chat_body(messages=[{"role": "user", "content": content}], model=MODEL)
    answer = await client.ask(request(body=body))
    assert (answer.status, len(capture.calls)) == ((200, 1) if served else (400, 0))
    if not served:
        assert answer.error["code"] == "context_length_exceeded"


async def test_large_picture_counts_in_the_prefix_index_by_its_tokens(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    policy = rules(capture.url, tier="caps: {media: true}")
    gw = await gateway(policy)
    client = await connect(gw.url)
    image = {"type": "image_url", "image_url": {"url": png(560, 560) + "A" * 900_000}}
    said = [{"role": "system", "content": "s" * 3000}, {"role": "user", "content": [image]}]
    assert (await client.ask(request(body=chat_body(messages=said, model=MODEL)))).status == 200
    (replica,) = (replica for pool in gw.driver.controller.state.fleet for replica in pool.replicas.values())
    assert 5 < len(replica.cache) < 12, "blocks of 512 bytes and 2 KiB"


async def test_engine_that_counts_few_tokens_for_a_picture_halves_the_next_estimate(
    gateway: GatewayFactory, emulator: EmulatorFactory, connect: Connect
) -> None:
    replica = await emulator()
    gw = await gateway(rules(replica.url, tier="caps: {media: true}"))
    client = await connect(gw.url)
    picture = {"type": "image_url", "image_url": {"url": png(1400, 1400)}}
    for factor in (1.0, 0.5, 0.25):
        assert gw.handler.services.pictures.factor(MODEL) == factor
        assert (await client.ask(chat(content=[picture]))).status == 200
