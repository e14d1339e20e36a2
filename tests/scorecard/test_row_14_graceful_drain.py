"""Row 14: SIGTERM: requests that end in time are served, others end with an error, and the process ends at its
deadline."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from gateway.api_side import CLOSE_GRACE_S

from . import raw
from .capture import DONE, LAST_CHUNK, STREAM_HEAD, Call, Capture, by_default, token
from .conftest import Connect, GatewayFactory
from .firehose import slow_reader
from .policies import rules
from .process import Serving, serving
from .raw import Client, chat, request
from .waiting import DEADLINE_S, until

STREAMS = 100
SLACK_S = 5.0
"""Seconds that a busy machine may take in addition to the time that the process is allowed."""


def _first_token_only(call: Call) -> None:
    """Begin an answer, streamed or not, and stop; a client that does not read gets more than it can hold."""
    if b"flood" in call.body:
        call.send(STREAM_HEAD + token("x" * 16_000) * 500)
    elif b'"stream":true' in call.body:
        call.send(STREAM_HEAD + token("begin"))


async def _streams(served: Serving, connect: Connect, count: int) -> list[Client]:
    """Clients that have read the first token of their streams."""
    clients = [await connect(served.url) for _ in range(count)]
    for client in clients:
        client.send(chat(stream=True))
    for client in clients:
        assert (await client.head())[0] == 200
        assert b"begin" in await client.chunk()
    return clients


async def _readiness(url: str, path: str, seen: list[int]) -> None:
    """Poll readiness on one connection until there is no answer."""
    client = await raw.connect(url)
    try:
        while True:
            seen.append((await client.ask(request(path))).status)
    except (ConnectionError, asyncio.IncompleteReadError):
        pass
    finally:
        await client.close()


async def _refused(url: str) -> None:
    """Wait until the port is closed."""
    async with asyncio.timeout(DEADLINE_S):
        try:
            while True:
                await (await raw.connect(url)).close()
        except (ConnectionRefusedError, ConnectionResetError):
            return  # reset: it waited in the queue of the listening socket when that was closed


async def test_stream_that_ends_within_the_drain_window_is_complete(
    tmp_path: Path, capture: Capture, connect: Connect
) -> None:
    capture.answer = _first_token_only
    policy = rules(capture.url, slots=STREAMS)
    async with serving(tmp_path, policy, TAILGATE_DRAIN_DEADLINE_S="60") as served:
        streams = await _streams(served, connect, STREAMS)
        waiting = [await connect(served.url) for _ in range(5)]
        for client in waiting:
            client.send(chat("Connection: close", stream=True))
        half = await connect(served.url)
        begun = chat()
        half.send(begun[:-10])
        await half.drain()
        idle = await connect(served.url)
        assert (await idle.ask(request("/ready"))).status == 200
        api: list[int] = []
        admin: list[int] = []
        polls = [
            asyncio.create_task(_readiness(served.url, "/ready", api)),
            asyncio.create_task(_readiness(served.admin_url, "/readyz", admin)),
        ]
        await until(lambda: api and admin)

        served.signal(signal.SIGTERM)
        await until(lambda: 503 in admin)
        assert await idle.rest() == b"", "an idle connection is closed without a word"
        await _refused(served.url)
        assert served.process.returncode is None

        capture.answer = by_default
        for call in capture.calls[:STREAMS]:
            call.send(token(" and") + token(" end", "stop") + DONE + LAST_CHUNK)
            call.finish()
        ends = await asyncio.gather(*(client.reader.readuntil(b"0\r\n\r\n") for client in streams))
        assert all(b"[DONE]" in end for end in ends)
        # Waiting requests get their slots during the drain; so does one that was still being sent.
        half.send(begun[-10:])
        answers = [await client.response() for client in (half, *waiting)]
        assert {(answer.status, answer.whole) for answer in answers} == {(200, True)}

        assert await served.exit_code() == 0
        await asyncio.gather(*polls)
        for seen in (api, admin):
            assert set(seen) <= {200, 503}
            assert seen == sorted(seen), "once it is not ready it stays so"
    assert b"Traceback" not in served.written


@pytest.mark.long
async def test_stream_past_the_drain_deadline_ends_in_an_error(
    tmp_path: Path, capture: Capture, connect: Connect
) -> None:
    deadline_s = 1.0
    capture.answer = _first_token_only
    policy = rules(capture.url, slots=STREAMS + 2)
    async with serving(tmp_path, policy, TAILGATE_DRAIN_DEADLINE_S=str(deadline_s)) as served:
        streams = await _streams(served, connect, STREAMS)
        stalled = await slow_reader(served.url)
        stalled.send(chat(stream=True, content="flood"))
        whole, queued = await connect(served.url), await connect(served.url)
        whole.send(chat())
        await capture.until(lambda: len(capture.calls) == STREAMS + 2)
        queued.send(chat(stream=True))

        start = monotonic()
        served.signal(signal.SIGTERM)
        answers = await asyncio.gather(*(client.rest() for client in streams))
        assert monotonic() - start >= deadline_s
        for answer in answers:
            assert answer.count(b"data:") == 1
            assert b'"code":"shutting_down"' in answer
            assert answer.endswith(b"0\r\n\r\n")
        for client in (whole, queued):
            response = await client.response()
            assert (response.status, response.reason) == (503, "shutting-down")
            assert int(response.headers["retry-after"]) >= 1
        assert await served.exit_code(deadline_s + CLOSE_GRACE_S + SLACK_S) == 0
        assert all(connection.lost for connection in capture.traffic)
        await stalled.close()
    assert b"Traceback" not in served.written


async def test_readiness_is_503_before_the_drain_closes_the_port(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url), drain_notice_s=3600.0)
    kept, admin = await connect(gw.url), await connect(gw.admin_url)
    assert (await kept.ask(request("/ready"))).status == 200
    drain = asyncio.create_task(gw.drain())
    while (await admin.ask(request("/readyz"))).status == 200:
        pass
    answer = await kept.ask(request("/ready"))
    assert (answer.status, answer.headers["connection"]) == (503, "close")
    assert (await (await connect(gw.url)).ask(chat())).status == 200
    assert not drain.done()
    gw.broken.set()  # no reason to wait longer
    await _refused(gw.url)
    await drain


@pytest.mark.long
async def test_drain_notice_lasts_as_long_as_the_setting_says(tmp_path: Path, capture: Capture) -> None:
    async with serving(tmp_path, rules(capture.url), TAILGATE_DRAIN_NOTICE_S="0.5") as served:
        start = monotonic()
        served.signal(signal.SIGTERM)
        assert await served.exit_code() == 0
        assert monotonic() - start >= 0.5
    assert b"Traceback" not in served.written


async def test_the_admin_port_drains_as_sigterm_does(tmp_path: Path, capture: Capture, connect: Connect) -> None:
    capture.answer = _first_token_only
    token_of_admin = "a-token-of-the-admin-port"
    environment: dict[str, Any] = {"TAILGATE_DRAIN_DEADLINE_S": "60", "TAILGATE_ADMIN_TOKEN": token_of_admin}
    async with serving(tmp_path, rules(capture.url), **environment) as served:
        (stream,) = await _streams(served, connect, 1)
        admin = await connect(served.admin_url)
        assert (await admin.ask(request("/admin/drain", b""))).status == 401
        assert (await admin.ask(request("/readyz"))).status == 200
        bearer = f"Authorization: Bearer {token_of_admin}"
        assert (await admin.ask(request("/admin/drain", b"", bearer))).status == 200
        await _refused(served.url)
        assert (await admin.ask(request("/readyz"))).status == 503

        capture.calls[0].send(token(" end", "stop") + DONE + LAST_CHUNK)
        capture.calls[0].finish()
        assert b"[DONE]" in await stream.reader.readuntil(b"0\r\n\r\n")
        assert await served.exit_code() == 0
    assert b"Traceback" not in served.written
