"""A replica whose address drops SYNs, as that of a pod that is gone: a few requests wait for the connect, no more."""

from __future__ import annotations

from time import monotonic

from gateway.core.pool_spec import Health
from gateway.core.snapshot import ReplicaState

from .conftest import Connect, EmulatorFactory, GatewayFactory
from .policies import rules
from .raw import chat

REQUESTS = 40


async def test_few_requests_wait_for_a_connect_to_a_port_that_drops_syns_and_all_are_answered(
    gateway: GatewayFactory, connect: Connect, emulator: EmulatorFactory, unanswering: str
) -> None:
    fleet = await emulator(replicas=1)
    pool = "connect_timeout: 300ms, health: {interval: 1h, timeout: 300ms}"
    gw = await gateway(rules(unanswering, *fleet.urls, pool=pool))
    answers = [await (await connect(gw.url)).ask(chat(max_tokens=1)) for _ in range(REQUESTS)]
    assert {answer.status for answer in answers} == {200}
    ((silent, answering),) = [pool.replicas for pool in gw.controller.snapshot(monotonic()).pools]
    assert silent.state is ReplicaState.ABSENT
    assert "connecting timed out" in silent.health.error
    assert silent.health.error_count <= Health().failures
    assert answering.state is ReplicaState.UP
