"""Little's law between the sockets and the records: requests on connections, and requests in records."""

from __future__ import annotations

import asyncio
import random
from time import monotonic

import httpx
import pytest

from gateway.app import Gateway
from gateway.core.sample import Sample
from gateway.observe.metrics.little import LittleView

from .capture import Capture
from .conftest import Connect, EmulatorFactory, GatewayFactory
from .policies import rules
from .raw import chat
from .state import held
from .waiting import until

CLIENTS = 24
EACH = 8
TOLERATED = 0.05
"""Largest gap. For each request, server and controller read the clock one after the other, and a busy machine may pause
in between. A single leaked answer makes a larger gap.
"""


def law(gw: Gateway) -> LittleView:
    (view,) = gw.sweeper.little.read(now := monotonic(), gw.controller.held(now))
    return view


def gap(view: LittleView) -> float:
    assert view.time_s is not None
    return view.in_flight / (view.rate_per_s * view.time_s) - 1.0


def holds(view: LittleView) -> bool:
    return abs(gap(view)) <= TOLERATED


@pytest.fixture
async def busy(gateway: GatewayFactory, emulator: EmulatorFactory, connect: Connect) -> Gateway:
    """A gateway that has served streams and whole answers, of which many waited, some were cancelled, some refused."""
    fleet = await emulator(replicas=2, time_scale=1.0)
    gw = await gateway(rules(*fleet.urls, slots=4, queue=10, tier="timeouts: {queue: 100ms}, admission: {mode: off}"))
    dice = random.Random(3)

    async def churn() -> None:
        for number in range(EACH):
            client = await connect(gw.url)
            client.send(chat(stream=dice.random() < 0.7, max_tokens=dice.randint(20, 120)))
            if number % 4 == 3:
                await asyncio.sleep(0.02 * dice.random())
                await client.close()
            else:
                await client.response()

    async with asyncio.TaskGroup() as group:
        for _ in range(CLIENTS):
            group.create_task(churn())
    return gw


async def test_littles_law_holds_over_the_whole_run(busy: Gateway, connect: Connect) -> None:
    await until(lambda: not busy.driver.under_way)
    view = law(busy)
    served = sum(lane.dispatched for lane in busy.metrics.lanes.values())
    assert view.rate_per_s * view.window_s == pytest.approx(served)
    assert served > CLIENTS * EACH / 3
    assert holds(view)


async def test_littles_law_holds_in_the_middle_of_answers(busy: Gateway, connect: Connect) -> None:
    clients = [await connect(busy.url) for _ in range(4)]
    for client in clients:
        client.send(chat(stream=True, max_tokens=4000))
    await until(lambda: busy.controller.snapshot(monotonic()).pools[0].held == 4)
    until_at = monotonic() + 0.05
    await until(lambda: monotonic() > until_at)
    assert holds(law(busy))
    for client in clients:
        await client.close()


async def test_request_on_hold_that_was_sent_to_a_dead_replica_is_in_no_pool(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url, pool="hold: 60s, health: {interval: 1h}"))
    name, port = capture.url.removeprefix("http://"), int(capture.url.rpartition(":")[2])
    await until(lambda: capture.probes)
    await capture.stop()
    client = await connect(gw.url)
    client.send(chat())
    await until(lambda: gw.controller.snapshot(monotonic()).pools[0].on_hold == 1)
    since = monotonic()
    await until(lambda: monotonic() > since + 0.05)
    assert "requests that the server has" not in held(gw)
    await capture.start(port)
    back_at = monotonic()
    gw.driver.observe(name, Sample(healthy=True))
    answer = await client.response()
    assert answer.status == 200
    (queue, _) = answer.headers["server-timing"].split(", ")
    assert float(queue.removeprefix("queue;dur=")) >= (back_at - since) * 1000.0
    view = law(gw)
    assert view.time_s is not None
    assert max(view.time_s, view.in_flight * view.window_s) <= monotonic() - back_at
    await client.close()


async def test_request_whose_replica_went_down_while_it_was_connecting_is_in_no_pool(
    gateway: GatewayFactory, connect: Connect, unanswering: str
) -> None:
    gw = await gateway(rules(unanswering, pool="hold: 60s, connect_timeout: 60s, health: {interval: 1h, timeout: 60s}"))
    client = await connect(gw.url)
    client.send(chat())
    await until(lambda: "requests that the server has" in held(gw))
    for _ in range(3):
        gw.driver.observe(unanswering.removeprefix("http://"), Sample(healthy=False))
    assert gw.controller.snapshot(monotonic()).pools[0].on_hold == 1
    assert "requests that the server has" not in held(gw)
    assert gw.controller.held(monotonic()) == {"main": (0, 0.0)}
    await client.close()


async def test_admin_port_shows_littles_law(busy: Gateway) -> None:
    await until(lambda: not busy.driver.under_way)
    async with httpx.AsyncClient(base_url=busy.admin_url) as client:
        shown = (await client.get("/admin/state")).json()["little"]
        page = (await client.get("/metrics")).text
    assert [row["pool"] for row in shown] == ["main"]
    assert holds(LittleView(**shown[0]))
    assert "# TYPE tailgate_little_gap_ratio gauge" in page


async def test_leaked_connection_shows_as_a_gap_in_littles_law(busy: Gateway) -> None:
    await until(lambda: not busy.driver.under_way)
    assert "requests that the server has" not in held(busy)
    before = law(busy)
    # As if one answer had never been marked as complete.
    busy.limits.occupancy("main").begin(monotonic() - before.window_s, monotonic())
    assert gap(law(busy)) > TOLERATED
    assert held(busy)["requests that the server has"] == 1
