"""The first contact with servers that refuse fields, or answer oddly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from typing import Any

import pytest

from gateway.sim.workload.arrivals import Arrival
from loadtests.replay.models import contact
from loadtests.replay.probe import NoContact, probe, refused_fields
from loadtests.replay.target import Length, Target

ARRIVAL = Arrival(0.0, "free", "free-1", "default", 40, 5)
STREAM = b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\ndata: [DONE]\n\n'
Body = dict[str, Any]


@asynccontextmanager
async def strict(refuses: Callable[[Body], str], status: int = 400) -> AsyncIterator[tuple[str, list[Body]]]:
    """A server that refuses a body for the returned reason, and else answers. Yields its URL and all bodies."""
    bodies: list[Body] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(asyncio.IncompleteReadError):  # a probe connects without a request
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            bodies.append(json.loads(await reader.readexactly(length)))
            if reason := refuses(bodies[-1]):
                said, kind, code = json.dumps({"error": {"message": reason}}).encode(), b"application/json", status
            else:
                said, kind, code = STREAM, b"text/event-stream", 200
            more = b"connection: close\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (kind, len(said))
            writer.write(b"HTTP/1.1 %d Told\r\n%b%b" % (code, more, said))
            await writer.drain()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", bodies


@pytest.mark.parametrize(
    ("refused", "told"),
    [
        ({"stream_options"}, "unknown field stream_options"),
        ({"ignore_eos"}, "bad"),
        ({"min_tokens", "ignore_eos"}, "bad"),
    ],
)
async def test_refused_measuring_fields_are_left_out_and_said(refused: set[str], told: str) -> None:
    said: list[str] = []
    async with strict(lambda body: told if refused & body.keys() else "") as (url, bodies):
        target, _ = await contact(Target(url, length=Length.EXACT), ARRIVAL, 1, said.append)
    assert refused <= target.left_out
    assert not refused & bodies[-1].keys()
    assert said[-1] == f"{url} refuses {', '.join(sorted(target.left_out))}: all requests go without"
    if len(refused) == 1:
        assert target.left_out == refused


async def test_nothing_is_left_out_for_a_server_that_takes_all_or_refuses_for_another_reason() -> None:
    for told in ("", "the prompt is too short"):
        async with strict(lambda _, told=told: told) as (url, _):
            assert await refused_fields(Target(url, length=Length.EXACT), ARRIVAL, 1) == frozenset()


async def test_odd_answer_to_the_first_request_does_not_end_the_test() -> None:
    said: list[str] = []
    async with strict(lambda _: "the prompt is too short") as (url, _):
        assert await probe(Target(url), ARRIVAL, 1, said.append) is None
    assert said == [f"{url} answers 400 to the first request: error: the test goes on, with one token a word"]


async def test_refused_key_ends_the_test_before_it_begins() -> None:
    async with strict(lambda _: "no such key", 401) as (url, _):
        with pytest.raises(NoContact, match="answers 401 to the first request: error; give --key"):
            await probe(Target(url), ARRIVAL, 1)
