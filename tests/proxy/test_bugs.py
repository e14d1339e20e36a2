"""A bug costs one request, but no slot and no other client's connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from gateway.app import Gateway
from gateway.core.estimators.prompt_length import PromptEstimator
from gateway.core.results import Callback
from gateway.driving.local_driver import LocalDriver
from gateway.fleet.watch import FleetWatcher
from gateway.observe.metrics.metrics import Metrics
from gateway.policy.builtin import builtin
from gateway.proxy.client.client_connection import ClientConnection
from gateway.proxy.client.request_reader import RequestReader
from gateway.proxy.count_tokens import ask_nobody
from gateway.proxy.exchanges.exchange import Exchange
from gateway.proxy.handler import RequestHandler
from gateway.proxy.replica.attempt import UpstreamAttempt
from gateway.proxy.replica.upstream import ReplicaConnections
from gateway.proxy.replica.upstream_connection import UpstreamConnection
from gateway.settings import Settings
from loadtests.emulator import Emulator
from tests.interpreted import interpreted

pytestmark = interpreted

BODY = {"model": "emulated", "prompt": "hi", "max_tokens": 2}


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    settings = Settings(port=0, admin_port=0, drain_deadline_s=0.0)
    async with Emulator() as emulator, Gateway(settings, builtin([emulator.url])) as gateway:
        yield gateway


def bug(*_: Any) -> Any:
    raise RuntimeError("a bug")


async def test_a_bug_before_dispatch_is_a_500_with_a_reason_and_a_traceback(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with httpx.AsyncClient(base_url=gateway.url) as client:
        with monkeypatch.context() as patch:
            patch.setattr(gateway.handler, "enter", bug)
            answer = await client.post("/v1/completions", json=BODY)
        assert (answer.status_code, answer.headers["x-tailgate-reason"]) == (500, "internal")
        assert answer.json()["error"]["code"] == "internal_error"
        assert "a bug" in caplog.text
        assert (await client.post("/v1/completions", json=BODY)).status_code == 200


async def test_a_bug_in_dispatch_is_a_500_and_frees_the_slot(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    async with httpx.AsyncClient(base_url=gateway.url) as client:
        with monkeypatch.context() as patch:
            patch.setattr(gateway.api.upstreams, "get", bug)
            answer = await client.post("/v1/completions", json=BODY)
        assert (answer.status_code, answer.headers["x-tailgate-reason"]) == (500, "internal")
        assert gateway.metrics.bugs[Callback.COMMAND] == 1
        assert gateway.driver.under_way == 0
        assert [pool.in_flight for pool in gateway.controller.snapshot(0.0).pools] == [0]
        assert (await client.post("/v1/completions", json=BODY)).status_code == 200


async def test_background_task_that_stops_is_logged_with_its_cause_and_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def stops(_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(FleetWatcher, "run", stops)
    async with Gateway(
        Settings(port=0, admin_port=0, drain_deadline_s=0.0), builtin(["http://127.0.0.1:9"])
    ) as gateway:
        await asyncio.wait_for(gateway.broken.wait(), 10.0)
    (line,) = (record.getMessage() for record in caplog.records if record.levelname == "CRITICAL")
    assert line.startswith("the watch of the replicas has stopped (RuntimeError('a bug')), a bug of the gateway: ")
    assert line.endswith("drains and exits with 1; start it again, and report this")


COUNTED = {"model": "emulated", "messages": [{"role": "user", "content": "hi"}]}


async def test_token_count_falls_back_to_the_estimate_if_asking_the_engine_hits_a_bug(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway.handler.counting, "ask_engine", bug)
    async with httpx.AsyncClient(base_url=gateway.url) as client:
        answer = await client.post("/v1/messages/count_tokens", json=COUNTED)
    assert answer.status_code == 200
    assert answer.json()["input_tokens"] > 0
    assert gateway.metrics.bugs[Callback.WATCH] == 1


async def test_bug_in_count_tokens_is_a_500_in_the_anthropic_format_and_closes_the_connection(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway.handler.counting, "ask_engine", ask_nobody)
    monkeypatch.setattr(PromptEstimator, "estimate", bug)
    async with httpx.AsyncClient(base_url=gateway.url) as client:
        answer = await client.post("/v1/messages/count_tokens", json=COUNTED, timeout=5.0)
    assert (answer.status_code, answer.headers["x-tailgate-reason"]) == (500, "internal")
    assert answer.headers["connection"] == "close"
    assert answer.json()["type"] == "error"
    assert gateway.metrics.bugs[Callback.CLIENT] == 1


PLACES: list[tuple[type, str]] = [
    *[
        (UpstreamAttempt, name)
        for name in ("on_sent", "on_head", "on_body", "on_end", "pass_on", "commit", "_show", "_tell")
    ],
    *[
        (Exchange, name)
        for name in ("dispatch", "commit", "_open", "_show_whole", "attempt_ended", "show", "ended", "_finish")
    ],
    *[(RequestReader, name) for name in ("on_headers_complete", "on_body", "take")],
    *[(ClientConnection, name) for name in ("_answer", "placed", "_rest", "_out")],
    *[(UpstreamConnection, name) for name in ("send", "_head", "_body", "_end")],
    *[(ReplicaConnections, name) for name in ("send", "release", "_take_idle")],
    *[(LocalDriver, name) for name in ("_act", "_carry_out")],
    *[(Metrics, name) for name in ("ended", "gaps")],
    (RequestHandler, "enter"),
]


@pytest.mark.parametrize(("owner", "name"), PLACES, ids=lambda value: getattr(value, "__name__", value))
async def test_a_bug_in_any_callback_costs_at_most_one_request_and_no_slot(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    """The first call raises. Of four requests at least three get full answers, and the other one gets an error."""
    whole = getattr(owner, name)
    calls = [0]

    def once(*args: Any, **more: Any) -> Any:
        calls[0] += 1
        return bug() if calls[0] == 1 else whole(*args, **more)

    async def ask(client: httpx.AsyncClient, stream: bool) -> bool:
        try:
            answer = await client.post("/v1/completions", json={**BODY, "stream": stream}, timeout=10.0)
        except httpx.RemoteProtocolError:
            return False
        return answer.status_code == 200 and (not stream or answer.text.endswith("data: [DONE]\n\n"))

    async with httpx.AsyncClient(base_url=gateway.url) as client:
        monkeypatch.setattr(owner, name, once)
        ok = [await ask(client, stream) for stream in (True, False)]
        ok += await asyncio.gather(ask(client, True), ask(client, False))
    assert calls[0] > 1, "this place is never passed"
    assert ok.count(False) <= 1, ok
    assert gateway.driver.under_way == 0
    (pool,) = gateway.controller.snapshot(0.0).pools
    assert (pool.in_flight, pool.queued) == (0, 0)
    assert sum(gateway.metrics.bugs.values()) >= 1
    assert not gateway.broken.is_set()
