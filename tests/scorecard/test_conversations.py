"""A conversation stays with the replica that has read it, over real sockets."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import Any

import pytest

from .capture import Capture
from .conftest import Connect, GatewayFactory
from .policies import rules
from .raw import MODEL, Client, request

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
async def test_later_turns_go_to_the_replica_of_the_first(gateway: GatewayFactory, connect: Connect, path: str) -> None:
    assert all(len(replicas) == 1 for replicas in await homes(gateway, connect, "", path))


async def test_without_affinity_turns_are_spread(gateway: GatewayFactory, connect: Connect) -> None:
    found = await homes(gateway, connect, "affinity: none, router: round-robin", "/v1/chat/completions")
    assert all(len(replicas) > 1 for replicas in found)
