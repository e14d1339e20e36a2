"""Data-parallel ranks of one server, over sockets: the rank of a request, and the evidence for that rank."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from pydantic import SecretStr

from gateway.app import Gateway
from gateway.policy import load_text
from gateway.settings import Settings
from loadtests.emulator import Emulator
from tests.fleet.replicas import until

POLICY = """\
apiVersion: tailgate/v1
models: {{emulated: {{pools: [main]}}}}
pools:
  main:
    slots: 4
    replicas: [{{name: gpu, url: "{url}", dp: {dp}}}]
    health: {{interval: 50ms, scrape_interval: 50ms, slow_start: none}}
tiers: {{standard: {{max_tokens: {{default: 4, limit: 64}}}}}}
"""
RANKS = 3
TOKEN = "a-token-for-the-admin-port"


def rules(emulator: Emulator, dp: int = RANKS) -> str:
    return POLICY.format(url=emulator.url, dp=dp)


@pytest.fixture
async def emulator() -> AsyncIterator[Emulator]:
    async with Emulator(dp=RANKS) as emulator:
        yield emulator


@pytest.fixture
async def gateway(emulator: Emulator) -> AsyncIterator[Gateway]:
    settings = Settings(port=0, admin_port=0, drain_deadline_s=0.0, admin_token=SecretStr(TOKEN))
    async with Gateway(settings, load_text(rules(emulator), "policy.yaml", {})) as gateway:
        yield gateway


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=gateway.url, timeout=20) as client:
        yield client


async def ask(client: httpx.AsyncClient, said: str, **headers: str) -> str:
    """The name of the replica that serves it."""
    body = {"model": "emulated", "prompt": said}
    answer = await client.post("/v1/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.headers["x-tailgate-replica"]


async def test_forwarded_request_names_the_chosen_rank_and_never_one_from_the_client(
    emulator: Emulator, client: httpx.AsyncClient
) -> None:
    chosen = [
        await ask(client, f"{n} words", **{"X-data-parallel-rank": "7"}) for n in range(80)
    ]  # none is left out by chance
    sent = [
        [value for name, value in request.headers if name == "x-data-parallel-rank"]
        for request in emulator.replicas[0].requests
    ]
    assert sent == [[name.removeprefix("gpu#")] for name in chosen]
    assert set(chosen) == {f"gpu#{rank}" for rank in range(RANKS)}


async def test_a_conversation_stays_at_the_rank_that_has_its_prompt_cached(
    emulator: Emulator, client: httpx.AsyncClient
) -> None:
    talks = {n: f"Talk {n}: " + "word " * 600 for n in range(12)}  # all at one rank: one run in 200,000
    homes = {n: await ask(client, said) for n, said in talks.items()}
    assert len(set(homes.values())) > 1
    assert {n: await ask(client, said + "and so on") for n, said in talks.items()} == homes
    hits = [engine.model.cache.hit_tokens for engine in emulator.replicas[0].engines]
    assert [hit > 0 for hit in hits] == [f"gpu#{rank}" in homes.values() for rank in range(RANKS)]


async def test_admin_state_shows_each_rank_with_its_own_load(gateway: Gateway, client: httpx.AsyncClient) -> None:
    said = "word " * 1500
    home = await ask(client, said)

    def queries() -> dict[str, int | None]:
        (pool,) = gateway.controller.snapshot(0.0).pools
        return {view.name: view.sample.cache_queries if view.sample else None for view in pool.replicas}

    await until(lambda: bool(queries()[home]))
    assert {name: bool(count) for name, count in queries().items()} == {
        f"gpu#{rank}": f"gpu#{rank}" == home for rank in range(RANKS)
    }
    async with httpx.AsyncClient(base_url=gateway.admin_url) as admin:
        page = (await admin.get("/metrics")).text
    assert f'replica="{home}"' in page


async def test_draining_a_server_by_name_drains_all_its_ranks(gateway: Gateway) -> None:
    key = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(base_url=gateway.admin_url, headers=key) as admin:
        told = (await admin.post("/admin/drain", json={"replica": "gpu"})).json()
        assert told["message"] == "gpu gets no new requests; 0 under way there go on"
        assert {state for _, _, state, _ in gateway.controller.states()} == {"drained"}
        await admin.post("/admin/undrain", json={"replica": "gpu#1"})
    assert [state for _, _, state, _ in gateway.controller.states()] == ["drained", "up", "drained"]


async def test_reload_can_change_the_number_of_ranks(
    emulator: Emulator, gateway: Gateway, client: httpx.AsyncClient
) -> None:
    gateway.reloads.configure(load_text(rules(emulator, 2), "policy.yaml", {}))
    assert {await ask(client, f"{n} words") for n in range(12)} == {"gpu#0", "gpu#1"}
    gateway.reloads.configure(load_text(rules(emulator, 1), "policy.yaml", {}))
    assert await ask(client, "more words") == "gpu"
    assert emulator.replicas[0].requests[-1].header("x-data-parallel-rank") is None
    gateway.reloads.configure(load_text(rules(emulator, RANKS), "policy.yaml", {}))
    assert len({await ask(client, f"{n} words") for n in range(24)}) == RANKS
