"""Row 11: a request that kills its replica is not carried on to the next one."""

from __future__ import annotations

import asyncio

import pytest

from loadtests.emulator import Emulator

from .conftest import Connect, EmulatorFactory, GatewayFactory
from .policies import rules
from .raw import chat

POISON = "kill-the-replica"
REPLICAS = 6


def _poisonable(emulator: Emulator) -> None:
    for replica in emulator.replicas:
        replica.fault("die_on_marker", marker=POISON)


def _dead(emulator: Emulator) -> int:
    return sum(not replica.listening for replica in emulator.replicas)


@pytest.mark.parametrize("warm", [False, True], ids=["new connections", "connections used before"])
@pytest.mark.parametrize("stream", [False, True])
async def test_the_gateway_does_not_carry_it_on(
    gateway: GatewayFactory, emulator: EmulatorFactory, connect: Connect, stream: bool, warm: bool
) -> None:
    replicas = await emulator(replicas=REPLICAS)
    gw = await gateway(rules(*replicas.urls))
    clients = [await connect(gw.url) for _ in range(4 * REPLICAS)]
    if warm:
        # The case in which a request without an answer is sent again: the connection may have been closed before it.
        answers = await asyncio.gather(*(client.ask(chat(max_tokens=2)) for client in clients))
        assert {answer.status for answer in answers} == {200}
        assert all(replica.received_total for replica in replicas.replicas)
    _poisonable(replicas)
    answer = await clients[0].ask(chat(stream=stream, content=f"Please {POISON} now"))
    assert (answer.status, answer.error["code"]) == (502, "upstream_error")
    assert _dead(replicas) == 1
    others = await asyncio.gather(*(client.ask(chat(max_tokens=2)) for client in clients))
    assert {answer.status for answer in others} == {200}, "the others have replicas left"
    assert _dead(replicas) == 1
