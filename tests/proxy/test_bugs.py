"""A bug costs one request, not a slot and not the connection of somebody else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from gateway.app import Gateway
from gateway.policy.builtin import builtin
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
            patch.setattr(gateway.gate, "enter", bug)
            answer = await client.post("/v1/completions", json=BODY)
        assert (answer.status_code, answer.headers["x-tailgate-reason"]) == (500, "internal")
        assert answer.json()["error"]["code"] == "internal_error"
        assert "a bug" in caplog.text
        assert (await client.post("/v1/completions", json=BODY)).status_code == 200


async def test_a_bug_in_dispatch_ends_the_connection_and_frees_the_slot(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with httpx.AsyncClient(base_url=gateway.url) as client:
        with monkeypatch.context() as patch:
            patch.setattr(gateway.upstreams, "get", bug)
            with pytest.raises(httpx.RemoteProtocolError):
                await client.post("/v1/completions", json=BODY)
        assert gateway.driver.under_way == 0
        assert [pool.in_flight for pool in gateway.controller.snapshot(0.0).pools] == [0]
        assert (await client.post("/v1/completions", json=BODY)).status_code == 200
