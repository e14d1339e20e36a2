"""Sessions of a split model keep their arm over connections, gateways and reloads."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence

from gateway.app import Gateway
from gateway.core.pool_spec import PoolSpec
from gateway.core.sessions import Session
from gateway.policy import load_text
from loadtests.emulator import Emulator

from .conftest import Connect, EmulatorFactory, GatewayFactory
from .policies import sha256
from .raw import CHAT, Client, head

KEY = "tg-the-key-of-the-tests"
SESSIONS = [f"chat {number}" for number in range(60)]


def rules(old: Emulator, new: Emulator, weights: str = "v1: 60, v2: 40") -> str:
    return f"""\
apiVersion: tailgate/v1
models:
  chat: {{split: {{{weights}}}, aliases: [default]}}
  v1: {{pools: [old], upstream: emulated}}
  v2: {{pools: [new], upstream: emulated}}
pools:
  old: {{replicas: [{old.urls[0]}], slots: 64}}
  new: {{replicas: [{new.urls[0]}], slots: 64}}
tiers: {{free: {{max_tokens: {{default: 4, limit: 8}}}}}}
keys: [{{sha256: {sha256(KEY)}, tenant: acme, tier: free}}]
"""


async def served(client: Client, *lines: str, model: str = "chat", **fields: str) -> str:
    """The arm that answered; checked against the pool."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "hi"}], **fields}).encode()
    client.send(head(CHAT, f"authorization: Bearer {KEY}", f"content-length: {len(body)}", *lines) + body)
    answer = await client.response()
    assert answer.status == 200
    assert answer.json()["model"] == model
    arm = answer.headers["x-tailgate-model"]
    assert answer.headers["x-tailgate-pool"] == {"v1": "old", "v2": "new"}[arm]
    return arm


async def arms(gw: Gateway, connect: Connect) -> dict[str, str]:
    client = await connect(gw.url)
    return {session: await served(client, f"x-session-id: {session}") for session in SESSIONS}


async def test_session_keeps_its_split_arm_over_gateways_and_reloads_unless_weights_change(
    gateway: GatewayFactory, emulator: EmulatorFactory, connect: Connect
) -> None:
    old, new = await emulator(), await emulator()
    first, second = await gateway(rules(old, new)), await gateway(rules(old, new))
    before = await arms(first, connect)
    assert set(before.values()) == {"v1", "v2"}
    assert await arms(second, connect) == before
    first.reloads.configure(load_text(rules(old, new) + "defaults: {tier: free}\n", "policy.yaml", {}))
    assert await arms(first, connect) == before
    first.reloads.configure(load_text(rules(old, new, "v1: 20, v2: 80"), "policy.yaml", {}))
    after = await arms(first, connect)
    moved = Counter((before[session], after[session]) for session in SESSIONS if before[session] != after[session])
    assert set(moved) == {("v1", "v2")}


async def test_session_named_in_the_body_has_its_own_split_arm(
    gateway: GatewayFactory, emulator: EmulatorFactory, connect: Connect
) -> None:
    gw = await gateway(rules(await emulator(), await emulator()))
    client = await connect(gw.url)
    by_header = await arms(gw, connect)
    assert {session: await served(client, prompt_cache_key=session) for session in SESSIONS} == by_header


async def test_token_count_uses_the_split_arm_of_its_session(
    gateway: GatewayFactory, emulator: EmulatorFactory, connect: Connect
) -> None:
    gw = await gateway(rules(await emulator(), await emulator()))
    asked: list[str] = []

    async def told(
        pools: Sequence[PoolSpec], model: str, body: bytes, rid: bytes, session: Session | None
    ) -> int | None:
        asked.append({"old": "v1", "new": "v2"}[pools[0].name])
        return 7

    gw.handler.counting.ask_engine = told
    client, by_header = await connect(gw.url), await arms(gw, connect)
    body = json.dumps({"model": "chat", "messages": [{"role": "user", "content": "hi"}]}).encode()
    for session in SESSIONS:
        lines = f"authorization: Bearer {KEY}", f"content-length: {len(body)}", f"x-session-id: {session}"
        client.send(head("/v1/messages/count_tokens", *lines) + body)
        assert (await client.response()).json() == {"input_tokens": 7}
    assert asked == [by_header[session] for session in SESSIONS]


async def test_tenant_without_a_session_keeps_its_split_arm_under_an_alias(
    gateway: GatewayFactory, emulator: EmulatorFactory, connect: Connect
) -> None:
    gw = await gateway(rules(await emulator(), await emulator()))
    client = await connect(gw.url)
    found = {await served(client, model=model) for model in ("chat", "default") for _ in range(8)}
    assert len(found) == 1


async def test_split_arms_are_counted_in_metrics_and_state(
    gateway: GatewayFactory, emulator: EmulatorFactory, connect: Connect
) -> None:
    gw = await gateway(rules(await emulator(), await emulator()))
    found = Counter((await arms(gw, connect)).values())
    page, state = await asyncio.gather(*(_get(connect, gw.admin_url, path) for path in ("/metrics", "/admin/state")))
    for arm, count in found.items():
        assert f'tailgate_arm_requests_total{{arm="{arm}",model="chat",outcome="ok"}} {count}.0' in page
    (split,) = json.loads(state)["splits"]
    assert {arm["name"]: arm["window"]["good"] for arm in split["arms"]} == found


async def _get(connect: Connect, url: str, path: str) -> str:
    client = await connect(url)
    client.send(head(path, method="GET"))
    return (await client.response()).body.decode()
