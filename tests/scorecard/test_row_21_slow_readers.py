"""Row 21: readers that stall cost a bounded buffer each, pause their replica, and are cut off at the limit."""

from __future__ import annotations

import sys
from pathlib import Path
from time import monotonic

import pytest

from gateway.app import Gateway
from gateway.core.model import Outcome, Why
from gateway.proxy.server import WRITE_HIGH_WATER_BYTES

from .capture import DONE, LAST_CHUNK, STREAM_HEAD, Answer, Capture, token
from .conftest import Connect, GatewayFactory
from .firehose import flowing, slow_reader
from .policies import rules
from .raw import chat
from .waiting import until

READERS = 200
STALL_S = 1.5
READ_BYTES = 256 * 1024
"""The most that uvloop reads at once, and so the most that goes on top of a buffer that is nearly full."""
TAKEN_BYTES = 16 * 1024 * 1024
"""Of one stream, with what kernels on the way keep. Unread for `STALL_S`, a firehose that is not paused gives more."""
RSS_BYTES_PER_READER = 512 * 1024


def _rss_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmRSS:")[2].split()[0])


def _buffered(gw: Gateway) -> int:
    """The fullest buffer of any client connection."""
    return max((door.transport.get_write_buffer_size() for door in gw.guard._doors), default=0)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and relies on how Linux sizes socket buffers")
async def test_two_hundred_stalled_readers(gateway: GatewayFactory, connect: Connect) -> None:
    async with flowing() as hose:
        gw = await gateway(rules(hose.url, slots=READERS + 8), write_stall_s=STALL_S)
        readers = [await slow_reader(gw.url) for _ in range(READERS)]
        healthy = await connect(gw.url)
        before, largest_rss, largest_buffer = _rss_bytes(), 0, 0
        for reader in readers:
            reader.send(chat(stream=True))

        served = 0
        requests = gw.metrics.lanes["free", "main"].requests if ("free", "main") in gw.metrics.lanes else {}
        while gw.guard.connections > 1 or len(hose.taken) < READERS:
            assert (await healthy.ask(chat())).status == 200
            served += 1
            largest_buffer = max(largest_buffer, _buffered(gw))
            largest_rss = max(largest_rss, _rss_bytes())
        requests = gw.metrics.lanes["free", "main"].requests
        assert requests["emulated", Outcome.ABANDONED, Why.CLIENT_STALLED] == READERS
        assert requests["emulated", Outcome.OK, None] == served > 0
        await until(lambda: hose.open == 0)
        assert largest_buffer <= WRITE_HIGH_WATER_BYTES + READ_BYTES + 8192
        assert max(hose.taken.values()) < TAKEN_BYTES
        assert largest_rss - before < READERS * RSS_BYTES_PER_READER
        for reader in readers:
            await reader.close()


async def test_a_reader_that_pauses_gets_everything(gateway: GatewayFactory, capture: Capture) -> None:
    """It pauses for longer than a replica may be silent: the silence is its own, not the replica's."""
    events = [token(f"{number:06} " + "x" * 4000) for number in range(1500)]
    capture.answer = lambda call: Answer(STREAM_HEAD + b"".join(events) + token("end", "stop") + DONE + LAST_CHUNK)
    gw = await gateway(rules(capture.url, tier="timeouts: {idle: 50ms}"), write_stall_s=30.0)
    reader = await slow_reader(gw.url)
    reader.send(chat(stream=True))
    await until(lambda: len(gw.guard.stalled) == 1)
    start = monotonic()
    await until(lambda: monotonic() - start > 1.0)
    response = await reader.response()
    assert response.whole
    numbers = [event["choices"][0]["delta"]["content"][:6] for event in response.events[:-2]]
    assert numbers == [f"{number:06}" for number in range(1500)]
    await reader.close()


async def test_a_stall_of_the_reader_is_no_miss_of_the_replica(gateway: GatewayFactory) -> None:
    async with flowing() as hose:
        gw = await gateway(rules(hose.url, tier="timeouts: {idle: 50ms}"), write_stall_s=1.0)
        reader = await slow_reader(gw.url)
        reader.send(chat(stream=True))
        await until(lambda: hose.taken)
        await until(lambda: hose.open == 0)
        assert dict(gw.metrics.lanes["free", "main"].requests) == {
            ("emulated", Outcome.ABANDONED, Why.CLIENT_STALLED): 1
        }
        await reader.close()
