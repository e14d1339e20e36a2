"""The driver of a controller in the same process."""

from __future__ import annotations

import asyncio
from random import Random
from unittest.mock import Mock

from gateway.core.controller import Controller
from gateway.driving.local_driver import MAX_POSITIONS, LocalDriver
from gateway.observe.metrics.metrics import Metrics
from tests.core.made import a_request, policy, pool, tier
from tests.interpreted import interpreted


@interpreted
async def test_positions_are_told_until_too_many_requests_are_under_way_to_count_them() -> None:
    rules = policy(pool("p", "r1", slots=1, queue_limit=2 * MAX_POSITIONS), tier("std"))
    driver = LocalDriver(Controller(rules, Random(1)), Metrics(rules), asyncio.get_running_loop(), lambda: 1000.0)
    for number in range(1, MAX_POSITIONS + 2):
        driver.arrive(a_request(number, rules, 1000.0), Mock())
        if number == MAX_POSITIONS:
            last = driver.position(number)
            assert last is not None
            assert last.position == MAX_POSITIONS - 1, "one is served"
    assert driver.position(MAX_POSITIONS) is None
    driver.close()
