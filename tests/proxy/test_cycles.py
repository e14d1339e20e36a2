"""A finished request is freed at once: it leaves nothing for the garbage collector (docs/internals/adr/0006)."""

from __future__ import annotations

import asyncio
import gc
import json
from urllib.parse import urlsplit

import pytest

from gateway.app import Gateway
from gateway.policy import load_text
from gateway.settings import Settings
from loadtests.emulator import Emulator

REQUESTS = 25


def request(stream: bool, model: str = "emulated", **more: object) -> bytes:
    body = {"model": model, "stream": stream, "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}
    data = json.dumps(body | more).encode()
    return b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%b" % (len(data), data)


async def ask(gateway: Gateway, data: bytes, until: bytes) -> bytes:
    url = urlsplit(gateway.url)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    writer.write(data)
    answer = await reader.readuntil(until)
    writer.close()
    await writer.wait_closed()
    return answer


def ours() -> list[str]:
    """Objects of this project that the collector finds, by type."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        return sorted({type(o).__name__ for o in gc.garbage if type(o).__module__.startswith("gateway.")})
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


@pytest.mark.parametrize(
    ("data", "until"),
    [
        (request(stream=False), b'"usage"'),
        (request(stream=True), b"[DONE]\n\n\r\n0\r\n\r\n"),
        (request(stream=False, model="nobody"), b"model_not_found"),
    ],
    ids=["whole", "streamed", "refused"],
)
async def test_finished_request_leaves_no_reference_cycle(data: bytes, until: bytes) -> None:
    async with Emulator() as replicas:
        policy = load_text(
            "apiVersion: tailgate/v1\nmodels: {emulated: {pools: [p]}}\n"
            f"pools: {{p: {{replicas: ['{replicas.urls[0]}'], slots: 4}}}}\n"
            "tiers: {t: {}}\ndefaults: {tier: t}\n",
            "policy.yaml",
        )
        async with Gateway(Settings(port=0, admin_port=0), policy) as gateway:
            await ask(gateway, data, until)
            gc.collect()
            gc.disable()
            try:
                for _ in range(REQUESTS):
                    await ask(gateway, data, until)
                assert ours() == []
            finally:
                gc.enable()
