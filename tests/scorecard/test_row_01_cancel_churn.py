"""Row 1: clients that leave at any moment, in any way, leave nothing behind."""

from __future__ import annotations

import asyncio
import random
import sys
from typing import Any

from gateway.app import Gateway

from . import raw
from .conftest import Connect, EmulatorFactory, GatewayFactory
from .policies import rules
from .raw import chat
from .state import held
from .waiting import DEADLINE_S, SOAK, until

CANCELS = 10_000 if SOAK else 1_500
AT_ONCE = 24
REPLICAS = 2
SLOTS = 4
QUEUE = 8
CONCURRENCY = 40
SOURCES = [f"127.0.0.{last}" for last in range(2, 34)] if sys.platform == "linux" else [""]
"""Where clients come from: from one address to one port there are only so many connections in a minute."""
# Replicas run in real time, so that clients can leave in every phase.
TIER = f"limits: {{concurrency: {CONCURRENCY}, tokens: 100000k/min}}"
FAULTS: tuple[tuple[str | None, Any], ...] = (
    *((None, {}), (None, {}), ("slow", {"factor": 20}), ("pause", {"for_s": 0.05}), ("refuse", {"for_s": 0.05})),
    *(("refuse", {"how": "reset", "for_s": 0.05}), ("dead", {"for_s": 0.05}), ("status_503", {}), ("status_500", {})),
    *(
        ("error_200", {}),
        ("reset", {"after_events": 2}),
        ("reset", {"after_bytes": 50}),
        ("stall", {"after_events": 1}),
    ),
    *(("truncated", {"after_events": 2}), ("truncated", {"after_bytes": 300}), ("shutdown_like", {"after_events": 2})),
    *(("garbage", {"how": "http"}), ("garbage", {"how": "json", "after_events": 2}), ("balloon", {})),
)


async def test_ten_thousand_cancels_leave_no_slot_behind(
    gateway: GatewayFactory, emulator: EmulatorFactory, connect: Connect
) -> None:
    fleet = await emulator(replicas=REPLICAS, time_scale=1.0)
    gw = await gateway(rules(*fleet.urls, slots=SLOTS, queue=QUEUE, tier=TIER))
    dice = random.Random(1)
    left = CANCELS

    async def churn() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await _one(gw, random.Random(dice.random()))

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(churn())
    await until(lambda: not held(gw), seen=lambda: held(gw))
    for replica in fleet.replicas:
        await replica.until(lambda r: not (r.in_flight or r.running or r.waiting))
    # No socket is left open, either, except a few of the gateway's health checks.
    probing = 4 * REPLICAS
    sockets = [replica.connections for replica in fleet.replicas]
    await until(lambda: sum(map(len, sockets)) <= gw.api.upstreams.open_connections + probing)
    # Every cancel concerned an existing request.
    assert sum(replica.received_total for replica in fleet.replicas) > CANCELS / 4
    assert sum(replica.finished["abort"] for replica in fleet.replicas) > CANCELS / 20

    # All room is free again: slots and queue full of requests are all served.
    clients = [await connect(gw.url) for _ in range(REPLICAS * SLOTS + QUEUE)]
    answers = await asyncio.gather(*(client.ask(chat(max_tokens=4, stream=True)) for client in clients))
    assert {(answer.status, answer.whole) for answer in answers} == {(200, True)}


async def test_cancels_among_faults_leave_no_slot_behind(
    gateway: GatewayFactory, emulator: EmulatorFactory, connect: Connect
) -> None:
    """The same, while replicas have all kinds of faults and deadlines pass."""
    fleet = await emulator(replicas=REPLICAS, time_scale=1.0)
    timeouts = "timeouts: {queue: 30ms, ttft: 50ms, idle: 100ms, total: 300ms}"
    pool = "connect_timeout: 100ms, health: {failures: 100000}"
    policy = rules(
        *fleet.urls, slots=SLOTS, queue=QUEUE, tier=f"{TIER}, {timeouts}, retry: {{budget: 100%}}", pool=pool
    )
    gw = await gateway(policy)
    dice = random.Random(2)
    left = CANCELS

    async def churn() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            if not left % 20:
                kind, details = dice.choice(FAULTS)
                fleet.replicas[left // 20 % REPLICAS].fault(kind, **details)
            await _one(gw, random.Random(dice.random()))

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(churn())
    for replica in fleet.replicas:
        replica.fault(None)
    await until(lambda: not held(gw), seen=lambda: held(gw))
    for replica in fleet.replicas:
        await replica.until(lambda r: r.listening and not (r.in_flight or r.running or r.waiting))
    client = await connect(gw.url)
    served = 0
    async with asyncio.timeout(DEADLINE_S):
        while served < REPLICAS * 5:  # a busy machine may not keep these timeouts
            served += (await client.ask(chat(max_tokens=4, stream=True))).status == 200


async def _one(gw: Gateway, dice: random.Random) -> None:
    """Send one request, and disconnect at a random moment, in a random way."""
    client = await raw.connect(gw.url, source=dice.choice(SOURCES))
    try:
        stream = dice.random() < 0.7
        request = chat(stream=stream, max_tokens=dice.choice((1, 8, 64)), min_tokens=1)
        match dice.randrange(6):
            case 0:
                client.send(request[: dice.randrange(1, len(request))])
            case 1:
                client.send(request)
            case 2 | 3:
                client.send(request)
                for _ in range(dice.randrange(40)):
                    await asyncio.sleep(0)
            case 4:
                client.send(request)
                _, headers = await client.head()
                for _ in range(dice.randrange(6) if "transfer-encoding" in headers else 0):
                    if not await client.chunk():
                        break
            case _:
                client.send(request)
                await client.response()
        await _leave(client, request, dice)
    except (ConnectionError, asyncio.IncompleteReadError):
        pass
    finally:
        await client.close()


async def _leave(client: raw.Client, request: bytes, dice: random.Random) -> None:
    match dice.randrange(4):
        case 0:
            client.fin()
        case 1:
            client.rst()
        case 2:
            client.half_close()
            await client.rest()
        case _:
            client.send(request)
