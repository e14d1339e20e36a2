"""The decider counts what relays tell."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest

from gateway.app import Gateway
from gateway.core.estimators.histograms import LogHistogram
from gateway.core.policy import Tier
from gateway.core.results import Reason
from gateway.core.slo import Objective, Slo
from gateway.driving import frames
from gateway.driving.channel import Frame
from gateway.driving.relay_link import FrameClock, RelayLink
from gateway.driving.relay_meter import RelayMeter
from gateway.observe.metrics.metrics import Metrics
from gateway.settings import Settings
from tests.core.made import a_request, policy, pool, tier
from tests.driving.test_remote_driver import Told
from tests.interpreted import interpreted

POOL = pool("p", "r1")


class Decider:
    """A decider that does not run, and links to relays."""

    def __init__(self, of: Tier) -> None:
        self.rules = policy(POOL, of)
        self.clock = FrameClock(time.monotonic)
        self.gateway = Gateway(Settings(port=0, admin_port=0), self.rules, relays=self.clock)
        assert self.gateway.hub is not None
        self.hub = self.gateway.hub

    def link(self, number: int) -> RelayLink:
        return RelayLink(number, asyncio.get_running_loop(), self.gateway.driver, self.clock, self.hub, self.rules)


async def test_times_of_streams_are_in_the_right_bucket_of_a_decider_with_other_objectives() -> None:
    told: list[Frame] = []
    meter = RelayMeter(told.append)
    meter.configure(Metrics(policy(POOL, tier("std"))).itl_edges)
    times_s = (0.05, 0.09, 0.2, 9999.0)
    for time_s in times_s:
        meter.gaps("std", "p").add(time_s)
    meter.flush(0.0)

    decider = Decider(tier("std", slo=Slo(tpot=(Objective(0.99, 0.087),))))
    link = decider.link(1)
    for frame in told:
        decider.hub.told(link, list(frame))
    found = decider.gateway.metrics.gaps("std", "p")
    right = LogHistogram(found.edges)
    for time_s in times_s:
        right.add(time_s)
    assert found.counts == right.counts
    assert found.sum == pytest.approx(right.sum)


async def test_time_for_which_relays_held_requests_neither_falls_when_one_ends_nor_has_that_of_before() -> None:
    decider = Decider(tier("std"))
    old, new = decider.link(1), decider.link(2)
    for link, held_s in ((old, 100.0), (old, 103.0), (new, 0.0), (new, 2.0)):
        decider.hub.told(link, [frames.LOADS, 1, 1, 0.0, {"p": held_s}, 4711])
    decider.hub.lost(old)
    assert decider.hub.held_s == {"p": 5.0}


@interpreted
async def test_seat_of_an_attempt_that_a_relay_was_told_to_cancel_is_free_when_the_relay_dies() -> None:
    decider = Decider(tier("std"))
    link = decider.link(1)
    channel = link.channel = Told()
    request = frames.request_row(a_request(1, decider.rules, 1.0), decider.rules.generation)
    now = time.monotonic()
    link.on_frames([[frames.ARRIVE, now, msgspec.msgpack.decode(msgspec.msgpack.encode(request))]])
    assert channel.kinds() == [frames.DISPATCH]
    attempt = channel.frames[0][2]
    link.on_frames([[frames.SENT, now, attempt], [frames.LEAVE, now, 1, Reason.CLIENT_GONE.value]])
    assert channel.frames[-1][:3] == (frames.CANCEL, 1, attempt)
    channel.is_open = False
    link.on_lost()
    replica = decider.gateway.controller.state.fleet.replica("r1")
    assert replica is not None
    assert (replica.in_flight, decider.gateway.driver.under_way) == (0, 0)
