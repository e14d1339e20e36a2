"""Servers with different models behind plain `serve --replica A --replica B`: none gets a request for a model of the
other. A server that comes back at the same address with another model is asked for its list first.
"""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from gateway.app import Gateway
from gateway.policy import load
from gateway.policy.builtin import builtin
from gateway.settings import Settings

from .capture import Capture
from .conftest import Connect, GatewayFactory
from .policies import rules
from .raw import MODEL, chat, request
from .waiting import SOAK, until

TIMES = 100 if SOAK else 20
SETTINGS = Settings(port=0, admin_port=0, drain_deadline_s=0.0)


def asked(capture: Capture) -> set[str]:
    """Names of the models in the requests that a server got."""
    return {json.loads(call.body)["model"] for call in capture.calls}


async def lists_are_read(gw: Gateway, *captures: Capture) -> None:
    await until(lambda: all(any(call.path == "/v1/models" for call in capture.probes) for capture in captures))
    await until(lambda: all(gw.board.known(pool) is not None for pool in gw.handler.policy.pools.values()))


async def test_each_of_two_servers_gets_only_requests_for_its_model(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    async with Capture() as other:
        capture.models, other.models = ["a"], ["b"]
        gw = await gateway(builtin([capture.url, other.url]))
        await lists_are_read(gw, capture, other)
        client = await connect(gw.url)
        for number in range(60):
            answer = await client.ask(chat(model="ab"[number % 2], stream=number % 3 == 0))
            assert answer.status == 200
        assert (asked(capture), asked(other)) == ({"a"}, {"b"})
        assert (len(capture.calls), len(other.calls)) == (30, 30)


async def test_listing_is_the_union_and_a_model_that_nobody_lists_is_404_with_the_names(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    async with Capture() as other:
        capture.models, other.models = ["a"], ["b"]
        gw = await gateway(builtin([capture.url, other.url]))
        await lists_are_read(gw, capture, other)
        client = await connect(gw.url)
        listed = json.loads((await client.ask(request("/v1/models"))).body)
        assert {entry["id"] for entry in listed["data"]} == {"a", "b"}
        answer = await client.ask(chat(model="c"))
        error = json.loads(answer.body)["error"]
        assert (answer.status, error["code"], error["param"]) == (404, "model_not_found", "model")
        assert error["message"] == "The model `c` does not exist. Listed: `a`, `b`."
        assert not capture.calls
        assert not other.calls


async def test_server_that_comes_back_with_another_model_gets_no_request_for_the_old_one(
    gateway: GatewayFactory, connect: Connect
) -> None:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(Capture())
        port = int(first.url.rsplit(":", 1)[1])
        first.models = ["a"]
        gw = await gateway(builtin([first.url]))
        await lists_are_read(gw, first)
        client = await connect(gw.url)
        assert (await client.ask(chat(model="a"))).status == 200
        await first.stop()
        second = Capture()
        second.models = ["b"]
        await second.start(port)
        stack.push_async_callback(second.stop)
        statuses = [(await client.ask(chat(model="a"))).status for _ in range(10)]
        assert set(statuses) <= {404, 502, 503}
        assert statuses[-1] == 404
        assert asked(second) == set()
        assert (await client.ask(chat(model="b"))).status == 200


async def test_request_is_not_sent_to_an_address_that_refused_it_before_its_models_are_read(
    gateway: GatewayFactory, connect: Connect
) -> None:
    """The list is read by the attempt itself, so no health check has to come first."""
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(Capture())
        port = int(first.url.rsplit(":", 1)[1])
        first.models = ["a"]
        gw = await gateway(rules(first.url, pool="health: {interval: 1h, failures: 1000}").replace(MODEL, "a"))
        await lists_are_read(gw, first)
        client = await connect(gw.url)
        await first.stop()
        assert (await client.ask(chat(model="a"))).status in (502, 503)
        second = Capture()
        second.models = ["b"]
        await second.start(port)
        stack.push_async_callback(second.stop)
        for _ in range(3):
            assert (await client.ask(chat(model="a"))).status in (404, 502, 503)
        assert not second.calls


async def test_servers_without_a_list_are_used_as_before(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    async with Capture() as other:
        for each in (capture, other):
            each.statuses["/v1/models"] = "404 Not Found"
        gw = await gateway(rules(capture.url, other.url))
        client = await connect(gw.url)
        await until(lambda: all(any("/v1/models" in c.line for c in each.probes) for each in (capture, other)))
        for connection in capture.connections + other.connections:
            connection.transport.close()
        assert {(await client.ask(chat())).status for _ in range(20)} == {200}
        assert capture.calls
        assert other.calls


@pytest.mark.parametrize("status", ["401 Unauthorized", "404 Not Found", "405 Method Not Allowed"])
async def test_openai_server_without_the_health_check_stays_in_use_without_traffic(
    gateway: GatewayFactory, capture: Capture, connect: Connect, status: str
) -> None:
    capture.statuses = {"/health": status, "/v1/models": status}
    gw = await gateway(rules(capture.url, pool="engine: openai, health: {interval: 10ms}"))
    await until(lambda: len(capture.probes) >= 8)
    client = await connect(gw.url)
    assert (await client.ask(chat())).status == 200


async def test_address_that_comes_back_with_another_model_many_times_gets_no_request_for_the_old_one(
    gateway: GatewayFactory, connect: Connect, tmp_path: Path
) -> None:
    """Half of the times the address leaves the file of replicas meanwhile, half of the times only its process ends."""
    pools = (
        "{discover: {file: replicas.json, hold_down: none}, health: {interval: 10ms, failures: 1000, slow_start: none}}"
    )
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        f"apiVersion: tailgate/v1\nmodels: {{a: {{pools: [main]}}, b: {{pools: [main]}}}}\n"
        f"pools: {{main: {pools}}}\ntiers: {{free: {{retry: {{budget: 100%}}}}}}\n"
    )

    def publish(*ports: int) -> None:
        (tmp_path / "new").write_text(json.dumps([{"targets": [f"127.0.0.1:{port}" for port in ports]}]))
        (tmp_path / "new").replace(tmp_path / "replicas.json")

    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(Capture())
        port = int(first.url.rsplit(":", 1)[1])
        publish(port)
        first.models = ["b"]
        gw = await stack.enter_async_context(Gateway(SETTINGS, load(policy), policy))
        clients = [await connect(gw.url) for _ in range(2)]
        server = first
        for number in range(TIMES):
            model, other = ("a", "b") if number % 2 else ("b", "a")
            for client, name in zip(clients, (model, other), strict=True):
                client.send(chat(model=name))
            answers = [(await client.response()).status for client in clients]
            assert answers[1] != 200
            await until(lambda model=model: gw.board.known(gw.handler.policy.pools["main"]) == {model})
            await until(gw.controller.alive)
            assert (await clients[0].ask(chat(model=model))).status == 200
            assert asked(server) <= {model}
            if number % 10 == 5:
                publish()
                await until(lambda: not gw.handler.policy.pools["main"].replicas)
            await server.stop()
            if number % 10 == 5:
                publish(port)
                await until(lambda: gw.handler.policy.pools["main"].replicas)
            server = Capture()
            server.models = [other]
            await server.start(port)
        await server.stop()
