"""The finder of replicas between its sources and the policy; the sources are played."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.pool_spec import Discovery, DnsSource, FileSource
from gateway.fleet.discovery import finder as finder_module
from gateway.fleet.discovery.finder import ReplicaFinder
from gateway.fleet.discovery.source import Follower, Listing, SourceTools
from gateway.policy import load_text

POLICY = """\
apiVersion: tailgate/v1
models: {m: {pools: [p]}}
pools: {p: {discover: {file: replicas.json, dns: vllm.example:8000}}}
tiers: {only: {}}
"""


async def test_source_that_fails_after_an_empty_list_removes_no_more_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    tools: dict[type, SourceTools] = {}

    class Played(Follower):
        def __init__(self, source: FileSource | DnsSource, discovery: Discovery, given: SourceTools) -> None:
            super().__init__(discovery, given)
            tools[type(source)] = given

        async def run(self) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr(finder_module, "FOLLOWERS", {FileSource: Played, DnsSource: Played})
    policy, now = load_text(POLICY, "policy.yaml", {}), 0.0
    finder = ReplicaFinder(lambda: now, lambda name: False, lambda: None, lambda error: None)
    finder.configure(policy)
    running = asyncio.create_task(finder.run())
    await asyncio.sleep(0)

    def found() -> int:
        tools[DnsSource].told(Listing(frozenset()))
        return len(finder.applied(policy).pools["p"].replicas)

    tools[FileSource].told(Listing(frozenset(f"http://10.0.0.{number}:8000" for number in range(6))))
    assert found() == 6
    tools[FileSource].told(Listing(frozenset()))
    assert found() == 4
    tools[FileSource].failed("gone")
    now = 3600.0
    assert found() == 4
    tools[FileSource].told(Listing(frozenset()))
    assert found() == 3
    running.cancel()
