"""The load generator: right answers are counted, wrong ones void the run."""

from __future__ import annotations

import asyncio
import os
import statistics
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest

from loadtests.bench import canned
from loadtests.bench.answer import BadAnswer
from loadtests.bench.closedloop import Closed, first_answer, run_closed
from loadtests.bench.openloop import Open, OpenResult, arrivals, run_open
from loadtests.bench.streams import Hold, Streams, run_hold, run_streams

from .rigged import cheap_upstream, scripted_upstream

ME = os.getpid()
STATUS_500 = canned.plain("500 Internal Server Error", "application/json", b"{}")


def closed(port: int, patience_s: float = 10.0) -> Closed:
    return Closed(port, ME, connections=4, warmup_s=0.0, seconds=0.05, least=20, patience_s=patience_s)


async def test_closed_loop_load_counts_answers() -> None:
    async with cheap_upstream() as port:
        result = await run_closed(closed(port), canned.ANSWER_BODY_BYTES)
    assert result.errors == []
    assert result.requests >= 20
    assert result.seconds >= 0.05
    assert any("python" in command for command, _ in result.processes)


@pytest.mark.parametrize(
    ("third", "what"),
    [
        (STATUS_500, "status 500"),
        (canned.plain("200 OK", "application/json", canned.ANSWER_BODY[:-1]), "599 bytes"),
        (b"garbage\r\n\r\n", "not HTTP"),
        (None, "connection lost"),
    ],
    ids=["status", "length", "garbage", "closed"],
)
async def test_closed_loop_load_is_void_after_one_wrong_answer(third: bytes | None, what: str) -> None:
    async with scripted_upstream(lambda nth: third if nth == 2 else canned.ANSWER) as port:
        result = await run_closed(closed(port), canned.ANSWER_BODY_BYTES)
    assert what in result.errors[0]


async def test_closed_loop_load_is_void_if_the_target_is_silent() -> None:
    async with scripted_upstream(lambda nth: b"") as port:
        result = await run_closed(closed(port, patience_s=0.05), canned.ANSWER_BODY_BYTES)
    assert result.errors == ["0 requests were answered, fewer than 20"]


async def open_loop(port: int, rate: float) -> OpenResult:
    spec = Open(port, rate, seconds=0.2, warmup_s=0.05, connections=4, seed=3)
    return await asyncio.to_thread(run_open, spec, canned.ANSWER_BODY_BYTES)


async def test_open_loop_load_sends_on_schedule_and_counts_after_the_warm_up() -> None:
    async with cheap_upstream() as port:
        result = await open_loop(port, 400)
    assert result.errors == []
    assert result.requests == sum(at >= 0.05 for at in arrivals(400, 0.25, 3))
    assert 0 < result.p50_s <= result.p99_s


async def test_open_loop_load_is_void_after_one_wrong_answer() -> None:
    async with scripted_upstream(lambda nth: STATUS_500) as port:
        result = await open_loop(port, 400)
    assert "status 500" in result.errors[0]


def test_bench_arrivals_are_a_repeatable_poisson_process() -> None:
    times = list(arrivals(1000, 20, seed=5))
    assert times == list(arrivals(1000, 20, seed=5)) != list(arrivals(1000, 20, seed=6))
    gaps = [b - a for a, b in pairwise(times)]
    assert statistics.mean(gaps) == pytest.approx(0.001, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(0.001, rel=0.05)


async def test_bench_reads_streams_to_their_ends() -> None:
    async with cheap_upstream(interval_s=0.002) as port:
        result = await run_streams(Streams(port, ME, 0.002, streams=20, chunks=15))
    assert result.errors == []
    assert result.chunks == 300


async def test_bench_run_is_void_after_a_truncated_stream() -> None:
    cut = canned.STREAM_HEAD + canned.STREAM_ROLE + canned.STREAM_CHUNK + canned.STREAM_END
    async with scripted_upstream(lambda nth: cut) as port:
        result = await run_streams(Streams(port, ME, 0.001, streams=3, chunks=5))
    assert "status 200 with 3 of 13 events" in result.errors[0]


async def test_bench_run_is_void_after_a_broken_stream() -> None:
    async with scripted_upstream(lambda nth: None) as port:
        result = await run_streams(Streams(port, ME, 0.001, streams=3, chunks=5))
    assert "connection lost" in result.errors[0]


def hold(port: int) -> Hold:
    return Hold(port, ME, interval_s=0.01, streams=30, chunks=3, seconds=0.05, opened_per_s=10_000)


async def test_held_bench_streams_live_and_get_chunks() -> None:
    async with cheap_upstream(interval_s=0.01) as port:
        result = await run_hold(hold(port))
    assert result.errors == []
    assert result.alive == 30
    assert result.fewest_events >= 3
    assert result.events >= 30 * 3
    assert result.rss_before > 0
    assert result.rss_after > 0


async def test_bench_probes_of_ttft_are_asked_beside_the_held_streams() -> None:
    async with cheap_upstream(interval_s=0.01) as port:
        result = await run_hold(replace(hold(port), probes=20))
    assert (result.errors, result.alive) == ([], 30)
    assert 0.0 < result.ttft_p50_s < 1.0


async def test_held_bench_stream_that_ends_does_not_count_as_alive() -> None:
    whole = canned.STREAM_HEAD + canned.STREAM_ROLE + canned.STREAM_CHUNK + canned.STREAM_END
    async with scripted_upstream(lambda nth: whole) as port:
        result = await run_hold(hold(port))
    assert result.alive == 0


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (STATUS_500, "status 500"),
        (canned.plain("200 OK", "application/json", b'{"model":"another"}'), "another"),
        (None, "closed before"),
    ],
)
async def test_bench_requires_the_first_answer_to_equal_that_of_the_upstream(answer: bytes | None, what: str) -> None:
    async with scripted_upstream(lambda nth: answer) as port:
        with pytest.raises(BadAnswer, match=what):
            await asyncio.to_thread(partial(first_answer, port))


async def test_bench_takes_the_required_length_from_the_first_answer() -> None:
    async with cheap_upstream() as port:
        assert await asyncio.to_thread(partial(first_answer, port)) == canned.ANSWER_BODY_BYTES
