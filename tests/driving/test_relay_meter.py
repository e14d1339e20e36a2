"""The decider counts what relays tell."""

from __future__ import annotations

import asyncio
import time

import pytest

from gateway.app import Gateway
from gateway.core.estimators.histograms import LogHistogram
from gateway.core.slo import Objective, Slo
from gateway.driving.channel import Frame
from gateway.driving.relay_link import FrameClock, RelayLink
from gateway.driving.relay_meter import RelayMeter
from gateway.observe.metrics.metrics import Metrics
from gateway.settings import Settings
from tests.core.made import policy, pool, tier

POOL = pool("p", "r1")


async def test_times_of_streams_are_in_the_right_bucket_of_a_decider_with_other_objectives() -> None:
    told: list[Frame] = []
    meter = RelayMeter(told.append)
    meter.configure(Metrics(policy(POOL, tier("std"))).itl_edges)
    times_s = (0.05, 0.09, 0.2, 9999.0)
    for time_s in times_s:
        meter.gaps("std", "p").add(time_s)
    meter.flush(0.0)

    rules = policy(POOL, tier("std", slo=Slo(tpot=(Objective(0.99, 0.087),))))
    clock = FrameClock(time.monotonic)
    gateway = Gateway(Settings(port=0, admin_port=0), rules, relays=clock)
    assert gateway.hub is not None
    link = RelayLink(1, asyncio.get_running_loop(), gateway.driver, clock, gateway.hub, rules)
    for frame in told:
        gateway.hub.told(link, list(frame))
    found = gateway.metrics.gaps("std", "p")
    right = LogHistogram(found.edges)
    for time_s in times_s:
        right.add(time_s)
    assert found.counts == right.counts
    assert found.sum == pytest.approx(right.sum)
    gateway.driver.close()
