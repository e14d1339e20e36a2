"""The model for a target that lacks the traffic's model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress

import pytest

from gateway.sim.workload.arrivals import Arrival
from loadtests.replay.models import WhichModel, contact, with_its_model
from loadtests.replay.probe import NoContact
from loadtests.replay.target import Target

ARRIVAL = Arrival(0.0, "free", "free-1", "default", 40, 5)


def listed(*names: str) -> bytes:
    return json.dumps({"object": "list", "data": [{"id": name} for name in names]}).encode()


@asynccontextmanager
async def serving(body: bytes, status: int = 200) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server with this answer to GET /v1/models, and 404 for the rest. Yields its URL and the received heads."""
    heads: list[bytes] = []
    answering: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        answering.add(task)
        with closing(writer), suppress(asyncio.IncompleteReadError):  # a probe connects without a request
            await answer(await reader.readuntil(b"\r\n\r\n"), writer)

    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        heads.append(head)
        known = head.startswith(b"GET /v1/models ")
        said = body if known else b'{"detail": "Not Found"}'
        length = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(said)
        writer.write(b"HTTP/1.1 %d Told\r\n" % (status if known else 404) + length + said)
        await writer.drain()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", heads
    finally:
        server.close()
        await asyncio.gather(*answering)


async def test_only_model_of_the_target_is_looked_up_with_the_key_of_the_tier() -> None:
    async with serving(listed("llama")) as (url, heads):
        found = await with_its_model(Target(f"{url}/v1", keys={"free": ("secret",)}), ARRIVAL)
    assert found is not None
    assert (found.model, found.url) == ("llama", f"{url}/v1")
    assert b"authorization: bearer secret\r\n" in heads[0].lower()


async def test_one_of_several_models_has_to_be_named() -> None:
    async with serving(listed("llama", "qwen")) as (url, _):
        with pytest.raises(WhichModel, match="has no model default: give one of its models with --model: llama, qwen"):
            await with_its_model(Target(url), ARRIVAL)


async def test_named_model_is_not_replaced() -> None:
    async with serving(listed("llama")) as (url, _):
        with pytest.raises(WhichModel, match="has no model gtp: give one of its models with --model: llama"):
            await contact(Target(url, model="gtp"), ARRIVAL, 1, print)


async def test_missing_endpoint_is_not_reported_as_a_missing_model() -> None:
    async with serving(b"", 404) as (url, _):
        with pytest.raises(NoContact, match="does not seem to serve /v1/chat/completions: it answers 404"):
            await contact(Target(url), ARRIVAL, 1, print)


@pytest.mark.parametrize(
    ("body", "status"),
    [(listed("llama", "default"), 200), (listed(), 200), (b"garbage", 200), (listed("llama"), 404)],
)
async def test_useless_model_list_leaves_the_refusal_as_it_is(body: bytes, status: int) -> None:
    async with serving(body, status) as (url, _):
        assert await with_its_model(Target(url), ARRIVAL) is None
