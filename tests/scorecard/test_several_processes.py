"""`tailgate serve --workers 2`: two relays and a decider serve as one process does, whichever of them ends."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.observe.journal.replay import in_order, replay
from tests.certificates import Authority

from .capture import DONE, LAST_CHUNK, STREAM_HEAD, USAGE, Answer, Call, Capture, token
from .conftest import Connect
from .policies import rules
from .process import Serving, serving
from .raw import Client, chat
from .waiting import DEADLINE_S, until

EMPTY: dict[str, Any] = {"relays": [], "pools": [], "policy": {"generation": 0}, "connections": 0}
KEYS = {"key-of-acme-0000": "acme"}
STREAMS = 200


@asynccontextmanager
async def two_relays(folder: Path, policy: str, **environment: str) -> AsyncIterator[Serving]:
    environment = {"TAILGATE_WORKERS": "2", **environment}
    async with serving(folder, policy, **environment) as served:  # type: ignore[arg-type]
        try:
            yield served
        except BaseException as error:
            error.add_note(served.written.decode())
            raise
        if served.process.returncode is None:
            served.signal(signal.SIGTERM)
            assert await served.exit_code() == 0, served.written.decode()
        assert b"a bug of the gateway" not in served.written, served.written.decode()


async def state_of(served: Serving) -> dict[str, Any]:
    async with httpx.AsyncClient() as client:
        try:
            found: dict[str, Any] = (await client.get(f"{served.admin_url}/admin/state")).json()
        except httpx.TransportError:
            return EMPTY  # between two deciders
        return found


async def seen(served: Serving, condition: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """The state, once it meets a condition."""
    async with asyncio.timeout(60):
        while True:
            state = await state_of(served)
            if condition(state):
                return state
            await asyncio.sleep(0.02)


def in_flight(state: dict[str, Any]) -> int:
    return sum(replica["in_flight"] for pool in state["pools"] for replica in pool["replicas"])


def begins(call: Call) -> Answer | None:
    """A stream that begins, and goes on when the test says so; anything else is answered at once."""
    if b'"stream":true' not in call.body:
        return Answer(STREAM_HEAD + token() + USAGE + DONE + LAST_CHUNK)
    return Answer(STREAM_HEAD + token("one"))


async def begun(connect: Connect, url: str, count: int) -> list[Client]:
    """Clients whose streams have begun."""
    clients = [await connect(url) for _ in range(count)]
    for client in clients:
        client.send(chat(stream=True))
    for client in clients:
        assert (await client.head())[0] == 200
        assert b"one" in await client.chunk()
    return clients


def go_on(capture: Capture) -> None:
    for call in capture.calls:
        if b'"stream":true' in call.body:
            call.send(token("two", "stop") + USAGE + DONE + LAST_CHUNK)
            call.finish()


async def ends(client: Client) -> bool:
    """Whether the stream comes to its end."""
    try:
        return any(b"[DONE]" in part for part in await client.rest_of_chunks())
    except (AssertionError, asyncio.IncompleteReadError, ConnectionError):
        return False


async def test_connections_are_spread_and_counted_over_all_relays(
    tmp_path: Path, capture: Capture, connect: Connect
) -> None:
    capture.answer = begins
    async with two_relays(tmp_path, rules(capture.url)) as served:
        clients = await begun(connect, served.url, 8)
        state = await seen(served, lambda state: sum(relay["requests"] for relay in state["relays"]) == 8)
        assert [relay["requests"] for relay in state["relays"]] == [4, 4]
        assert state["connections"] == 8
        assert in_flight(state) == 8
        async with httpx.AsyncClient() as admin:
            page = (await admin.get(f"{served.admin_url}/metrics")).text
        for relay in state["relays"]:
            assert f'tailgate_relay_requests{{relay="{relay["number"]}"}} 4.0' in page
            assert f'tailgate_relay_connections{{relay="{relay["number"]}"}} 4.0' in page
            assert f'tailgate_relay_loop_lag_seconds{{relay="{relay["number"]}"}}' in page
        go_on(capture)
        assert all([await ends(client) for client in clients])
        state = await seen(served, lambda state: not in_flight(state))
        assert state["tiers"][0]["total"]["finished"] == 8


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes in /proc")
async def test_relay_that_hangs_shows_in_the_loop_lag_of_the_gateway(tmp_path: Path, capture: Capture) -> None:
    async with two_relays(tmp_path, rules(capture.url)) as served:
        state = await seen(served, lambda state: sum(relay["pid"] > 0 for relay in state["relays"]) == 2)
        relays = state["relays"]
        os.kill(relays[0]["pid"], signal.SIGSTOP)
        try:
            state = await seen(served, lambda state: state["loop_lag_s"] > 3)
        finally:
            os.kill(relays[0]["pid"], signal.SIGCONT)
        assert state["relays"][0]["lag_s"] > 3


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes in /proc")
async def test_relay_that_hangs_gets_no_new_clients(tmp_path: Path, capture: Capture, connect: Connect) -> None:
    async with two_relays(tmp_path, rules(capture.url)) as served:
        state = await seen(served, lambda state: sum(relay["pid"] > 0 for relay in state["relays"]) == 2)
        os.kill(state["relays"][0]["pid"], signal.SIGSTOP)
        try:
            in_a_row = 0
            async with asyncio.timeout(DEADLINE_S):
                while in_a_row < 20:  # with as many connections as the other, it would get every second one
                    client = await connect(served.url)
                    client.send(chat())
                    answer, _ = await asyncio.wait([asyncio.create_task(client.response())], timeout=2.0)
                    in_a_row = in_a_row + 1 if answer else 0
        finally:
            os.kill(state["relays"][0]["pid"], signal.SIGCONT)


async def test_relay_that_is_killed_loses_its_own_streams_alone_and_is_replaced(
    tmp_path: Path, capture: Capture, connect: Connect
) -> None:
    capture.answer = begins
    async with two_relays(tmp_path, rules(capture.url, slots=STREAMS), TAILGATE_WORKERS="4") as served:
        clients = await begun(connect, served.url, STREAMS)
        state = await seen(served, lambda state: sum(relay["requests"] for relay in state["relays"]) == STREAMS)
        killed = max(state["relays"], key=lambda relay: int(relay["requests"]))
        rest = STREAMS - killed["requests"]
        os.kill(killed["pid"], signal.SIGKILL)
        await seen(served, lambda state: in_flight(state) == rest)
        assert (await (await connect(served.url)).ask(chat())).status == 200, "the others serve at once"
        go_on(capture)
        assert sum([await ends(client) for client in clients]) == rest
        state = await seen(served, lambda state: len(state["relays"]) == 4 and not in_flight(state))
        assert killed["number"] not in [relay["number"] for relay in state["relays"]]


async def test_decider_that_is_killed_cuts_no_stream_and_its_successor_counts_right(
    tmp_path: Path, capture: Capture, connect: Connect
) -> None:
    capture.answer = begins
    policy = rules(capture.url, keys=KEYS, slots=2 * STREAMS, tier=f"limits: {{concurrency: {STREAMS + 1}}}")
    async with two_relays(tmp_path, policy) as served:
        key = "Authorization: Bearer key-of-acme-0000"
        clients = [await connect(served.url) for _ in range(STREAMS)]
        for client in clients:
            client.send(chat(key, stream=True))
            assert (await client.head())[0] == 200
            assert b"one" in await client.chunk()
        before = deciders_of(served)[0]
        os.kill(before, signal.SIGKILL)
        new = await connect(served.url)
        assert (await new.ask(chat(key))).status == 200, "it waited for the successor"
        state = await seen(served, lambda state: len(state["relays"]) == 2)
        assert deciders_of(served)[0] != before
        assert in_flight(state) == STREAMS
        more = [await connect(served.url) for _ in range(2)]
        more[0].send(chat(key, stream=True))
        assert (await more[0].head())[0] == 200
        refused = await more[1].ask(chat(key))
        assert (refused.status, refused.reason) == (429, "limit-concurrency"), "all adopted, one new"
        go_on(capture)
        assert all([await ends(client) for client in (*clients, more[0])])
        state = await seen(served, lambda state: not in_flight(state))
        assert not any(tenant["in_flight"] for tenant in state["tenants"])


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes in /proc")
async def test_relay_is_replaced_once_the_files_that_the_policy_names_can_be_read_again(tmp_path: Path) -> None:
    certificate, _ = Authority(tmp_path).issue("gateway")
    key = tmp_path / "gateway.key"
    policy = rules("https://127.0.0.1:1", pool=f"tls: {{cert_file: {certificate}, key_file: {key}}}")
    async with two_relays(tmp_path, policy) as served:
        state = await seen(served, lambda state: sum(relay["pid"] > 0 for relay in state["relays"]) == 2)
        good = key.read_bytes()
        key.write_text("no key")
        os.kill(state["relays"][0]["pid"], signal.SIGKILL)
        await until(lambda: b"the next relay cannot begin" in served.written)
        key.write_bytes(good)
        await seen(served, lambda state: sum(relay["pid"] > 0 for relay in state["relays"]) == 2)


def deciders_of(served: Serving) -> list[int]:
    """Process ids of the one that decides, and of its successor if there is one yet."""
    parent = served.process.pid
    found = []
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            if b"gateway.workers.decider" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(int(child))
    return found


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes in /proc")
async def test_successor_of_a_decider_is_there_before_it_is_needed(
    tmp_path: Path, capture: Capture, connect: Connect
) -> None:
    async with two_relays(tmp_path, rules(capture.url)) as served:
        for _ in range(2):
            await until(lambda: len(deciders_of(served)) == 2)
            present, successor = deciders_of(served)
            assert (await state_of(served))["pid"] == present
            os.kill(present, signal.SIGKILL)
            await seen(served, lambda state, pid=successor: state.get("pid") == pid)
            client = await connect(served.url)
            assert (await client.ask(chat())).status == 200


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes in /proc")
async def test_all_processes_are_replaced_without_a_lost_request_or_stream(
    tmp_path: Path, capture: Capture, connect: Connect
) -> None:
    capture.answer = begins
    async with two_relays(tmp_path, rules(capture.url)) as served:
        streams = await begun(connect, served.url, 4)
        old = [relay["number"] for relay in (await seen(served, lambda state: len(state["relays"]) == 2))["relays"]]
        served.signal(signal.SIGUSR2)
        asked = 0
        async with httpx.AsyncClient(base_url=served.url, timeout=60) as client:

            async def asks() -> None:
                nonlocal asked
                while b"all processes are replaced\n" not in served.written:
                    answer = await client.post("/v1/chat/completions", json=BODY)
                    assert answer.status_code == 200, answer.text
                    asked += 1
                    if asked == 20:
                        go_on(capture)

            async with asyncio.timeout(60):
                await asks()
        assert asked > 20
        assert all([await ends(client) for client in streams])
        state = await seen(served, lambda state: len(state["relays"]) == 2 and not in_flight(state))
        assert not set(old) & {relay["number"] for relay in state["relays"]}


BODY = {"model": "default", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}


async def test_processes_are_not_replaced_while_the_policy_would_keep_the_next_from_beginning(
    tmp_path: Path, capture: Capture, connect: Connect
) -> None:
    async with two_relays(tmp_path, rules(capture.url)) as served:
        before = await seen(served, lambda state: sum(relay["pid"] > 0 for relay in state["relays"]) == 2)
        (tmp_path / "policy.yaml").write_text("kind: Policy\npools: 7\n")
        served.signal(signal.SIGUSR2)
        await until(lambda: b"processes that are not replaced serve on: " in served.written)
        client = await connect(served.url)
        assert (await client.ask(chat())).status == 200
        pids = [relay["pid"] for relay in (await state_of(served))["relays"]]
        assert pids == [relay["pid"] for relay in before["relays"]]


async def test_reload_reaches_every_relay(tmp_path: Path, capture: Capture, connect: Connect) -> None:
    async with two_relays(tmp_path, rules(capture.url)) as served:
        clients = [await connect(served.url) for _ in range(4)]
        for client in clients:
            assert (await client.ask(chat())).status == 200
        (tmp_path / "policy.yaml").write_text(rules(capture.url, keys=KEYS))
        served.signal(signal.SIGHUP)
        await seen(served, lambda state: state["policy"]["generation"] == 2)
        for client in clients:
            assert (await client.ask(chat())).status == 401
            assert (await client.ask(chat("Authorization: Bearer key-of-acme-0000"))).status == 200


async def test_request_whose_tier_a_reload_removes_before_its_end_is_served_in_the_present_tier_of_its_key(
    tmp_path: Path, capture: Capture, connect: Connect
) -> None:
    async with two_relays(tmp_path, rules(capture.url, keys=KEYS)) as served:
        late, request = await connect(served.url), chat("Authorization: Bearer key-of-acme-0000")
        late.send(request[:-1])
        others = [await connect(served.url) for _ in range(3)]
        new = rules(capture.url, keys={**KEYS, "key-of-zoo-00000": "zoo"}).replace("free", "paid")
        (tmp_path / "policy.yaml").write_text(new)
        served.signal(signal.SIGHUP)
        known = chat("Authorization: Bearer key-of-zoo-00000")
        async with asyncio.timeout(DEADLINE_S):
            for other in others:  # each relay has the policy
                while (await other.ask(known)).status != 200:  # noqa: ASYNC110 - each is a request
                    await asyncio.sleep(0.01)
        late.send(request[-1:])
        assert (await late.response()).status == 200


async def test_concurrency_of_a_tenant_counts_over_all_relays(
    tmp_path: Path, capture: Capture, connect: Connect
) -> None:
    capture.answer = begins
    async with two_relays(tmp_path, rules(capture.url, tier="limits: {concurrency: 2}")) as served:
        held = await begun(connect, served.url, 2)
        others = [await connect(served.url) for _ in range(4)]
        for other in others:
            assert (await other.ask(chat())).reason == "limit-concurrency"
        go_on(capture)
        assert all([await ends(client) for client in held])
        for other in others:
            assert (await other.ask(chat())).status == 200, "a client that has read its end meets a free place"


async def test_quota_that_is_raised_by_a_reload_is_raised_at_every_relay(
    tmp_path: Path, capture: Capture, connect: Connect
) -> None:
    async with two_relays(tmp_path, rules(capture.url, tier="limits: {requests: 1/month}")) as served:
        clients = [await connect(served.url) for _ in range(4)]
        answers = [await client.ask(chat()) for client in clients]
        assert [answer.status for answer in answers] == [200, 429, 429, 429]
        assert answers[3].reason == "limit-quota"
        (tmp_path / "policy.yaml").write_text(rules(capture.url, tier="limits: {requests: 9/month}"))
        served.signal(signal.SIGHUP)
        await seen(served, lambda state: state["policy"]["generation"] == 2)
        long = chat(content="Hello " * 20_000)  # relays may refuse it unread
        assert [(await client.ask(long)).status for client in clients] == [200] * 4


async def test_every_relay_sends_a_conversation_where_its_beginning_was_read(
    tmp_path: Path, capture: Capture, connect: Connect
) -> None:
    async with Capture() as other, two_relays(tmp_path, rules(capture.url, other.url)) as served:
        clients = [await connect(served.url) for _ in range(4)]
        topics = [f"topic {letter}, " for letter in "abcde"]
        for topic in topics:
            for client in clients:
                assert (await client.ask(chat(content=topic * 400))).status == 200
        for topic in topics:
            counts = [sum(topic.encode() in call.body for call in each.calls) for each in (capture, other)]
            assert sorted(counts) == [0, 4]


async def test_journal_of_a_decider_is_replayed_bit_for_bit(tmp_path: Path, capture: Capture, connect: Connect) -> None:
    journal = tmp_path / "calls.jsonl"
    async with two_relays(tmp_path, rules(capture.url), TAILGATE_JOURNAL=str(journal)) as served:
        clients = [await connect(served.url) for _ in range(4)]
        for stream in (False, True):
            for client in clients:
                assert (await client.ask(chat(stream=stream))).status == 200
    report = replay(in_order([journal]), lambda _: None)
    assert report.calls > 16
    assert report.divergence is None


async def test_notice_before_a_drain_is_given_once_and_not_again_by_the_decider(
    tmp_path: Path, capture: Capture
) -> None:
    """The supervisor kills a decider that waits for long after the relays have ended."""
    async with two_relays(tmp_path, rules(capture.url), TAILGATE_DRAIN_NOTICE_S="0.1") as served:
        pass
    assert served.written.count(b"not ready: requests are still accepted") == 1


async def test_decider_that_cannot_begin_ends_the_gateway_with_its_message(tmp_path: Path, capture: Capture) -> None:
    with pytest.raises(AssertionError, match=r"cannot be written|No such file"):
        async with two_relays(tmp_path, rules(capture.url), TAILGATE_JOURNAL=str(tmp_path / "no" / "folder")):
            pass


@pytest.mark.parametrize("workers", [1, 2])
async def test_systemd_hears_when_the_gateway_serves_and_stops(tmp_path: Path, capture: Capture, workers: int) -> None:
    place = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(place)
        manager.setblocking(False)
        environment = {"TAILGATE_WORKERS": str(workers), "NOTIFY_SOCKET": place}
        async with serving(tmp_path, rules(capture.url), **environment) as served:  # type: ignore[arg-type]
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(60):
                assert await loop.sock_recv(manager, 100) == b"READY=1"
                served.signal(signal.SIGTERM)
                assert await loop.sock_recv(manager, 100) == b"STOPPING=1"
            assert await served.exit_code() == 0
