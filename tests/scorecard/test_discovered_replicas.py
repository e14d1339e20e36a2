"""Replicas that are found come into use at once, and leave without a failed request."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from dnslib import RCODE, RR, SRV, A

from gateway.app import Gateway
from gateway.core.snapshot import ReplicaState
from gateway.policy import load
from gateway.settings import Settings
from tests.fleet.zone import Zone, served

from .capture import Call, Capture, never, whole
from .conftest import Connect
from .policies import rules
from .raw import MODEL, Client, chat
from .test_several_processes import begins, begun, deciders_of, ends, go_on, seen, two_relays
from .waiting import until

OFTEN = "health: {interval: 20ms, scrape_interval: 1s, slow_start: none}"
TLS = Settings(port=0, admin_port=0, drain_deadline_s=0.0)


def publish(folder: Path, *groups: dict[str, object]) -> None:
    """Write the file of replicas as a whole."""
    (folder / "new").write_text(json.dumps(groups))
    (folder / "new").replace(folder / "replicas.json")


def targets(*captures: Capture | str, **labels: str) -> dict[str, object]:
    urls = [each if isinstance(each, str) else each.url for each in captures]
    return {"targets": [url.removeprefix("http://") for url in urls], "labels": labels}


@asynccontextmanager
async def serving(folder: Path, discover: str = "{file: replicas.json}", more: str = "") -> AsyncIterator[Gateway]:
    path = folder / "policy.yaml"
    path.write_text(rules(pool=f"discover: {discover}, {OFTEN}{more}"))
    async with Gateway(TLS, load(path), path) as gw:
        yield gw


@pytest.fixture
async def captures() -> AsyncIterator[list[Capture]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Capture()) for _ in range(4)]


def found(gw: Gateway) -> set[str]:
    return {spec.url for spec in gw.handler.policy.pools["main"].replicas}


async def test_replicas_of_a_file_serve_from_the_start_and_follow_its_changes(
    tmp_path: Path, captures: list[Capture], connect: Connect
) -> None:
    one, two, three, _ = captures
    publish(tmp_path, targets(one, two))
    async with serving(tmp_path) as gw:
        assert found(gw) == {one.url, two.url}
        client = await connect(gw.url)
        assert {(await client.ask(chat())).status for _ in range(10)} == {200}
        generation = gw.handler.policy.generation
        publish(tmp_path, targets(two, three), targets(three))
        await until(lambda: found(gw) == {two.url, three.url})
        assert gw.handler.policy.generation > generation
        one.calls.clear()
        assert {(await client.ask(chat())).status for _ in range(20)} == {200}
        await until(lambda: any(call.path == "/v1/models" for call in three.probes))
        assert not one.calls
        await client.close()


async def test_damaged_file_of_replicas_removes_nothing_and_is_reported(
    tmp_path: Path, captures: list[Capture], connect: Connect
) -> None:
    publish(tmp_path, targets(captures[0]))
    async with serving(tmp_path) as gw, httpx.AsyncClient() as admin:
        (tmp_path / "replicas.json").write_text("[{")
        await until(lambda: gw.finder.reports()[0].error)
        client = await connect(gw.url)
        assert (await client.ask(chat())).status == 200
        metrics = (await admin.get(f"{gw.admin_url}/metrics")).text
        assert 'tailgate_discovery_ok{pool="main",source="file"} 0.0' in metrics
        assert 'tailgate_discovery_addresses{pool="main",source="file"} 1.0' in metrics
        sources = (await admin.get(f"{gw.admin_url}/admin/state")).json()["sources"]
        assert "cannot be parsed" in sources[0]["error"]
        publish(tmp_path, targets(captures[0]))
        await until(lambda: not gw.finder.reports()[0].error)
        await client.close()


async def test_log_names_the_replicas_that_came_and_went_and_the_list_without_any(
    tmp_path: Path, captures: list[Capture], caplog: pytest.LogCaptureFixture
) -> None:
    one, two, _, _ = captures
    caplog.set_level(logging.INFO, "tailgate")
    async with serving(tmp_path) as gw:
        publish(tmp_path, targets(one))
        await until(lambda: found(gw) == {one.url})
        publish(tmp_path, targets(two))
        await until(lambda: found(gw) == {two.url})
        publish(tmp_path)
        await until(lambda: "lists no replicas" in caplog.text)
        await until(lambda: not found(gw))
        (tmp_path / "replicas.json").unlink()
        await until(lambda: gw.finder.reports()[0].error != "")
        assert caplog.messages[-1].endswith("No such file or directory; its replicas stay as they are")
    path = tmp_path / "replicas.json"
    lines = [line for line in caplog.messages if line.startswith(("pool main: ", "policy generation "))]
    assert lines[:6] == [
        f"pool main: its source file failed: {path} cannot be read: No such file or directory; it has found none yet",
        "pool main: its source file can be read again",
        f"pool main: 1 replica found, 1 ({one.url}) new, 0 gone",
        "policy generation 2 is in force: the same file, with other replicas or keys",
        f"pool main: 1 replica found, 1 ({two.url}) new, 1 ({one.url}) gone",
        "policy generation 3 is in force: the same file, with other replicas or keys",
    ]
    assert f"pool main: its source file lists no replicas: {path}" in lines


async def test_removed_replica_finishes_its_requests(tmp_path: Path, captures: list[Capture], connect: Connect) -> None:
    one, two, _, _ = captures
    one.answer = never
    publish(tmp_path, targets(one))
    async with serving(tmp_path) as gw:
        client = await connect(gw.url)
        client.send(chat())
        await one.until(lambda: one.calls)
        publish(tmp_path, targets(two))
        await until(lambda: found(gw) == {two.url})
        one.answer = Capture().answer
        answer = one.answer(one.calls[0])
        assert answer is not None
        one.calls[0].send(answer.data)
        assert (await client.response()).status == 200
        await client.close()


async def test_most_replicas_of_a_file_stay_when_it_loses_them_until_their_health_agrees(
    tmp_path: Path, captures: list[Capture]
) -> None:
    publish(tmp_path, targets(*captures))
    async with serving(tmp_path, "{file: replicas.json, hold_down: 1h}") as gw:
        publish(tmp_path)
        await until(lambda: len(found(gw)) == 3)
        assert gw.finder.reports()[0].held == 3
        for capture in captures:
            capture.well = False
        await until(lambda: not found(gw))
        assert not gw.controller.alive()


async def test_file_lists_replicas_of_several_pools_by_their_labels_each_once(
    tmp_path: Path, captures: list[Capture], caplog: pytest.LogCaptureFixture
) -> None:
    one, two, three, four = captures
    twin = three.url.replace("http:", "https:")
    publish(tmp_path, targets(one, two, four, pool="a"), targets(three, two, four, twin, pool="b"))
    path = tmp_path / "policy.yaml"
    path.write_text(
        f"""\
apiVersion: tailgate/v1
models: {{{MODEL}: {{pools: [a, b]}}}}
pools:
  a: {{replicas: [{four.url}], discover: {{file: {{path: replicas.json, labels: {{pool: a}}}}}}}}
  b: {{discover: {{file: {{path: replicas.json, labels: {{pool: b}}}}}}}}
tiers: {{free: {{}}}}
"""
    )
    async with Gateway(TLS, load(path), path) as gw:
        pools = gw.handler.policy.pools
        assert next(spec.url for spec in pools["a"].replicas) == four.url
        assert {spec.url for spec in pools["a"].replicas} == {four.url, one.url, two.url}
        assert {spec.url for spec in pools["b"].replicas} == {three.url}
    # Both pools read the file in threads: what the second does not get is named in one line or in two.
    refused = "pool b leaves these out, as another replica has the same host, port and path: "
    said = [line for line in caplog.messages if "leaves these out" in line]
    assert all(line.startswith(refused) for line in said)
    named = [url for line in said for url in line.removeprefix(refused).split("(")[1].rstrip(")").split(", ")]
    assert sorted(named) == sorted([two.url, four.url, twin])


async def test_reload_keeps_found_replicas_and_their_connections(
    tmp_path: Path, captures: list[Capture], connect: Connect
) -> None:
    publish(tmp_path, targets(captures[0]))
    async with serving(tmp_path) as gw:
        client = await connect(gw.url)
        assert (await client.ask(chat())).status == 200
        for _ in range(3):
            assert (await gw.reloads.reload()).ok
            assert (await client.ask(chat())).status == 200
        assert len(captures[0].traffic) == 1
        path = tmp_path / "policy.yaml"
        path.write_text(path.read_text().replace("replicas.json", "absent.json"))
        assert (await gw.reloads.reload()).ok
        assert (await client.ask(chat())).status == 200
        await client.close()


async def test_gateway_without_a_file_of_replicas_starts_and_refuses_with_no_replicas(
    tmp_path: Path, captures: list[Capture], connect: Connect
) -> None:
    async with serving(tmp_path) as gw:
        client = await connect(gw.url)
        answer = await client.ask(chat())
        assert (answer.status, answer.headers["x-tailgate-reason"]) == (503, "no-replicas")
        assert int(answer.headers["retry-after"]) >= 1
        publish(tmp_path, targets(captures[0]))
        async with asyncio.timeout(60):
            while (await client.ask(chat())).status != 200:  # noqa: ASYNC110 - each is a request
                await asyncio.sleep(0.01)
        await client.close()


async def test_changed_answers_of_dns_are_followed_under_load_without_a_failed_request(
    tmp_path: Path, captures: list[Capture], connect: Connect
) -> None:
    name = "_http._tcp.vllm.example."

    def publish_ports(zone: Zone, *captures: Capture) -> None:
        ports = [int(capture.url.rsplit(":", 1)[1]) for capture in captures]
        zone.records = {(name, "SRV"): [SRV(0, 0, port, "here.example.") for port in ports]}
        zone.additional = [RR("here.example.", rdata=A("127.0.0.1"))]

    with served() as (zone, server):
        publish_ports(zone, *captures[:2])
        discover = f"{{dns: {{name: {name}, type: SRV, server: '{server}', interval: 10ms}}, hold_down: 20ms}}"
        async with serving(tmp_path, discover) as gw:
            assert found(gw) == {capture.url for capture in captures[:2]}
            clients = [await connect(gw.url) for _ in range(4)]
            is_over = False

            async def load(client: Client) -> set[int]:
                statuses = set()
                while not is_over:
                    statuses.add((await client.ask(chat())).status)
                return statuses

            loads = [asyncio.create_task(load(client)) for client in clients]
            for some in ([1, 2], [2, 3], [3, 0], [0, 1]):
                publish_ports(zone, *(captures[number] for number in some))
                urls = {captures[number].url for number in some}
                await until(lambda urls=urls: found(gw) == urls)
                await until(lambda: all(state is ReplicaState.UP for _, _, state, _ in gw.controller.states()))
                zone.rcode = RCODE.SERVFAIL
                await until(lambda: gw.finder.reports()[0].error)
                assert found(gw) == urls
                zone.rcode = None
            is_over = True
            assert set().union(*await asyncio.gather(*loads)) == {200}
            for client in clients:
                await client.close()


async def test_pool_without_a_replica_holds_requests_calls_its_url_and_serves_them_when_one_comes(
    tmp_path: Path, captures: list[Capture], connect: Connect
) -> None:
    one, scaler, _, _ = captures
    publish(tmp_path)

    def scale_up(call: Call) -> None:
        publish(tmp_path, targets(one))

    scaler.answer = scale_up
    hold = f", hold: {{time: 60s, requests: 50, wake: {scaler.url}/wake}}"
    async with serving(tmp_path, more=hold) as gw, httpx.AsyncClient() as admin:
        clients = [await connect(gw.url) for _ in range(51)]
        for client in clients:
            client.send(chat())
        refused = await clients[50].response()
        assert (refused.status, refused.headers["x-tailgate-reason"]) == (503, "no-replicas")
        load = (await admin.get(f"{gw.admin_url}/loads")).json()["pools"][0]
        assert (load["held"], load["replicas"], load["free"]) == (50, 0, 0)
        assert {(await client.response()).status for client in clients[:50]} == {200}
        assert len(one.calls) == 50
        assert [call.line for call in scaler.calls] == ["POST /wake HTTP/1.1"]
        load = (await admin.get(f"{gw.admin_url}/loads")).json()["pools"][0]
        assert (load["held"], load["replicas"]) == (0, 1)
        for client in clients:
            await client.close()


async def test_changes_of_replicas_leave_the_history_of_policies_alone(tmp_path: Path, captures: list[Capture]) -> None:
    one, two, three, four = captures
    publish(tmp_path, targets(one))
    async with serving(tmp_path, "{file: replicas.json, hold_down: none}") as gw, httpx.AsyncClient() as admin:
        first = gw.handler.policy.generation
        for more in ((one, two), (one, two, three), (one, two, three, four), (two, three, four), (three, four)):
            publish(tmp_path, targets(*more))
            await until(lambda more=more: found(gw) == {each.url for each in more})
        assert gw.handler.policy.generation >= first + 5
        told = (await admin.get(f"{gw.admin_url}/admin/policy")).json()
        assert told["before"] == [], told


async def test_found_replicas_are_followed_by_every_relay(
    tmp_path: Path, captures: list[Capture], connect: Connect
) -> None:
    one, two, _, _ = captures
    publish(tmp_path, targets(one))
    policy = rules(pool=f"discover: {{file: {tmp_path}/replicas.json}}, {OFTEN}")
    async with two_relays(tmp_path, policy) as served:
        clients = [await connect(served.url) for _ in range(4)]

        def is_up(url: str) -> Callable[[dict[str, Any]], bool]:
            name = url.removeprefix("http://")
            return lambda state: any(
                replica["name"] == name and replica["state"] == "up"
                for pool in state["pools"]
                for replica in pool["replicas"]
            )

        await seen(served, is_up(one.url))
        for client in clients:
            assert (await client.ask(chat())).status == 200
        publish(tmp_path, targets(two))
        await seen(served, lambda state: is_up(two.url)(state) and not is_up(one.url)(state))
        one.calls.clear()
        for client in clients * 3:
            assert (await client.ask(chat())).status == 200
        assert not one.calls
        assert len(two.calls) == 12


async def test_gateway_begins_once_found_replicas_have_passed_their_first_checks(
    tmp_path: Path, captures: list[Capture], connect: Connect
) -> None:
    def slowly(call: Call) -> None:
        asyncio.get_running_loop().call_later(0.2, call.send, whole())

    one = captures[0]
    one.answer = slowly
    publish(tmp_path, targets(one))
    path = tmp_path / "policy.yaml"
    path.write_text(rules(pool="discover: {file: replicas.json}, health: {warmup: 1}"))
    async with Gateway(TLS, load(path), path) as gw:
        assert gw.controller.alive()


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes in /proc")
async def test_decider_that_is_killed_cuts_no_stream_of_a_found_replica_whose_checks_are_late(
    tmp_path: Path, captures: list[Capture], connect: Connect
) -> None:
    one = captures[0]
    one.answer = begins
    publish(tmp_path, targets(one))
    policy = rules(pool=f"discover: {{file: {tmp_path}/replicas.json}}, {OFTEN}")
    async with two_relays(tmp_path, policy) as served:
        clients = await begun(connect, served.url, 4)
        one.is_late = True
        os.kill(deciders_of(served)[0], signal.SIGKILL)
        await seen(served, lambda state: sum(relay["requests"] for relay in state["relays"]) == 4)
        go_on(one)
        assert all([await ends(client) for client in clients])
