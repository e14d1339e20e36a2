"""Days and months of UTC begin for the controller when they begin for everybody."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from random import Random
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.journal.recorder import Recorded, Told
from gateway.core.policy import LimitKind, Limits, Quota
from gateway.core.queueing.limits import Tenants
from gateway.core.sample import QuotaWindow
from gateway.driving.local_driver import LocalDriver
from gateway.driving.quota_clock import QuotaClock
from gateway.observe.metrics.metrics import Metrics
from tests.core.made import policy, pool, tier

DAY_S = 86400.0


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


QUOTAS = Limits(quotas=(Quota(LimitKind.REQUESTS_DAY, "day", 3.0), Quota(LimitKind.REQUESTS_MONTH, "month", 7.0)))


def windows_in(told: list[Told]) -> list[tuple[QuotaWindow, ...]]:
    return [cast("tuple[QuotaWindow, ...]", arguments[0]) for _, arguments, _ in told]


@given(st.lists(st.tuples(st.floats(-40 * DAY_S, 40 * DAY_S), st.integers(0, 5)), max_size=12))
async def test_no_day_or_month_is_granted_twice_whatever_the_clock_does(steps: list[tuple[float, int]]) -> None:
    """At each step the clock is put on or back, and requests come."""
    unix_s, now = datetime(2026, 11, 30, 23, 59, tzinfo=UTC).timestamp(), 1000.0
    rules = policy(pool("p", "r1", slots=1000), tier("std", limits=QUOTAS))
    told: list[Told] = []
    driver = LocalDriver(
        Recorded(rules, Random(1), told.append), Metrics(rules), asyncio.get_running_loop(), lambda: now
    )
    clock = QuotaClock(driver, lambda: unix_s)
    tenants = Tenants()
    days: set[str] = set()
    months: set[str] = set()
    granted = 0
    for moved_s, asked in [(0.0, 5), *steps]:
        unix_s, now = max(0.0, unix_s + moved_s), now + 1.0
        before = len(told)
        clock.step(now)
        for windows in windows_in(told[before:]):
            tenants.open_windows(windows, rules.tiers, now)
        date = datetime.fromtimestamp(unix_s, UTC)
        days.add(f"{date:%Y-%m-%d}")
        months.add(f"{date:%Y-%m}")
        for _ in range(asked):
            use = tenants.of("acme", rules.tiers["std"], now)
            if use.check(1, now) is None:
                use.take(1, now)
                granted += 1
    driver.close()
    names = [window.name for windows in windows_in(told) for window in windows]
    assert sorted(names) == sorted(days | months), "each window that the clock ever showed was opened, once"
    assert granted <= min(3 * len(days), 7 * len(months))
