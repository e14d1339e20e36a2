"""An emulated replica with data-parallel ranks: the rank of a request, and the metrics of each rank."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from gateway.core.pool_spec import EngineKind
from gateway.core.sample import Sample
from gateway.fleet.metrics_text import read_page
from loadtests.emulator import Emulator

PROMPT = {"model": "emulated", "prompt": "word " * 400, "max_tokens": 2}


@pytest.fixture
async def emulator() -> AsyncIterator[Emulator]:
    async with Emulator(dp=3) as emulator:
        yield emulator


@pytest.fixture
async def client(emulator: Emulator) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=emulator.url, timeout=20) as client:
        yield client


async def ask(client: httpx.AsyncClient, rank: str | None = None) -> httpx.Response:
    headers = {} if rank is None else {"X-data-parallel-rank": rank}
    return await client.post("/v1/completions", json=PROMPT, headers=headers)


async def ranks(client: httpx.AsyncClient) -> tuple[Sample, ...]:
    found = read_page(EngineKind.VLLM, (await client.get("/metrics")).content, by_rank=True)
    assert isinstance(found, tuple)
    return tuple(scraped.sample for scraped in found)


async def test_emulator_runs_and_caches_a_request_only_at_the_rank_in_its_header(
    client: httpx.AsyncClient,
) -> None:
    for _ in range(2):
        assert (await ask(client, "2")).status_code == 200
    first, second, third = await ranks(client)
    assert (first.cache_queries, second.cache_queries) == (0, 0)
    assert third.cache_hits is not None
    assert third.cache_hits > 0
    details = (await ask(client, "1")).json()["usage"]["prompt_tokens_details"]
    assert details["cached_tokens"] == 0


@pytest.mark.parametrize("rank", ["3", "-1"])
async def test_emulator_refuses_a_rank_that_does_not_exist(client: httpx.AsyncClient, rank: str) -> None:
    answer = await ask(client, rank)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == f"data_parallel_rank {rank} is out of range [0, 3)."


async def test_emulator_runs_a_request_without_a_rank_at_the_least_busy_one(
    emulator: Emulator, client: httpx.AsyncClient
) -> None:
    (replica,) = emulator.replicas
    replica.fault("pause")  # the engines are paused, and new requests are held
    asks = [asyncio.create_task(ask(client, rank)) for rank in (None, "x", None)]
    await replica.until(lambda held: held.received_total == 3)
    replica.fault(None)
    assert {(await answer).status_code for answer in asks} == {200}
    first, second, third = [sample.cache_queries for sample in await ranks(client)]
    assert first == second == third != 0
