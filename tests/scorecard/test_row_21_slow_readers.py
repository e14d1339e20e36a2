"""Row 21: readers that stall cost a bounded buffer each, pause their replica, and are cut off at the limit."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from time import monotonic
from typing import Any, cast

import httpx
import pytest

from gateway.app import Gateway
from gateway.core.results import Outcome, Reason
from gateway.proxy.client_writer import WRITE_HIGH_WATER_BYTES
from gateway.proxy.replica.upstream_connection import STREAM_BUFFER_BYTES

from .capture import DONE, LAST_CHUNK, STREAM_HEAD, Answer, Capture, completion, token, whole
from .conftest import Connect, GatewayFactory
from .firehose import firehose_process, flowing, slow_reader
from .policies import rules
from .process import serving
from .raw import Client, chat
from .waiting import until

READERS = 200
STALL_S = 1.5
MANY_READERS = 1000
READ_BYTES = 4 * STREAM_BUFFER_BYTES
"""More than the kernel gives at once, and so the most that goes on top of a buffer that is nearly full."""
TAKEN_BYTES = 16 * 1024 * 1024
"""Most bytes that the gateway may take of one unread stream, including kernel buffers. In `STALL_S`, a replica that is
not paused would send more.
"""
RSS_BYTES_PER_READER = 256 * 1024
# On a busy machine the loop that the gateway, the replica and the readers share may stand still for seconds. Connecting
# to the replica, its checks and its first tokens then take as long, and none of these tests is about that.
UNHURRIED_POOL = "connect_timeout: 1h, health: {timeout: 1h, failures: 1000, ejection: {mode: off}}"
UNHURRIED_TIER = "timeouts: {queue: 1h, ttft: 1h, idle: 1h, total: 1h}"


SlowReaders = Callable[[str], Awaitable[Client]]


@pytest.fixture
async def slow(gateway: GatewayFactory) -> AsyncIterator[SlowReaders]:
    """`await slow(url)`: a reader with a small buffer, closed before the gateway is."""
    readers: list[Client] = []

    async def open_one(url: str) -> Client:
        readers.append(await slow_reader(url))
        return readers[-1]

    yield open_one
    for reader in readers:
        await reader.close()


def _rss_bytes(pid: int | str = "self") -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(status.partition("VmRSS:")[2].split()[0])


def _buffered(gw: Gateway) -> int:
    """The fullest buffer of any client connection."""
    return max((cast(Any, door).unsent_bytes for door in gw.limits.open), default=0)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and relies on how Linux sizes socket buffers")
async def test_two_hundred_stalled_readers_hold_bounded_memory(
    gateway: GatewayFactory, connect: Connect, slow: SlowReaders
) -> None:
    async with flowing() as hose:
        alone = rules(hose.url, slots=READERS + 8, pool=UNHURRIED_POOL, tier=UNHURRIED_TIER)
        gw = await gateway(alone, write_stall_s=STALL_S)
        readers = [await slow(gw.url) for _ in range(READERS)]
        healthy = await connect(gw.url)
        before, largest_rss, largest_buffer = _rss_bytes(), 0, 0
        for reader in readers:
            reader.send(chat(stream=True))

        served = 0
        while gw.limits.connections > 1 or len(hose.taken) < READERS:
            assert (await healthy.ask(chat())).status == 200
            served += 1
            largest_buffer = max(largest_buffer, _buffered(gw))
            largest_rss = max(largest_rss, _rss_bytes())
        requests = gw.metrics.lanes["free", "main"].requests
        assert requests["emulated", Outcome.ABANDONED, Reason.CLIENT_STALLED] == [READERS]
        assert requests["emulated", Outcome.OK, None] == [served] != [0]
        await until(lambda: hose.open == 0)
        assert largest_buffer <= WRITE_HIGH_WATER_BYTES + READ_BYTES + 8192
        assert max(hose.taken.values()) < TAKEN_BYTES
        assert largest_rss - before < READERS * RSS_BYTES_PER_READER


async def _ask_and_stall(url: str, beside: Client, readers: list[Client], statuses: Counter[int]) -> None:
    """Slow readers, one after the other, with a healthy request after each ten."""
    for number in range(MANY_READERS):
        readers.append(await slow_reader(url))
        readers[-1].send(chat(stream=True))
        if number % 10 == 0:
            statuses[(await beside.ask(chat())).status] += 1


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and relies on how Linux sizes socket buffers")
async def test_a_thousand_stalled_readers_are_cut_while_everybody_else_is_served(
    connect: Connect, tmp_path: Path
) -> None:
    """The gateway and the replica are separate processes, so neither takes the other's time."""
    statuses, readers = Counter[int](), list[Client]()
    with firehose_process() as hose_url:
        alone = rules(hose_url, slots=MANY_READERS + 8, pool=UNHURRIED_POOL, tier=UNHURRIED_TIER)
        async with (
            serving(tmp_path, alone, TAILGATE_WRITE_STALL_S="4") as served,
            httpx.AsyncClient(base_url=served.admin_url) as admin,
        ):
            healthy, pid = await connect(served.url), served.process.pid
            statuses[(await healthy.ask(chat())).status] += 1
            before = largest = _rss_bytes(pid)
            await _ask_and_stall(served.url, healthy, readers, statuses)
            while _stalled((await admin.get("/metrics")).text) < MANY_READERS:
                statuses[(await healthy.ask(chat())).status] += 1
                largest = max(largest, _rss_bytes(pid))
            for reader in readers:
                await reader.close()
    assert set(statuses) == {200}
    assert (largest - before) / MANY_READERS < RSS_BYTES_PER_READER / 2


def _stalled(page: str) -> int:
    """Readers that were cut so far, from a page of metrics."""
    return int(sum(float(line.split()[-1]) for line in page.splitlines() if 'reason="client-stalled"' in line))


async def test_client_that_pauses_reading_gets_the_whole_answer(
    gateway: GatewayFactory, capture: Capture, slow: SlowReaders
) -> None:
    """The client pauses for longer than a replica may be silent: the silence is the client's, not the replica's."""
    events = [token(f"{number:06} " + "x" * 4000) for number in range(1500)]
    capture.answer = lambda call: Answer(STREAM_HEAD + b"".join(events) + token("end", "stop") + DONE + LAST_CHUNK)
    gw = await gateway(rules(capture.url, tier="timeouts: {idle: 50ms}"), write_stall_s=30.0)
    reader = await slow(gw.url)
    reader.send(chat(stream=True))
    await until(lambda: len(gw.limits.stalled) == 1)
    start = monotonic()
    await until(lambda: monotonic() - start > 1.0)
    response = await reader.response()
    assert response.whole
    numbers = [event["choices"][0]["delta"]["content"][:6] for event in response.events[:-2]]
    assert numbers == [f"{number:06}" for number in range(1500)]


async def test_stalled_reader_does_not_count_as_an_idle_timeout_of_the_replica(
    gateway: GatewayFactory, slow: SlowReaders
) -> None:
    async with flowing() as hose:
        gw = await gateway(rules(hose.url, tier="timeouts: {idle: 50ms}"), write_stall_s=1.0)
        reader = await slow(gw.url)
        reader.send(chat(stream=True))
        await until(lambda: hose.taken)
        await until(lambda: hose.open == 0)
        assert dict(gw.metrics.lanes["free", "main"].requests) == {
            ("emulated", Outcome.ABANDONED, Reason.CLIENT_STALLED): [1]
        }


async def test_client_that_sends_requests_and_never_reads_is_cut_off(
    gateway: GatewayFactory, capture: Capture, slow: SlowReaders
) -> None:
    size = 600_000
    capture.answer = lambda call: Answer(whole(completion("x" * size)))
    gw = await gateway(rules(capture.url), write_stall_s=1.0)
    reader = await slow(gw.url)
    largest = 0
    reader.send(chat())
    await until(lambda: len(gw.limits.stalled) == 1)
    while gw.limits.connections:
        reader.send(chat())
        largest = max(largest, _buffered(gw))
        await asyncio.sleep(0.01)
    assert largest < 2 * size
    assert len(capture.calls) <= 2


async def test_unread_end_of_an_answer_is_dropped_after_the_write_timeout(
    gateway: GatewayFactory, capture: Capture, slow: SlowReaders
) -> None:
    """The answer is over, but some bytes are still buffered here: too few to pause."""
    capture.answer = lambda call: call.send(STREAM_HEAD + token("begin"))
    gw = await gateway(rules(capture.url), write_stall_s=0.5)
    reader = await slow(gw.url)
    reader.send(chat("Connection: close", stream=True))
    await capture.until(lambda: capture.calls)
    (call,) = capture.calls
    while _buffered(gw) < WRITE_HIGH_WATER_BYTES * 3 // 4:
        call.send(token("x" * 4000))
        for _ in range(10):  # turns of the loop, until the kernel's buffers are full
            await asyncio.sleep(0)
    call.send(token("end", "stop") + DONE + LAST_CHUNK)
    await until(lambda: gw.controller.snapshot(monotonic()).pools[0].in_flight == 0)
    assert 0 < _buffered(gw) < WRITE_HIGH_WATER_BYTES
    await until(lambda: gw.limits.connections == 0)
