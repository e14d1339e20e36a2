"""Deadlines: of connections, which may stay in a state only for a fixed time, and the alarm for the next one of all
requests.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from gateway.late import LATE_S, POLL_S

K = TypeVar("K")
MAX_AT_ONCE: Final = 32
"""At most this many keys are handled in one turn of the loop. To end a request takes up to .1 ms, and thousands may be
due at once.
"""


class Alarm:
    """Rings at the earliest of the times that it is set to.

    If it rings late, the process stood still. Then it tells by how many seconds, and rings once the loop has delivered
    what had arrived meanwhile.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        ring: Callable[[], None],
        lagged: Callable[[float], None],
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._call = ring
        self._lagged = lagged
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = math.inf
        self.at = math.inf
        """Time of the alarm; inf if none is set."""
        self.was_late = False
        """Whether it rings late."""

    def set(self, at: float) -> None:
        """Ring at `at`, which is earlier than the time set before."""
        self.cancel()
        now = self._clock()
        self.at, self._due_at = at, max(at, now)
        self._timer = self._loop.call_later(self._due_at - now, self._ring)

    def cancel(self) -> None:
        """Do not ring."""
        if self._timer is not None:
            self._timer.cancel()

    def _ring(self) -> None:
        late_s = self._clock() - self._due_at
        if late_s > LATE_S and not self.was_late:
            self.was_late = True
            self.at = -math.inf  # no other time may come before the poll
            self._timer = self._loop.call_later(POLL_S, self._ring)
            self._lagged(late_s)
        else:
            self._timer, self.at = None, math.inf
            self._call()
            self.was_late = False


class Deadline(Generic[K]):
    """A set of keys that all have the same time limit. They become due in the order in which they were added, so a
    sweep reads only overdue keys.
    """

    def __init__(self, limit_s: float, act: Callable[[K], None], broke: Callable[[K, Exception], None]) -> None:
        """`limit_s`: time limit in seconds. `act` is called with each overdue key. If `act` raises, `broke` gets the
        exception, and the other keys are still handled.
        """
        self.limit_s = limit_s
        self._act = act
        self._broke = broke
        self._due: dict[K, float] = {}

    def start(self, key: K, now: float) -> None:
        """Start the time limit of `key` at `now`, or start it again."""
        self.stop(key)
        self._due[key] = now + self.limit_s

    def stop(self, key: K) -> None:
        """Remove `key`. Ignored if it is missing."""
        if key in self._due:
            del self._due[key]

    def excuse(self, late_s: float) -> None:
        """Give every key `late_s` more, because the process stood still for that long."""
        self._due = {key: due + late_s for key, due in self._due.items()}

    def oldest(self) -> K | None:
        """The key that is due first; None if there is none."""
        return next(iter(self._due), None)

    def sweep(self, now: float) -> bool:
        """Act on at most `MAX_AT_ONCE` overdue keys. Returns whether more are overdue."""
        for _ in range(MAX_AT_ONCE):
            key = self.oldest()
            if key is None or self._due[key] > now:
                return False
            del self._due[key]
            try:
                self._act(key)
            except Exception as error:  # noqa: BLE001 - a bug affects only this key
                self._broke(key, error)
        key = self.oldest()
        return key is not None and self._due[key] <= now

    def __len__(self) -> int:
        return len(self._due)
