"""What the gateway counts of a test, beside what clients saw."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from loadtests.emulator import Emulator
from loadtests.verdict.gateway_counts import TierCounts, beside, differs, read_counts
from loadtests.verdict.promises import Judgement, Promise, Verdict
from loadtests.verdict.sequential import Bounds
from tests.scorecard.policies import rules
from tests.scorecard.raw import chat
from tests.serving import gateways


async def test_goodput_of_the_test_alone_is_counted() -> None:
    async with Emulator(replicas=1) as fleet, gateways() as start, httpx.AsyncClient() as client:
        gateway = await start(rules(*fleet.urls))

        async def ask() -> None:
            body = chat(max_tokens=1).split(b"\r\n\r\n", 1)[1]
            assert (await client.post(f"{gateway.url}/v1/chat/completions", content=body)).status_code == 200

        await ask()
        before = await read_counts(gateway.admin_url)

        async def test() -> None:
            await ask()
            await ask()

        assert list((await beside(gateway.admin_url, 60.0, test, asyncio.Event())).values()) == [], (
            "it ended in its warm-up"
        )
        after = await read_counts(gateway.admin_url)
        assert list(after.since(before).values()) == [1.0]
        assert sum(after.offered.values()) - sum(before.offered.values()) == 2


async def test_without_an_admin_port_the_test_just_runs() -> None:
    ran = []

    async def test() -> None:
        ran.append(True)

    assert await beside(None, 0.0, test, asyncio.Event()) == {}
    assert ran


async def test_a_server_that_is_no_gateway_is_named_before_the_test() -> None:
    async def test() -> None:
        raise AssertionError("nothing may be sent")

    async with Emulator(replicas=1) as fleet:
        with pytest.raises(ValueError, match=r"--admin .* has no tailgate_offered_requests_total"):
            await beside(fleet.urls[0], 0.0, test, asyncio.Event())
    with pytest.raises(ValueError, match="--admin nowhere: nowhere/metrics: "):
        await beside("nowhere", 0.0, test, asyncio.Event())


def test_share_beyond_the_interval_of_clients_differs() -> None:
    kept = Bounds(0.95, 0.93, 0.97)
    goodput = Judgement(Promise("std", 0.9), Verdict.PASS, kept, 1000, 50, before=kept)
    assert [differs(goodput, {"std": share}) for share in (0.92, 0.93, 0.97, 0.98)] == [True, False, False, True]
    assert not differs(goodput, {"other": 0.5})


def test_tiers_without_requests_have_no_share() -> None:
    now, before = (
        TierCounts({"a": 9.0, "b": 4.0}, {"a": 12.0, "b": 5.0}),
        TierCounts({"a": 3.0, "b": 4.0}, {"a": 4.0, "b": 5.0}),
    )
    assert now.since(before) == {"a": 0.75}
