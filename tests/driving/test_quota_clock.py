"""Days and months of UTC begin for the controller when they begin for everybody."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from random import Random

from gateway.core.journal.recorder import Recorded, Told
from gateway.core.sample import QuotaWindow
from gateway.driving.local_driver import LocalDriver
from gateway.driving.quota_clock import QuotaClock
from gateway.observe.metrics.metrics import Metrics
from tests.core.made import policy, pool, tier


async def test_windows_are_told_once_and_again_when_the_date_has_changed() -> None:
    told: list[Told] = []
    unix_s = datetime(2026, 12, 31, 23, 59, tzinfo=UTC).timestamp()
    rules = policy(pool("p", "r1"), tier("std"))
    driver = LocalDriver(
        Recorded(rules, Random(1), told.append), Metrics(rules), asyncio.get_running_loop(), lambda: 1000.0
    )
    clock = QuotaClock(driver, lambda: unix_s)
    clock.step(1000.0)
    clock.step(1001.0)
    unix_s += 60.0
    clock.step(1060.0)
    driver.close()
    day, month = 86400.0, 31 * 86400.0
    assert [args[0] for _, args, _ in told] == [
        (QuotaWindow("day", "2026-12-31", 1060.0), QuotaWindow("month", "2026-12", 1060.0)),
        (QuotaWindow("day", "2027-01-01", 1060.0 + day), QuotaWindow("month", "2027-01", 1060.0 + month)),
    ]
