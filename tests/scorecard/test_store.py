"""Two gateways share replicas over a real store. It may die, freeze, or answer nonsense: clients never notice."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from time import monotonic

import httpx
import pytest

from gateway.app import Gateway
from gateway.core.policy import ANONYMOUS, LimitKind
from gateway.core.sample import GatewayLoad, PoolLoad, ReplicaLoad
from gateway.core.snapshot import ReplicaState, Trust
from gateway.driving.leases import key_of
from gateway.driving.sharing import FACTS_KEY
from gateway.driving.store import KEY, Store, load_from_bytes, load_to_bytes
from gateway.observe.sources import StoreView
from gateway.observe.usage.database import UsageDatabase
from gateway.observe.usage.sharing import UsageSharing
from gateway.store_client import StoreError
from loadtests.experiments.real_store import SlowWay, url_of
from tests.stores import RealStore, needs_store, real_store

from .conftest import Connect, EmulatorFactory, GatewayFactory
from .policies import rules
from .raw import chat
from .state import queued
from .test_state_dir import answered
from .waiting import DEADLINE_S, until

LOAD = GatewayLoad(
    0.1, (ReplicaLoad("r1", 1, 2, 3, 4, 0.5, 6.25),), (PoolLoad("p", (("std", 1),), ((0, 2),)),), (("r2", "stalled"),)
)
FAULTS = ("killed", "frozen", "wrong type", "no rights", "no scripts", "full")


@pytest.fixture
async def store() -> AsyncIterator[RealStore]:
    async with real_store() as running:
        yield running


def view(gw: Gateway) -> StoreView:
    assert gw.store is not None
    return gw.store.view()


def others(gw: Gateway) -> int:
    """Requests of other gateways, as `gw` knows them."""
    snapshot = gw.controller.snapshot(monotonic())
    return sum(replica.others_in_flight for pool in snapshot.pools for replica in pool.replicas)


async def shares(sharing: UsageSharing) -> None:
    """An exchange succeeds, once no election is under way."""
    async with asyncio.timeout(60):
        await asyncio.to_thread(sharing.exchange)
        while sharing.error:
            await asyncio.to_thread(sharing.exchange)
    await sharing.aclose()


async def says(store: RealStore, text: str, *command: str) -> None:
    """Wait until the answer to a command has `text`."""
    async with asyncio.timeout(30):
        while True:
            if text in str(await store.tell(*command)):
                return
            await asyncio.sleep(0.05)


async def pair(gateway: GatewayFactory, policy: str, url: str) -> list[Gateway]:
    """Two gateways that hear each other."""
    both = [await gateway(policy, store=url) for _ in range(2)]
    for gw in both:
        await until(lambda gw=gw: view(gw).gateways == 1)
    return both


@needs_store
async def test_a_request_waits_for_slots_that_another_gateway_uses(
    gateway: GatewayFactory, emulator: EmulatorFactory, connect: Connect, store: RealStore
) -> None:
    fleet = await emulator(replicas=1, time_scale=0.05)
    one, other = await pair(gateway, rules(*fleet.urls, slots=2), store.url)
    busy = [await connect(one.url) for _ in range(2)]
    for client in busy:
        client.send(chat(stream=True, max_tokens=4000))
    await until(lambda: others(other) == 2)
    waiting = await connect(other.url)
    waiting.send(chat(max_tokens=1))
    await until(lambda: queued(other) == 1)
    assert others(one) == 0
    await busy[0].close()
    assert (await waiting.response()).status == 200


@needs_store
async def test_a_gateway_that_leaves_is_forgotten(
    gateway: GatewayFactory, emulator: EmulatorFactory, store: RealStore
) -> None:
    fleet = await emulator(replicas=1)
    one, other = await pair(gateway, rules(*fleet.urls), store.url)
    await one.drain()
    assert one.store is not None
    assert await store.tell("HEXISTS", KEY, one.store.name) in (0, False)
    await until(lambda: view(other).gateways == 0)
    await until(lambda: len(other.controller.state.others) == 0)


@needs_store
@pytest.mark.parametrize("fault", FAULTS)
async def test_clients_never_notice_that_the_store_is_away(
    gateway: GatewayFactory,
    emulator: EmulatorFactory,
    store: RealStore,
    caplog: pytest.LogCaptureFixture,
    fault: str,
) -> None:
    fleet = await emulator(replicas=1)
    one, other = await pair(gateway, rules(*fleet.urls), store.url)
    caplog.set_level(logging.INFO, "tailgate")
    caplog.clear()
    before = view(one).failures
    if fault == "killed":
        await store.kill()
    elif fault == "frozen":
        store.signal(signal.SIGSTOP)
    elif fault == "wrong type":
        await store.tell("SET", KEY, "text")
    elif fault == "full":
        await store.tell("CONFIG", "SET", "maxmemory", "1")
    else:
        await store.tell("ACL", "SETUSER", "default", "-hset" if fault == "no rights" else "-evalsha")
    await until(lambda: view(one).error and view(other).error)
    async with httpx.AsyncClient() as client:
        for gw in (one, other):
            answers = [
                await client.post(f"{gw.url}/v1/chat/completions", content=chat(max_tokens=1).split(b"\r\n\r\n", 1)[1])
                for _ in range(5)
            ]
            assert [answer.status_code for answer in answers] == [200] * 5
        metrics = (await client.get(f"{one.admin_url}/metrics")).text
        state = (await client.get(f"{one.admin_url}/admin/state")).json()
    assert "tailgate_store_up 0.0" in metrics
    assert state["store"]["error"]
    await until(lambda: view(one).failures >= before + 2)
    if fault == "killed":
        await store.start()
    elif fault == "frozen":
        store.signal(signal.SIGCONT)
    elif fault == "wrong type":
        await store.tell("DEL", KEY)
    elif fault == "full":
        await store.tell("CONFIG", "SET", "maxmemory", "0")
    else:
        await store.tell("ACL", "SETUSER", "default", "+hset", "+evalsha")
    for gw in (one, other):
        await until(lambda gw=gw: view(gw).gateways == 1 and not view(gw).error)
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("store: ")]
    outages = sum(" is away " in line for line in lines)
    assert outages == sum(" is back" in line for line in lines) >= 2
    assert outages < view(one).failures + view(other).failures, "an outage is logged once"


@needs_store
async def test_requests_go_on_beside_a_store_that_answers_late(
    gateway: GatewayFactory, emulator: EmulatorFactory, store: RealStore
) -> None:
    fleet = await emulator(replicas=1)

    async with SlowWay(store) as slow:
        slow.late_s = 0.2
        gw = await gateway(rules(*fleet.urls, tier="limits: {requests: 600/min}"), store=url_of(slow.port))
        async with httpx.AsyncClient() as client:
            for _ in range(20):
                body = chat(max_tokens=1).split(b"\r\n\r\n", 1)[1]
                assert (await client.post(f"{gw.url}/v1/chat/completions", content=body)).status_code == 200
        await gw.drain()


@needs_store
async def test_exchange_of_loads_ends_although_the_client_swallows_its_cancellation(
    store: RealStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`asyncio.wait_for` does so before Python 3.12, if the wait ends in the same turn of the loop."""
    cancelled = asyncio.Event()

    async def wait_for(work: Awaitable[object], _: float) -> object:
        done = await work
        if not cancelled.is_set():
            cancelled.set()
            with suppress(asyncio.CancelledError):
                exchange.cancel()
                await asyncio.sleep(0)
        return done

    monkeypatch.setattr("redis.asyncio.connection.asyncio.wait_for", wait_for)
    exchange = asyncio.create_task(Store(store.url, lambda _: LOAD, lambda *_: None).run())
    await cancelled.wait()
    await asyncio.wait([exchange], timeout=DEADLINE_S)
    assert exchange.cancelled()


@needs_store
async def test_store_is_not_away_after_one_lost_connection(
    gateway: GatewayFactory, emulator: EmulatorFactory, store: RealStore, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = await emulator(replicas=1)
    caplog.set_level(logging.INFO, "tailgate")
    one, other = await pair(gateway, rules(*fleet.urls), store.url)
    await store.tell("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    await until(lambda: view(one).failures and view(other).failures)
    for _ in range(4):  # rounds of one of them
        fields = await store.tell("HGETALL", KEY)
        async with asyncio.timeout(10):
            while await store.tell("HGETALL", KEY) == fields:
                pass
    assert not view(one).error
    assert " is away " not in caplog.text


@needs_store
async def test_many_gateways_that_died_together_are_deleted_from_a_distant_store_without_an_outage(
    store: RealStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.driving.store.KEEP_S", 1)
    for number in range(40):
        await store.tell("HSET", KEY, f"dead-{number}", load_to_bytes(LOAD, 1).decode())
    async with SlowWay(store) as slow:
        slow.late_s = 0.03
        alive = Store(url_of(slow.port), lambda _: LOAD, lambda *_: None)
        task = asyncio.create_task(alive.run())
        await says(store, f"[b'{alive.name}']", "HKEYS", KEY)
        assert alive.view().failures == 0
        task.cancel()
        await asyncio.wait([task])


@needs_store
async def test_an_emptied_store_is_filled_again_by_the_next_round(
    gateway: GatewayFactory, emulator: EmulatorFactory, store: RealStore
) -> None:
    fleet = await emulator(replicas=1)
    both = await pair(gateway, rules(*fleet.urls), store.url)
    await store.tell("FLUSHALL")
    fields = 0
    async with asyncio.timeout(10):
        while fields != len(both):
            fields = len(await store.tell("HKEYS", KEY))  # type: ignore[arg-type]
    assert [view(gw).failures for gw in both] == [0, 0]


@needs_store
async def test_a_value_that_no_gateway_wrote_is_logged_once_and_ignored(
    gateway: GatewayFactory, emulator: EmulatorFactory, store: RealStore, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = await emulator(replicas=1)
    await store.tell("HSET", KEY, "stranger", '[1, 7, 0.1, [["r", -5, 0, 0, 0, 0, 0]], [], []]')
    await store.tell("HSET", KEY, "newer", "[9, 1, 0.1, [], [], []]")
    await store.tell("HSET", KEY, "huge", f'[1, 7, 0.1, [["r", {10**400}, 0, 0, 0, 0, 0]], [], []]')
    both = await pair(gateway, rules(*fleet.urls), store.url)
    assert view(both[0]).gateways == 1
    ignored = [record.getMessage() for record in caplog.records if "is ignored" in record.getMessage()]
    for text in ("stranger", "huge", "version 9"):
        assert sum(text in line for line in ignored) == len(both)


def test_a_load_reads_back_as_it_was_written() -> None:
    assert load_from_bytes(load_to_bytes(LOAD, 7)) == (7, LOAD)


@pytest.mark.parametrize(
    "url",
    [
        "http://:secret@127.0.0.1:1",
        "127.0.0.1:6379",
        "",
        "redis://:secret/2@127.0.0.1:6379/0",
        "redis://me:secret#2@127.0.0.1:6379/0",
        "redis://127.0.0.1:6379/secret",
        "redis+sentinel://:secret@127.0.0.1:26379",
        "redis+sentinel://:secret@127.0.0.1:26379,/service/0",
        "redis+sentinel://:secret@127.0.0.1:no/service/0",
        "redis+sentinel://127.0.0.1:26379/service/secret",
        "http+sentinel://:secret@127.0.0.1:26379/service/0",
    ],
)
def test_an_address_that_is_no_store_is_refused_without_the_password(url: str) -> None:
    with pytest.raises(StoreError, match="--store: ") as raised:
        Store(url, lambda _: LOAD, lambda *_: None)
    assert "redis://" in str(raised.value)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://:secret@127.0.0.1:1/0", "127.0.0.1:1"),
        (
            "redis+sentinel://me:secret@127.0.0.1:1,127.0.0.1/main/0?sentinel_password=secret",
            "main by 127.0.0.1:1,127.0.0.1:26379",
        ),
    ],
)
async def test_a_store_that_never_was_there_does_not_stop_the_gateway(
    gateway: GatewayFactory, emulator: EmulatorFactory, url: str, address: str
) -> None:
    fleet = await emulator(replicas=1)
    gw = await gateway(rules(*fleet.urls), store=url)
    await until(lambda: view(gw).failures)
    assert "secret" not in str(view(gw))
    assert view(gw).address == address


@needs_store
async def test_gateways_follow_the_master_that_a_sentinel_names(
    gateway: GatewayFactory,
    emulator: EmulatorFactory,
    store: RealStore,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fleet = await emulator(replicas=1)
    file = tmp_path / "sentinel.conf"
    watched = f"monitor main 127.0.0.1 {store.port} 1", "down-after-milliseconds main 300", "failover-timeout main 1000"
    file.write_text("".join(f"sentinel {line}\n" for line in watched))
    async with AsyncExitStack() as stack:
        copy = await stack.enter_async_context(real_store("--replicaof", "127.0.0.1", str(store.port)))
        await says(copy, "'master_link_status': 'up'", "INFO", "replication")
        sentinel = await stack.enter_async_context(real_store(str(file), "--sentinel"))
        url = f"redis+sentinel://127.0.0.1:1,127.0.0.1:{sentinel.port}/main/0"  # the first is down
        both = await pair(gateway, rules(*fleet.urls), url)
        await says(sentinel, str(copy.port), "SENTINEL", "REPLICAS", "main")
        await store.kill()
        await until(lambda: all(view(gw).error for gw in both))
        await until(lambda: all(not view(gw).error and view(gw).gateways == 1 for gw in both), timeout_s=60)
        UsageDatabase(tmp_path / "usage.db").close()
        sharing = UsageSharing(url, tmp_path / "usage.db")
        await shares(sharing)
    assert "<redis" not in caplog.text


@needs_store
async def test_gateway_that_begins_without_its_store_uses_one_strict_slot_until_it_answers(
    gateway: GatewayFactory, emulator: EmulatorFactory, connect: Connect, store: RealStore
) -> None:
    fleet = await emulator(replicas=1, time_scale=0.05)
    policy = rules(*fleet.urls, slots=None, pool="slots: {max: 8, strict: true}")
    await store.kill()
    one = await gateway(policy, store=store.url)
    client, waiting = await connect(one.url), await connect(one.url)
    client.send(chat(stream=True, max_tokens=4000))
    assert (await client.head())[0] == 200
    waiting.send(chat(max_tokens=1))
    await until(lambda: queued(one) == 1)
    await store.start()
    assert (await waiting.response()).status == 200


@needs_store
async def test_gateway_knows_how_many_divide_strict_slots_before_it_serves(
    gateway: GatewayFactory, emulator: EmulatorFactory, store: RealStore
) -> None:
    fleet = await emulator(replicas=1)
    policy = rules(*fleet.urls, slots=None, pool="slots: {max: 8, strict: true}")
    one, other = [await gateway(policy, store=store.url) for _ in range(2)]
    assert view(other).gateways == 1
    (pool,) = other.controller.state.fleet
    assert (pool.gateways, pool.replicas[pool.spec.replicas[0].name].max_slots) == (2, 4)
    await until(lambda: next(iter(one.controller.state.fleet)).gateways == 2)


@needs_store
async def test_limit_with_a_key_of_the_wrong_type_is_told_apart_from_a_store_that_is_away(
    gateway: GatewayFactory, emulator: EmulatorFactory, connect: Connect, store: RealStore
) -> None:
    fleet = await emulator(replicas=1)
    key = key_of((ANONYMOUS, "free", LimitKind.REQUESTS))
    await store.tell("SET", key, "text")
    gw = await gateway(rules(*fleet.urls, tier="limits: {requests: 100/min}"), store=store.url)
    client = await connect(gw.url)
    assert (await client.ask(chat(max_tokens=1))).status == 200
    await until(lambda: view(gw).limit_error)
    assert (view(gw).error, view(gw).failures) == ("", 0)
    async with httpx.AsyncClient() as admin:
        state = (await admin.get(f"{gw.admin_url}/admin/state")).json()
    assert "a limit is not shared" in [each["what"] for each in state["headlines"]]
    await store.tell("DEL", key)
    await until(lambda: not view(gw).limit_error)


@needs_store
async def test_gateway_with_another_policy_is_named_in_the_log_and_the_same_policy_is_not(
    gateway: GatewayFactory, emulator: EmulatorFactory, store: RealStore, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = await emulator(replicas=1)
    one, _ = await pair(gateway, rules(*fleet.urls, slots=2), store.url)
    assert "the policy of" not in caplog.text
    await gateway(rules(*fleet.urls, slots=8), store=store.url)
    assert one.store is not None
    lines = [line for line in caplog.messages if line.startswith("store: the policy of ")]
    assert lines[0].endswith(", this gateway: give all the same file")
    assert one.store.name in lines[0]


@needs_store
async def test_new_gateway_begins_with_what_another_one_has_learned_about_engines_and_nothing_else(
    gateway: GatewayFactory, emulator: EmulatorFactory, store: RealStore
) -> None:
    fleet = await emulator(replicas=2, time_scale=1.0)
    policy = rules(*fleet.urls, tier="limits: {requests: 1M/day}")
    one = await gateway(policy, store=store.url)
    replica = one.controller.states()[0][1]
    one.driver.drain(replica, True)
    async with asyncio.timeout(60):
        while one.controller.forecaster.trust("main") is not Trust.TRUSTED:  # it takes so many samples a second
            await asyncio.gather(*[answered(one.url, 4) for _ in range(20)])
    for _ in range(2):  # the first facts may be those of a moment before the last answer
        await store.tell("DEL", FACTS_KEY)
        while not await store.tell("EXISTS", FACTS_KEY):  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.02)
    other = await gateway(policy, store=store.url)
    now = monotonic()
    assert other.controller.forecaster.trust("main") is Trust.TRUSTED
    assert other.controller.memory(now)["lengths"] == one.controller.memory(now)["lengths"]
    assert other.controller.memory(now)["quotas"] != one.controller.memory(now)["quotas"]
    assert replica in {name for _, name, state, _ in other.controller.states() if state is ReplicaState.UP}


@needs_store
async def test_gateway_names_facts_in_the_store_that_it_cannot_read_and_begins_without(
    gateway: GatewayFactory, emulator: EmulatorFactory, store: RealStore, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = await emulator(replicas=1)
    await store.tell("SET", FACTS_KEY, "x")
    gw = await gateway(rules(*fleet.urls), store=store.url)
    assert f"store: {FACTS_KEY} is not a file of tailgate's state; " in caplog.text
    await store.tell("DEL", FACTS_KEY)
    await store.tell("HSET", FACTS_KEY, "x", "y")
    await gateway(rules(*fleet.urls), store=store.url)
    assert f"store: no answer to GET {FACTS_KEY}: WRONGTYPE" in caplog.text
    assert gw.controller.forecaster.trust("main") is Trust.COLD
