"""Data-parallel ranks behind one address: one read, and each rank gets its own part."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from gateway.core.policy import Policy
from gateway.core.pool_spec import EngineKind, ReplicaSpec
from gateway.core.sample import Sample
from gateway.fleet.metrics_text import read_page
from gateway.fleet.target import Reading

from .replicas import OFTEN, FakeReplica, answer, policy, pool, replica, until
from .test_watch import watching

RANK = """\
vllm:num_requests_running{{engine="{engine}",model_name="m"}} {running}.0
vllm:num_requests_waiting{{engine="{engine}",model_name="m"}} 1.0
vllm:kv_cache_usage_perc{{engine="{engine}",model_name="m"}} 0.5
"""


def page(*engines: int) -> str:
    """A page of metrics where engine n runs n requests."""
    return "".join(RANK.format(engine=engine, running=engine) for engine in engines)


def read(text: str) -> tuple[Sample, ...]:
    ranks = read_page(EngineKind.VLLM, text.encode(), by_rank=True)
    assert isinstance(ranks, tuple)
    return tuple(scraped.sample for scraped in ranks)


def load(running: int) -> Sample:
    return Sample(waiting=1, running=running, kv_fraction=0.5)


def with_ranks(fake: FakeReplica, count: int) -> Policy:
    main = pool(fake)
    return policy(replace(main, replicas=tuple(ReplicaSpec(f"gpu#{n}", fake.url, n) for n in range(count))))


@pytest.fixture
async def fake() -> AsyncIterator[FakeReplica]:
    async with replica() as fake:
        fake.answers["/metrics"] = answer(page(0, 1, 10))
        yield fake


async def test_server_with_ranks_is_read_once_for_all_of_them(fake: FakeReplica) -> None:
    async with watching(with_ranks(fake, 3)) as fleet:
        for rank, running in enumerate((0, 1, 10)):
            await fleet.says(f"gpu#{rank}", load(running))
            await fleet.says(f"gpu#{rank}", Sample(healthy=True))
        await until(lambda: fleet.board.known(with_ranks(fake, 3).pools["main"]) == {"m"})
        assert [report.name for report in fleet.watcher.reports()] == ["gpu#0", "gpu#1", "gpu#2"]
        asked, told = fake.paths().count("/metrics"), fleet.samples.count(("gpu#2", load(10)))
        assert fake.connections <= 3
    assert abs(asked - told) <= 1


async def test_all_ranks_of_a_dead_server_are_unhealthy(fake: FakeReplica) -> None:
    async with watching(with_ranks(fake, 3)) as fleet:
        await fleet.says("gpu#2", Sample(healthy=True))
        await fake.stop()
        for rank in range(3):
            await fleet.says(f"gpu#{rank}", Sample(healthy=False))


async def test_rank_that_the_engine_lacks_is_unhealthy_while_the_others_are_healthy(fake: FakeReplica) -> None:
    async with watching(with_ranks(fake, 4)) as fleet:
        await fleet.says("gpu#3", Sample(healthy=False))
        await fleet.says("gpu#2", Sample(healthy=True))
        await fleet.says("gpu#2", load(10))
        error = fleet.report("gpu#0").errors[Reading.METRICS]
        assert error == "garbage: it has 3 data-parallel ranks, and the policy says dp: 4"
        fake.answers["/metrics"] = answer(page(0, 1, 2, 3))
        await fleet.says("gpu#3", Sample(healthy=True))


async def test_ranks_of_a_replica_come_and_go_with_a_reload(fake: FakeReplica) -> None:
    async with watching(with_ranks(fake, 2)) as fleet:
        await fleet.says("gpu#1", Sample(healthy=True))
        fleet.watcher.configure(with_ranks(fake, 3))
        await fleet.says("gpu#2", load(10))
        await until(lambda: fleet.board.known(with_ranks(fake, 3).pools["main"]) == {"m"})
        fleet.watcher.configure(policy(pool(fake)))
        await fleet.says("main-0", Sample(waiting=3, running=11, kv_fraction=0.5))
        assert [report.name for report in fleet.watcher.reports()] == ["main-0"]


async def test_every_rank_of_a_new_server_is_warmed_up(fake: FakeReplica) -> None:
    fake.answers["/v1/completions"] = answer("{}")
    rules = with_ranks(fake, 3)
    warmed = replace(rules.pools["main"], health=replace(OFTEN, warmup=1))
    async with replica() as other, watching(policy(pool(other))) as fleet:
        await fleet.says("main-0", Sample(healthy=True))
        fleet.watcher.configure(policy(warmed))
        await fleet.says("gpu#0", Sample(healthy=True))
    heads = [head.lower() for head in fake.asked if b"/v1/completions" in head]
    assert sorted(head.partition(b"x-data-parallel-rank: ")[2][:1] for head in heads) == [b"0", b"1", b"2"]


def test_ranks_behind_a_hybrid_load_balancer_are_identified_by_their_order() -> None:
    assert read(page(10, 9)) == (load(9), load(10))


def test_adapter_limit_holds_for_each_rank_and_active_adapters_are_unknown() -> None:
    info = 'vllm:lora_requests_info{max_lora="4",running_lora_adapters="sql",waiting_lora_adapters=""} 1.7e+09\n'
    assert read(page(0, 1) + info) == tuple(replace(load(rank), max_adapters=4) for rank in range(2))


async def test_metrics_page_without_rank_labels_keeps_all_ranks_in_service(fake: FakeReplica) -> None:
    fake.answers["/metrics"] = answer(page(0, 1).replace('engine="0",', "").replace('engine="1",', ""))
    async with watching(with_ranks(fake, 2)) as fleet:
        await until(lambda: Reading.METRICS in fleet.report("gpu#0").errors)
        seen = len(fleet.samples)
        await until(lambda: ("gpu#1", Sample(healthy=True)) in fleet.samples[seen:])
        error = fleet.report("gpu#1").errors[Reading.METRICS]
        assert error == "empty: no series of vllm:num_requests_running has the label engine: the ranks are unknown"
