"""Tells the controller when a day or a month of UTC begins, because it has no clock that knows dates."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from gateway.core.sample import QuotaWindow
from gateway.driving.local_driver import LocalDriver


class QuotaClock:
    """The present windows of quotas."""

    def __init__(self, driver: LocalDriver, unix_s: Callable[[], float]) -> None:
        """`unix_s`: returns the Unix time."""
        self._driver = driver
        self._unix_s = unix_s
        self._day = ""
        self._told: set[str] = set()
        """Names of all windows so far. If the clock steps back, none is opened again: it would be granted twice."""

    def step(self, now: float) -> None:
        """Tell the windows if they have changed. Called at the start, and then every second."""
        unix_s = self._unix_s()
        today = datetime.fromtimestamp(unix_s, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        if self._day == f"{today:%Y-%m-%d}":
            return
        self._day = f"{today:%Y-%m-%d}"
        tomorrow = today + timedelta(days=1)
        next_month = (today.replace(day=1) + timedelta(days=32)).replace(day=1)
        ends = [now + end.timestamp() - unix_s for end in (tomorrow, next_month)]
        windows = QuotaWindow("day", self._day, ends[0]), QuotaWindow("month", f"{today:%Y-%m}", ends[1])
        new = tuple([window for window in windows if window.name not in self._told])
        self._told.update([window.name for window in new])
        if new:
            self._driver.call(self._driver.controller.open_windows, (new,))
