"""Listed LoRA adapters are models: requests name them, and go to the replicas that have them."""

from __future__ import annotations

import json

from gateway.app import Gateway
from loadtests.emulator import Emulator

from .conftest import Connect, EmulatorFactory, GatewayFactory
from .raw import MODEL, chat, head, request
from .waiting import until


def rules(*urls: str, model: str = "pools: [main]", name: str = "llama") -> str:
    return f"""\
apiVersion: tailgate/v1
models: {{"{name}": {{{model}}}}}
pools: {{main: {{replicas: [{", ".join(urls)}], slots: 8, health: {{scrape_interval: 50ms}}}}}}
tiers: {{free: {{max_tokens: {{default: 4, limit: 8}}}}}}
"""


async def listed(gw: Gateway, *names: str) -> None:
    """Wait until the lists of models were read."""
    await until(lambda: set(names) <= {model["id"] for model in gw.board.listing(gw.handler.policy)})


async def models(gw: Gateway, connect: Connect) -> dict[str, str | None]:
    client = await connect(gw.url)
    return {
        model["id"]: model["parent"] for model in (await client.ask(head("/v1/models", method="GET"))).json()["data"]
    }


async def test_an_adapter_is_listed_and_served_by_the_replica_that_has_it(
    gateway: GatewayFactory, emulator: EmulatorFactory, connect: Connect
) -> None:
    plain, able = await emulator(), await emulator(adapters=("sql", "chat"), max_loras=2)
    gw = await gateway(rules(plain.url, able.url, model=f"pools: [main], upstream: {MODEL}"))
    await listed(gw, "sql", "chat")
    assert await models(gw, connect) == {"llama": None, "sql": "llama", "chat": "llama"}
    client = await connect(gw.url)
    for name in ("sql", "chat", "sql", "chat"):
        answer = await client.ask(chat(model=name))
        assert (answer.status, answer.json()["model"]) == (200, name)
    assert [json.loads(received.body)["model"] for received in able.replicas[0].requests] == ["sql", "chat"] * 2
    admin = await connect(gw.admin_url)
    page = (await admin.ask(head("/metrics", method="GET"))).body.decode()
    assert 'tailgate_adapter_requests_total{adapter="sql",model="llama",outcome="ok"} 2.0' in page
    assert 'tailgate_requests_total{model="llama",outcome="ok",pool="main",reason="",tier="free"} 4.0' in page
    assert (await client.ask(chat(model="other"))).status == 404


async def test_explain_of_an_adapter_considers_the_replicas_that_list_it(
    gateway: GatewayFactory, emulator: EmulatorFactory, connect: Connect
) -> None:
    plain, able = await emulator(), await emulator(adapters=("sql",))
    gw = await gateway(rules(plain.url, able.url, model=f"pools: [main], upstream: {MODEL}"))
    await listed(gw, "sql")
    admin = await connect(gw.admin_url)
    found = (await admin.ask(request("/admin/explain", b'{"model": "sql"}'))).json()
    assert found["best"]["replica"] == able.url.removeprefix("http://")
    assert [one["why"] for one in found["left_out"]] == ["it does not list the adapter sql"]
    unknown = await admin.ask(request("/admin/explain", b'{"model": "other"}'))
    assert unknown.status == 400
    assert "known: llama, and LoRA adapters that replicas list" in unknown.json()["detail"]


async def test_adapter_is_not_found_if_the_policy_serves_no_adapters(
    gateway: GatewayFactory, emulator: EmulatorFactory, connect: Connect
) -> None:
    able = await emulator(adapters=("sql",))
    gw = await gateway(rules(able.url, model=f"pools: [main], upstream: {MODEL}, adapters: none"))
    await able.replicas[0].until(lambda replica: replica.connections_total >= 3)
    assert await models(gw, connect) == {"llama": None}
    client = await connect(gw.url)
    assert (await client.ask(chat(model="sql"))).status == 404


async def test_adapter_under_a_catch_all_goes_to_a_replica_that_lists_it(
    gateway: GatewayFactory, emulator: EmulatorFactory, connect: Connect
) -> None:
    plain, able = await emulator(), await emulator(adapters=("sql",))
    gw = await gateway(rules(plain.url, able.url, name="*"))
    await listed(gw, "sql", MODEL)
    client = await connect(gw.url)
    for _ in range(6):
        assert (await client.ask(chat(model="sql"))).status == 200
    assert len(able.replicas[0].requests) == 6


async def test_adapter_limit_is_read_from_the_gauge_of_the_engine(
    gateway: GatewayFactory, emulator: EmulatorFactory
) -> None:
    able: Emulator = await emulator(adapters=("sql", "chat"), max_loras=2)
    gw = await gateway(rules(able.url, model=f"pools: [main], upstream: {MODEL}"))
    (name,) = (replica.name for replica in gw.handler.policy.pools["main"].replicas)
    replica = gw.controller.state.fleet.replica(name)
    assert replica is not None
    await until(lambda: replica.adapters.limit is not None and replica.adapters.listed)
    assert replica.adapters.limit == 2
    assert replica.adapters.listed == {"sql", "chat"}


async def test_the_fallback_continues_its_own_response_whatever_adapter_was_asked_for(
    gateway: GatewayFactory, emulator: EmulatorFactory, connect: Connect
) -> None:
    able, other = await emulator(adapters=("sql",)), await emulator(responses_store=True)
    gw = await gateway(f"""\
apiVersion: tailgate/v1
models: {{llama: {{pools: [main], upstream: {MODEL}}}, small: {{pools: [spare], upstream: {MODEL}}}}}
pools: {{main: {{replicas: [{able.url}]}}, spare: {{replicas: [{other.url}]}}}}
tiers: {{free: {{fallback: small, max_tokens: {{default: 4, limit: 8}}, caps: {{stored_responses: true}}}}}}
""")
    await listed(gw, "sql")
    gw.driver.drain(able.url.removeprefix("http://"), True)
    client = await connect(gw.url)
    previous: dict[str, str] = {}
    for _ in range(3):
        body = json.dumps({"model": "sql", "input": "hi", **previous}).encode()
        answer = await client.ask(request("/v1/responses", body))
        assert answer.status == 200, answer.body
        previous = {"previous_response_id": answer.json()["id"]}
    assert [json.loads(received.body)["model"] for received in other.replicas[0].requests] == [MODEL] * 3
