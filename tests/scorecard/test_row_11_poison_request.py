"""Row 11: a request that kills its replica kills at most two, even if repeated."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import openai
import pytest

from loadtests.emulator import Emulator

from .capture import Answer, Capture, Then, by_default
from .conftest import Connect, EmulatorFactory, GatewayFactory
from .policies import rules
from .raw import MODEL, chat
from .waiting import until

POISON = "kill-the-replica"
REPLICAS = 6
HELLO = [{"role": "user", "content": "Hello"}]


def _poisonable(emulator: Emulator) -> None:
    for replica in emulator.replicas:
        replica.fault("die_on_marker", marker=POISON)


def _dead(emulator: Emulator) -> int:
    return sum(not replica.listening for replica in emulator.replicas)


@pytest.mark.parametrize("warm", [False, True], ids=["new connections", "connections used before"])
@pytest.mark.parametrize("stream", [False, True])
async def test_gateway_retries_a_poison_request_once(
    gateway: GatewayFactory, emulator: EmulatorFactory, connect: Connect, stream: bool, warm: bool
) -> None:
    replicas = await emulator(replicas=REPLICAS)
    gw = await gateway(rules(*replicas.urls))
    clients = [await connect(gw.url) for _ in range(4 * REPLICAS)]
    if warm:
        # The only case in which a request without an answer is sent again: the connection may have been closed before
        # it.
        answers = await asyncio.gather(*(client.ask(chat(max_tokens=2)) for client in clients))
        assert {answer.status for answer in answers} == {200}
        assert all(replica.received_total for replica in replicas.replicas)
    _poisonable(replicas)
    answer = await clients[0].ask(chat(stream=stream, content=f"Please {POISON} now"))
    assert (answer.status, answer.error["code"]) == (502, "upstream_error")
    assert _dead(replicas) == 2, "the first might have died of something else"
    others = await asyncio.gather(*(client.ask(chat(max_tokens=2)) for client in clients))
    assert {answer.status for answer in others} == {200}, "the others have replicas left"
    assert _dead(replicas) == 2


async def test_repeated_poison_request_kills_at_most_two_replicas(
    gateway: GatewayFactory, emulator: EmulatorFactory, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """Other requests are served during and after that, even those that were at a dying replica."""
    replicas = await emulator(replicas=REPLICAS)
    gw = await gateway(rules(*replicas.urls, keys={"a": "acme", "b": "globex"}, pool="health: {failures: 1}"))
    _poisonable(replicas)
    client = await connect(gw.url)
    poison = {"content": f"Please {POISON} now"}
    codes = []
    for key in ("a", "b", "a", "b", "a"):
        for stream in (True, True, False, False):
            answer = await client.ask(chat(f"x-api-key: {key}", stream=stream, **poison))
            codes.append((answer.status, answer.error["code"], answer.headers.get("x-should-retry")))
            assert (await client.ask(chat(f"x-api-key: {key}", max_tokens=2))).status == 200
    assert codes[0] == (502, "upstream_error", None)
    assert set(codes[1:]) == {(400, "request_quarantined", "false")}, "streamed or not, it is the same request"
    assert _dead(replicas) == 2
    await until(lambda: any(line.endswith("was refused") for line in _told(caplog)))
    assert _told(caplog)[0].startswith("a request is in quarantine")
    assert POISON not in caplog.text


def _told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line.getMessage() for line in caplog.records if line.name == "tailgate.quarantine"]


async def test_official_client_with_a_poison_request_kills_at_most_two_replicas(
    gateway: GatewayFactory, emulator: EmulatorFactory
) -> None:
    """The SDK retries after a 502, but not after the quarantine."""
    replicas = await emulator(replicas=REPLICAS)
    gw = await gateway(rules(*replicas.urls))
    _poisonable(replicas)
    async with openai.AsyncOpenAI(base_url=f"{gw.url}/v1", api_key="any", max_retries=5) as client:
        for _ in range(3):
            with pytest.raises(openai.BadRequestError) as raised:
                await client.chat.completions.create(
                    model=MODEL, messages=[{"role": "user", "content": f"Please {POISON} now"}], max_tokens=3
                )
            assert raised.value.code == "request_quarantined"
        assert _dead(replicas) == 2
        answer = await client.chat.completions.create(model=MODEL, messages=cast(Any, HELLO), max_tokens=3)
        assert answer.choices[0].message.content


async def test_requests_beside_a_poison_request_are_served_by_another_replica(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    """The same body again and again, as of a health check: it was often present at a break-off."""
    async with Capture() as other:
        gw = await gateway(rules(capture.url, other.url, pool="router: round-robin, health: {failures: 1000}"))
        client = await connect(gw.url)
        for _ in range(4):
            for broken, well in ((capture, other), (other, capture)):
                broken.answer = lambda call: Answer(b"", Then.RESET)
                well.answer = by_default
                for _ in range(2):
                    assert (await client.ask(chat())).status == 200
