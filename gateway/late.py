"""Time limits that do not blame the other side if this process stood still.

After a stop (SIGSTOP, a busy loop, a machine that slept) timers are due at once. They may fire before the loop has read
what arrived in time.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final

LATE_S: Final = 0.1
"""A timer that fires this many seconds late shows that the process stood still. A busy loop is late by a few ms."""
POLL_S: Final = 0.001
"""Seconds in which the loop reads what has arrived: the shortest timer, which fires after one poll."""


class Within:
    """Like `asyncio.timeout`: raises TimeoutError `timeout_s` seconds after the block was entered.

    If its timer fires late, the block gets `LATE_S` more, since a connection or an answer takes several turns of the
    loop. `was_late` then says that a timeout is not the fault of the other side.
    """

    def __init__(self, timeout_s: float) -> None:
        self.was_late = False
        self._timeout_s = timeout_s
        self._is_over = False

    async def __aenter__(self) -> Within:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        self._loop = asyncio.get_running_loop()
        self._set(self._timeout_s)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._is_over and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def _set(self, seconds: float) -> None:
        self._due_at = self._loop.time() + seconds
        self._timer = self._loop.call_later(seconds, self._ring)

    def _ring(self) -> None:
        if not self.was_late and self._loop.time() - self._due_at > LATE_S:
            self.was_late = True
            self._set(LATE_S)
        else:
            self._is_over = True
            self._task.cancel()
