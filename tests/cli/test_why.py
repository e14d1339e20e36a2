"""`tailgate why` against a running gateway: the story of a request, by the id that its client saw."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from unittest.mock import ANY

import httpx
import pytest
from typer.testing import CliRunner, Result

from gateway.app import Gateway
from gateway.cli.app import app
from gateway.policy import load_text
from gateway.settings import Settings
from gateway.sim.engine.profiles import PROFILES, Profile
from loadtests.emulator import Emulator

POLICY = """\
apiVersion: tailgate/v1
models: {{emulated: {{pools: [main]}}}}
pools:
  main: {{slots: 1, queue: {{limit: 1}}, replicas: [{{name: r1, url: "{}"}}]}}
tiers: {{only: {{slo: {{e2e: {{p99: 0.001ms}}}}, admission: {{mode: "off"}}, timeouts: {{queue: 100ms}}}}}}
"""
DEADLINE_S = 20.0
ASK = {"model": "emulated", "messages": [{"role": "user", "content": "a secret question"}], "max_tokens": 3}


@dataclass
class Rig:
    """A gateway in front of one replica with one slot."""

    gateway: Gateway
    emulator: Emulator
    client: httpx.AsyncClient

    async def why(self, *arguments: str) -> Result:
        """Run the command as from a shell."""
        typed = ["why", *arguments, "--admin", self.gateway.admin_url]
        return await asyncio.to_thread(CliRunner().invoke, app, typed, env={"COLUMNS": "300"})

    async def admin(self, path: str) -> httpx.Response:
        """A page of the admin port."""
        async with httpx.AsyncClient(base_url=self.gateway.admin_url) as client:
            return await client.get(path)

    async def lines(self, request_id: str) -> dict[str, str]:
        """The printed lines by label."""
        result = await self.why(request_id)
        assert result.exit_code == 0, result.output
        return {line[:9].strip(): line[10:] for line in result.stdout.splitlines()}


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with running(POLICY) as rig:
        yield rig


@asynccontextmanager
async def running(policy: str, profile: Profile = PROFILES["test"]) -> AsyncIterator[Rig]:
    """A gateway in front of one emulated replica."""
    async with Emulator(replicas=1, profile=profile) as emulator:
        settings = Settings(port=0, admin_port=0, drain_deadline_s=0.0)
        async with (
            Gateway(settings, load_text(policy.format(*emulator.urls), "policy.yaml", {})) as gateway,
            httpx.AsyncClient(base_url=gateway.url, timeout=20) as client,
        ):
            yield Rig(gateway, emulator, client)


async def test_story_of_a_late_answer_names_the_objective_and_the_attempt(rig: Rig) -> None:
    answer = await rig.client.post("/v1/chat/completions", json=ASK, headers={"x-request-id": "late-one"})
    assert answer.status_code == 200
    lines = await rig.lines(answer.headers["x-request-id"])
    assert lines["request"].startswith("late-one, ok, not good, arrived 2")
    assert lines["who"] == "only of anonymous, /v1/chat/completions whole, model emulated, policy generation 1"
    assert lines["why"].startswith("answered, but late: e2e ")
    assert lines["decision"] == "no-objective: no objective of its tier is enforced, mode off"
    assert lines["tokens"].endswith("answer 3 of at most 3, by the engine's count")
    assert lines["attempt"].startswith("to r1 (pool main) at 0 ms, complete at ")


async def test_copied_id_of_an_error_tells_the_text_that_the_client_got(rig: Rig) -> None:
    answer = await rig.client.post("/v1/chat/completions", json={**ASK, "model": "none"})
    assert answer.status_code == 404
    lines = await rig.lines(answer.headers["x-request-id"])
    assert lines["why"].startswith("404 model-not-found, field model: ")
    assert lines["who"] == "only of anonymous"


async def test_stream_that_broke_off_has_the_status_that_its_client_got(rig: Rig) -> None:
    rig.emulator.replicas[0].fault("truncated", after_events=2)
    answer = await rig.client.post("/v1/chat/completions", json={**ASK, "max_tokens": 9, "stream": True})
    assert answer.status_code == 200
    assert '"error"' in answer.text
    request_id = answer.headers["x-request-id"]
    (record,) = (await rig.admin(f"/admin/requests/{request_id}")).json()["requests"]
    assert (record["status"], record["reason"]) == (200, "upstream-truncated")
    assert (await rig.lines(request_id))["why"].startswith("200, then broken off: ")


async def test_json_has_the_whole_record_and_no_text_of_the_prompt(rig: Rig) -> None:
    answer = await rig.client.post("/v1/chat/completions", json=ASK)
    result = await rig.why(answer.headers["x-request-id"], "--json")
    (record,) = json.loads(result.stdout)["requests"]
    assert record["missed"] == ["e2e"]
    assert record["bounds"]["e2e_s"] == pytest.approx(1e-6)
    assert record["attempts"][0]["status"] == 200
    assert record["attempts"][0]["opened_s"] <= record["attempts"][0]["sent_s"] <= record["attempts"][0]["ended_s"]
    assert "secret" not in result.stdout


async def test_request_under_way_says_where_it_is_and_what_came_before(rig: Rig) -> None:
    (replica,) = rig.emulator.replicas
    replica.fault("pause")
    headers = {"x-request-id": "slow-one"}
    asking = asyncio.create_task(rig.client.post("/v1/chat/completions", json=ASK, headers=headers))
    await replica.until(lambda found: found.received_total == 1)
    lines = await rig.lines("slow-one")
    assert re.fullmatch(r"slow-one, under way for [\d.]+ m?s: sent to r1, no token yet", lines["request"])
    assert lines["decision"].startswith("no-objective")
    sent_as = replica.requests[0].header("x-request-id")
    assert sent_as is not None
    assert (await rig.lines(f"chatcmpl-{sent_as}"))["request"].startswith("slow-one, under way")
    assert lines["attempt"].startswith("to r1 (pool main) at 0 ms, under-way at ")
    replica.fault(None)
    assert (await asking).status_code == 200
    assert (await rig.lines("slow-one"))["request"].startswith("slow-one, ok, ")


async def test_stream_under_way_tells_the_tokens_so_far(rig: Rig) -> None:
    rig.emulator.replicas[0].fault("stall", after_events=6)
    headers, asked = {"x-request-id": "stalled"}, {**ASK, "max_tokens": 9, "stream": True}
    async with rig.client.stream("POST", "/v1/chat/completions", json=asked, headers=headers) as answer:
        assert answer.status_code == 200
        async with asyncio.timeout(DEADLINE_S):
            while not re.search(r"; answer [1-9] of at most 9, estimated$", (await rig.lines("stalled"))["tokens"]):
                pass


async def test_unknown_id_exits_with_1_and_says_what_is_kept(rig: Rig) -> None:
    result = await rig.why("tg-unknown-1")
    assert result.exit_code == 1
    assert "no record of 'tg-unknown-1' among 0 of this process, none has ended yet" in result.stderr


async def test_without_an_id_the_stages_of_slow_requests_are_told(rig: Rig) -> None:
    assert "no streamed request" in (await rig.why()).stdout
    for _ in range(3):
        await rig.client.post("/v1/chat/completions", json=ASK | {"stream": True})
    result = await rig.why()
    assert result.exit_code == 0, result.output
    head, *rows, end = result.stdout.splitlines()
    assert re.split(r"  +", head.strip())[2:5] == ["requests", "received", "waited here"]
    assert [re.split(r"  +", line.strip())[:2] for line in rows if "p99" in line] == [["only", ANY], ["only", ANY]]
    assert end.startswith("of the streamed requests since 2")
    found = json.loads((await rig.why("--json")).stdout)["stages"]
    assert [(each["latency"], each["percentile"]) for each in found][:2] == [("ttft", "p50"), ("ttft", "p95")]
    assert all(sum(each["stages"].values()) == pytest.approx(1.0) for each in found)


async def test_queue_of_an_engine_that_tells_it_is_a_stage_of_its_own() -> None:
    """The engine runs one request at a time, and the gateway sends it four."""
    often = POLICY.replace("slots: 1,", "slots: 4, health: {{scrape_interval: 10ms}},")
    async with running(often, replace(PROFILES["test"], max_num_seqs=1)) as rig:
        asks = [ASK | {"stream": True, "max_tokens": 30} for _ in range(4)]
        async with asyncio.timeout(DEADLINE_S):
            queued: list[str] = []
            while not queued:
                await asyncio.gather(*(rig.client.post("/v1/chat/completions", json=ask) for ask in asks))
                listed = (await rig.admin("/admin/requests")).json()["requests"]
                queued = [one["request_id"] for one in listed if (one["engine_queue_share"] or 0.0) > 0.5]
        measured = (await rig.lines(queued[0]))["measured"]
        assert re.search(r"then in the engine's queue [\d.]+ m?s \(by the replica's mean\)", measured)
        assert "engine's queue  prompt" in (await rig.why()).stdout
        page = (await rig.admin("/metrics")).text
        told = dict(re.findall(r'tailgate_stage_seconds_total\{stage="([a-z-]+)",tier="only"\} (\S+)', page))
        assert float(told["engine-queue"]) > 0.0 < float(told["prefill"])


async def test_unreachable_gateway_exits_with_2() -> None:
    typed = ["why", "x", "--admin", "http://127.0.0.1:1"]
    result = await asyncio.to_thread(CliRunner().invoke, app, typed)
    assert result.exit_code == 2
    assert "is this the admin port of a running gateway?" in result.stderr


async def test_list_of_requests_is_narrowed_by_its_parameters(rig: Rig) -> None:
    await rig.client.post("/v1/chat/completions", json=ASK, headers={"x-request-id": "one"})
    await rig.client.post("/v1/chat/completions", json={**ASK, "model": "none"}, headers={"x-request-id": "two"})
    async with httpx.AsyncClient(base_url=rig.gateway.admin_url) as admin:

        async def listed(query: str) -> list[str]:
            answer = await admin.get(f"/admin/requests?{query}")
            return [one["request_id"] for one in answer.json()["requests"]]

        assert await listed("") == ["two", "one"]
        assert await listed("limit=1") == ["two"]
        assert await listed("outcome=ok&tier=only") == ["one"]
        assert await listed("reason=model-not-found") == ["two"]
        assert await listed("good=true") == await listed("tenant=nobody") == []
        wrong = await admin.get("/admin/requests?outcome=fine")
        assert wrong.status_code == 400
        assert wrong.json()["detail"].startswith("outcome: 'fine' is unknown; known: ok, refused, ")
        wrong = await admin.get("/admin/requests?tiers=only")
        assert wrong.status_code == 400
        assert wrong.json()["detail"] == "tiers is unknown; known: good, limit, outcome, reason, tenant, tier"
