"""A conversation stays at the replica that has read it, over real sockets."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import pytest

from gateway.core.policy import ANONYMOUS
from gateway.core.sessions import key_of
from gateway.wire.isolation import salt_of
from gateway.wire.prefix import prefix_of

from .capture import Capture
from .conftest import Connect, GatewayFactory
from .policies import rules
from .raw import CHAT, MODEL, Client, chat_body, request

SYSTEM = "You are a helpful assistant. " * 80
CONVERSATIONS = 6
TURNS = 4


async def turn(client: Client, path: str, said: list[dict[str, Any]]) -> None:
    body: dict[str, Any] = {"model": MODEL, "max_tokens": 4, "messages": said}
    if path == "/v1/messages":
        body["system"] = SYSTEM
    assert (await client.ask(request(path, json.dumps(body).encode()))).status == 200


async def homes(gateway: GatewayFactory, connect: Connect, pool: str, path: str) -> list[set[int]]:
    """The replicas that served the later turns of each conversation, of four."""
    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(Capture()) for _ in range(4)]
        gw = await gateway(rules(*(replica.url for replica in replicas), pool=pool))
        client = await connect(gw.url)
        found: list[set[int]] = [set() for _ in range(CONVERSATIONS)]
        said: list[list[dict[str, Any]]] = [
            [{"role": "user", "content": f"{number} asks: " + f"question {number} " * 200}]
            for number in range(CONVERSATIONS)
        ]
        for number in range(TURNS):
            for talk in range(CONVERSATIONS):
                before = [len(replica.calls) for replica in replicas]
                await turn(client, path, said[talk])
                (home,) = (i for i, replica in enumerate(replicas) if len(replica.calls) > before[i])
                if number:
                    found[talk].add(home)
                said[talk] += [
                    {"role": "assistant", "content": f"answer {number} " * 60},
                    {"role": "user", "content": f"and {number}? " * 60},
                ]
        return found


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_later_turns_of_a_conversation_go_to_the_replica_of_the_first(
    gateway: GatewayFactory, connect: Connect, path: str
) -> None:
    assert all(len(replicas) == 1 for replicas in await homes(gateway, connect, "", path))


async def test_turns_of_a_conversation_are_spread_without_affinity(gateway: GatewayFactory, connect: Connect) -> None:
    found = await homes(gateway, connect, "affinity: none, router: round-robin", "/v1/chat/completions")
    assert all(len(replicas) > 1 for replicas in found)


async def by_session(gateway: GatewayFactory, connect: Connect, path: str, *lines: str, **fields: Any) -> set[int]:
    """The replicas, of four, that serve twelve short requests of one session, each sent to an idle fleet."""
    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(Capture()) for _ in range(4)]
        pool = "affinity: {header: X-Chat, keys: [header, prompt_cache_key, metadata.user_id, user]}"
        gw = await gateway(rules(*(replica.url for replica in replicas), pool=pool))
        client = await connect(gw.url)
        for number in range(12):
            body = chat_body(content=f"question {number}", **fields)
            assert (await client.ask(request(path, body, *lines))).status == 200
        return {number for number, replica in enumerate(replicas) if replica.calls}


async def test_short_requests_of_a_session_go_to_one_replica(gateway: GatewayFactory, connect: Connect) -> None:
    claude = {"user_id": json.dumps({"device_id": "d", "account_uuid": "", "session_id": "talk-1"})}
    assert len(await by_session(gateway, connect, CHAT, "X-Chat: talk-1")) == 1
    assert len(await by_session(gateway, connect, CHAT, prompt_cache_key="talk-1")) == 1
    assert len(await by_session(gateway, connect, "/v1/messages", metadata=claude)) == 1
    assert len(await by_session(gateway, connect, CHAT, user="u-1")) == 1
    assert len(await by_session(gateway, connect, CHAT, "X-Session-Id: talk-1")) > 1


async def test_a_strict_session_whose_replica_is_gone_gets_a_503_that_names_the_replica_and_a_digest(
    gateway: GatewayFactory, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tailgate")
    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(Capture()) for _ in range(3)]
        pool = "affinity: {strict: true}, health: {interval: 100ms, failures: 1}"
        named = [f"{{name: engine-{number}, url: {replica.url}}}" for number, replica in enumerate(replicas)]
        gw = await gateway(rules(*named, pool=pool))
        client = await connect(gw.url)
        asked = request(CHAT, chat_body(), "X-Session-Id: talk-1")
        assert (await client.ask(asked)).status == 200
        (home,) = (replica for replica in replicas if replica.calls)
        home.well = False
        answer = await client.ask(asked)
        for _ in range(100):
            if answer.status == 503:
                break
            await asyncio.sleep(0.05)
            answer = await client.ask(asked)
        assert answer.status == 503
        message = json.loads(answer.body)["error"]["message"]
        name = f"{key_of(ANONYMOUS + chr(0) + 'talk-1'):016x}"
        assert f"session {name} is kept at replica engine-{replicas.index(home)}, which is down" in message
        assert any(f"session {name} is kept" in line for line in caplog.messages)
        assert not any("talk-1" in line for line in caplog.messages)
        assert not any(replica.calls for replica in replicas if replica is not home)
        assert (await client.ask(request(CHAT, chat_body()))).status == 200


async def test_isolated_tenants_have_their_own_cache_salts_and_share_no_cached_prompt(
    gateway: GatewayFactory, connect: Connect
) -> None:
    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(Capture()) for _ in range(2)]
        pool = "cache_isolation: tenant, cache_key: 0123456789abcdef"
        urls = [replica.url for replica in replicas]
        gw = await gateway(rules(*urls, pool=pool, keys={"key-a": "acme", "key-b": "other"}))
        client = await connect(gw.url)
        for key in ("key-a", "key-b", "key-a"):
            for path in ("/v1/chat/completions", "/v1/messages"):
                body: dict[str, Any] = {"model": MODEL, "max_tokens": 4, "cache_salt": "guess"}
                body["messages"] = [{"role": "user", "content": "the same for both " * 200}]
                asked = request(path, json.dumps(body).encode(), f"Authorization: Bearer {key}")
                assert (await client.ask(asked)).status == 200
        found = Counter(json.loads(call.body)["cache_salt"] for replica in replicas for call in replica.calls)
        assert found == {salt_of("0123456789abcdef", "acme"): 4, salt_of("0123456789abcdef", "other"): 2}


def test_cache_salt_depends_on_the_secret_and_the_tenant() -> None:
    salts = {salt_of(key, tenant) for key in ("0123456789abcdef", "fedcba9876543210") for tenant in ("acme", "other")}
    assert len(salts) == 4
    assert all(len(salt) == 64 for salt in salts)


def test_same_prompt_of_two_isolated_tenants_shares_no_prefix_block() -> None:
    fields = {"messages": [{"role": "user", "content": "the same for both " * 400}]}
    ours, theirs = prefix_of(fields, "", "acme"), prefix_of(fields, "", "other")
    assert len(ours.blocks) > 5
    assert not {*ours.blocks} & {*theirs.blocks}
    assert prefix_of(fields, "", "acme") == ours
