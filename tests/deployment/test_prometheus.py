"""A real Prometheus scrapes a gateway under load and one of two relays with a store, evaluates the rules, and answers
every panel of the dashboard.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from gateway.app import Gateway
from loadtests.emulator import Emulator
from loadtests.processes import free_port
from tests.scorecard.process import serving
from tests.serving import gateways
from tests.stores import needs_store, real_store

from .files import DEPLOY

PROMETHEUS = shutil.which("prometheus")
pytestmark = [
    pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is missing: apt-get install prometheus"),
    pytest.mark.long,
    needs_store,
]
DEADLINE_S = 120.0
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "tailgate.json").read_text())
QUERIES = [(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]
SHARED = "You are a helpful assistant. " * 50
POLICY = """\
apiVersion: tailgate/v1
models:
  default: {{split: {{old: 60, new: 40}}}}
  old: {{pools: [main], upstream: emulated, mirror: {{to: shadow, share: 1}}}}
  new: {{pools: [other], upstream: emulated}}
  small: {{pools: [other], upstream: emulated}}
  crowded: {{pools: [full], upstream: emulated}}
pools:
  main: {{slots: 4, queue: {{limit: 8}}, replicas: [{{name: m1, url: "{}"}}, {{name: m2, url: "{}"}}]}}
  other: {{slots: 4, queue: {{limit: 8}}, replicas: [{{name: o1, url: "{}"}}]}}
  shadow: {{replicas: [{{name: s1, url: "{}"}}]}}
  full: {{slots: 1, queue: {{limit: 1}}, replicas: [{{name: f1, url: "{}"}}]}}
tiers:
  paid:
    slo: {{ttft: {{p50: 5s, p99: 10s}}, tpot: {{p99: 5s}}, e2e: {{p95: 20s}}}}
    hedge: {{budget: 1}}
    fallback: small
    timeouts: {{queue: 500ms, ttft: 2s, idle: 2s}}
defaults: {{tier: paid}}
"""
CONFIGURATION = """\
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: ["{rules}"]
scrape_configs:
  - {{job_name: tailgate, static_configs: [{{targets: ["{target}", "{peer}"]}}]}}
"""


class Rig:
    """A gateway, replicas that can fail, and a Prometheus."""

    def __init__(self, gateway: Gateway, emulators: list[Emulator], url: str) -> None:
        self.gateway = gateway
        self.emulators = emulators
        self.random = Random(5)
        self.api = httpx.AsyncClient(base_url=url, timeout=20.0)

    async def is_ready(self) -> bool:
        """Whether Prometheus answers queries: once it listens, it says 503 for a moment."""
        try:
            return (await self.api.get("/-/ready")).is_success
        except httpx.ConnectError:
            return False

    async def ask(self, path: str, **parameters: str) -> Any:
        answer = (await self.api.get(f"/api/v1/{path}", params=parameters)).json()
        assert answer["status"] == "success", answer
        return answer["data"]

    async def load(self) -> None:
        """Ask for everything that the dashboard shows, until cancelled. Some requests fail, wait or fall back."""
        async with httpx.AsyncClient(base_url=self.gateway.url, timeout=30.0) as client, asyncio.TaskGroup() as group:
            # One of three is served, one waits, and there is no room for the other: it falls back.
            for name in ("default", "default", "default", "sql", "crowded", "crowded", "crowded"):
                group.create_task(self._ask_again(client, name))

    async def _ask_again(self, client: httpx.AsyncClient, name: str) -> None:
        for number in itertools.count(1):
            self.emulators[2].replicas[0].fault("status_500" if number % 9 == 0 else None)
            self.emulators[4].replicas[0].fault("pause" if number % 3 else None)
            session = f"{name} {self.random.random()}"
            again = {"x-stainless-retry-count": "1"} if number % 4 == 0 else {}
            body = {
                "model": name,
                "messages": [{"role": "user", "content": f"{SHARED} {session}"}],
                "max_tokens": 8,
                "stream": True,
            }
            await client.post("/v1/chat/completions", json=body, headers={"x-session-id": session, **again})


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with AsyncExitStack() as stack:
        emulators = [
            await stack.enter_async_context(
                Emulator(profile="default", adapters=("sql",) if place < 2 else (), max_loras=1)
            )
            for place in range(5)
        ]
        start = await stack.enter_async_context(gateways())
        gateway = await start(POLICY.format(*(each.url for each in emulators)))
        store = await stack.enter_async_context(real_store())
        policy = POLICY.format(*(each.url for each in emulators))
        peer = await stack.enter_async_context(
            serving(tmp_path, policy, TAILGATE_WORKERS="2", TAILGATE_STORE=store.url)
        )
        port = free_port()
        target, other = (urlsplit(url).netloc for url in (gateway.admin_url, peer.admin_url))
        configuration = tmp_path / "prometheus.yml"
        rules = DEPLOY / "prometheus" / "alerts.yaml"
        await asyncio.to_thread(configuration.write_text, CONFIGURATION.format(rules=rules, target=target, peer=other))
        process = await asyncio.create_subprocess_exec(
            str(PROMETHEUS),
            f"--config.file={configuration}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        stack.push_async_callback(process.wait)
        stack.callback(process.kill)
        rig = Rig(gateway, emulators, f"http://127.0.0.1:{port}")
        stack.push_async_callback(rig.api.aclose)
        async with asyncio.timeout(DEADLINE_S):
            while not await rig.is_ready():  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.1)
        yield rig


def written(query: str) -> str:
    """The query of a panel, as Grafana sends it with all tiers and pools chosen."""
    for name, value in (("$__rate_interval", "30s"), ("$tier", ".*"), ("$pool", ".*")):
        query = query.replace(name, value)
    return query


async def test_prometheus_evaluates_every_rule_and_answers_every_panel_with_data(rig: Rig) -> None:
    loading = asyncio.create_task(rig.load())
    empty = QUERIES
    deadline = asyncio.get_running_loop().time() + DEADLINE_S
    while empty and asyncio.get_running_loop().time() < deadline:
        assert not loading.done(), loading.exception()
        answers = [await rig.ask("query", query=written(query)) for _, query in empty]
        empty = [asked for asked, found in zip(empty, answers, strict=True) if not found["result"]]
        await asyncio.sleep(1.0)
    loading.cancel()
    assert empty == []
    rules = [rule for group in (await rig.ask("rules"))["groups"] for rule in group["rules"]]
    assert {rule["name"]: rule.get("lastError", "") for rule in rules if rule["health"] != "ok"} == {}
    assert len(rules) > 10
