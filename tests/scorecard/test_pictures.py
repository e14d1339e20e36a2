"""A picture is charged by the model's family and the size in its own header."""

from __future__ import annotations

import base64
import struct

import pytest

from .capture import Capture
from .conftest import Connect, GatewayFactory
from .policies import rules
from .raw import MODEL, chat_body, request


def png(width: int, height: int) -> str:
    head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sIIBBBBB", 13, b"IHDR", width, height, 8, 6, 0, 0, 0)
    return "data:image/png;base64," + base64.b64encode(head + bytes(60)).decode()


@pytest.mark.parametrize(
    ("upstream", "width", "served"),
    [("Qwen/Qwen2.5-VL-7B", 280, True), ("Qwen/Qwen2.5-VL-7B", 3360, False), ("google/gemma-3-4b-it", 3360, True)],
)
async def test_picture_is_refused_if_its_tokens_exceed_the_pool_limit(
    gateway: GatewayFactory, capture: Capture, connect: Connect, upstream: str, width: int, served: bool
) -> None:
    policy = rules(capture.url, tier="caps: {media: true}", pool="max_prompt_tokens: 1000")
    capture.models = [upstream]
    gw = await gateway(policy.replace("aliases: [default]", f"aliases: [default], upstream: {upstream}"))
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
    capture.models = ["Qwen/Qwen2.5-VL-7B"]
    gw = await gateway(policy.replace("aliases: [default]", "aliases: [default], upstream: Qwen/Qwen2.5-VL-7B"))
    client = await connect(gw.url)
    image = {"type": "image_url", "image_url": {"url": png(560, 560) + "A" * 900_000}}
    said = [{"role": "system", "content": "s" * 3000}, {"role": "user", "content": [image]}]
    assert (await client.ask(request(body=chat_body(messages=said, model=MODEL)))).status == 200
    (replica,) = (replica for pool in gw.driver.controller.state.fleet for replica in pool.replicas.values())
    assert 5 < len(replica.cache) < 12, "blocks of 512 bytes and 2 KiB"
