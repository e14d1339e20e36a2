"""The cheap upstream: its answers, and the pace of its streams."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import httpx
import pytest

from loadtests.bench import canned
from loadtests.bench.upstream import Stream, Wheel

from .rigged import cheap_upstream


class Written:
    """A transport that only records."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def is_closing(self) -> bool:
        return self.closed


def stream(written: Written, tokens: int, *, usage: bool = False) -> Stream:
    return Stream(cast(Any, written), tokens, usage=usage)


def test_bench_upstream_sends_each_stream_one_chunk_per_interval() -> None:
    wheel, outs = Wheel(0.02), [Written() for _ in range(50)]
    for out in outs:
        wheel.add(stream(out, 100))
    for millisecond in range(100):  # five intervals
        wheel.due(millisecond * 0.001 + 0.0001)
    assert {len(out.writes) for out in outs} == {5}


def test_bench_upstream_spreads_streams_over_the_interval() -> None:
    wheel, outs = Wheel(0.02), [Written() for _ in range(200)]
    for out in outs:
        wheel.add(stream(out, 100))
    seen = 0
    for millisecond in range(20):
        wheel.due(millisecond * 0.001 + 0.0001)
        started = sum(bool(out.writes) for out in outs)
        assert started - seen == 10
        seen = started
    assert seen == 200


def test_the_upstream_of_the_bench_catches_up_after_a_late_turn() -> None:
    wheel, out = Wheel(0.02), Written()
    wheel.add(stream(out, 100))
    wheel.due(1.0001)
    assert len(out.writes) in (50, 51)


def test_bench_upstream_ends_a_stream_after_its_tokens_and_forgets_it() -> None:
    wheel, out = Wheel(0.001), Written()
    wheel.add(stream(out, 2, usage=True))
    wheel.due(0.01)
    head = canned.STREAM_HEAD + canned.STREAM_ROLE + canned.STREAM_CHUNK
    end = canned.STREAM_CHUNK + canned.STREAM_FINISH + canned.usage_event(2) + canned.STREAM_END
    assert out.writes == [head, end]
    assert wheel.streams == 0


def test_the_upstream_of_the_bench_forgets_a_client_that_has_left() -> None:
    wheel, out = Wheel(0.001), Written()
    wheel.add(stream(out, 100))
    out.closed = True
    wheel.due(0.01)
    assert out.writes == []
    assert wheel.streams == 0


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/health", 200, ""),
        ("/v1/models", 200, canned.MODEL),
        ("/metrics", 200, "vllm:num_requests_waiting"),
        ("/nowhere", 404, "Not Found"),
    ],
)
async def test_cheap_upstream_looks_like_a_healthy_replica(path: str, status: int, said: str) -> None:
    async with cheap_upstream() as port, httpx.AsyncClient() as client:
        answer = await client.get(f"http://127.0.0.1:{port}{path}")
    assert answer.status_code == status
    assert said in answer.text


@pytest.mark.parametrize("usage", [False, True])
async def test_the_upstream_of_the_bench_reads_a_body_that_a_proxy_has_rewritten(usage: bool) -> None:
    body = {"stream": True, "max_completion_tokens": 4, "stream_options": {"include_usage": usage}}
    async with cheap_upstream() as port, httpx.AsyncClient() as client, asyncio.timeout(10):
        answer = await client.post(f"http://127.0.0.1:{port}{canned.PATH}", json=body)
    assert answer.text.count(" token") == 4
    assert answer.text.count('"usage"') == usage
    assert answer.text.endswith("data: [DONE]\n\n")
