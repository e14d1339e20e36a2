"""How many requests an engine is given at once, where the policy does not say: learned around the knee.

An engine whose slots are taken runs no more than it has, whatever it is sent; the rest waits in it unread, where tiers
and deadlines mean nothing. So what is looked at is how many run (in flight, their prompts read), and whether the engine
ever caught up with its prompts while it had as many requests as the limit lets it:

    caught up              limit -> most that ran x GROWTH + 1          there may be more slots
    always behind          limit -> most that ran                       there are not

More than the limit may have run: tiers in shadow are not bound by it (pools.py). Then so many there are.

This is what Netflix's Gradient2 and Envoy's adaptive concurrency look for in latency. Latency says it less well here:
it grows with the length of prompts and with the load itself, and a forecast fitted to it takes a queue that is always
there for the engine's own pace. The limit moves only while requests wait for a slot, or would wait if all were bound.
"""

from __future__ import annotations

from typing import Final

START: Final = 32.0
GROWTH: Final = 1.08
RISE: Final = 0.5
"""Share of the way to a larger limit that is gone in an interval,"""
FALL: Final = 0.3
"""and to a smaller one."""
INTERVAL_S: Final = 1.0


class ConcurrencyLimit:
    """The learned limit of one replica, at least 1."""

    __slots__ = ("_at", "_full", "_least_unread", "_most_running", "limit")

    def __init__(self) -> None:
        self.limit = START
        self._at = 0.0
        self._full = False
        self._most_running = 0
        self._least_unread = -1

    @property
    def slots(self) -> int:
        """The limit in whole requests."""
        return int(self.limit + 0.5)

    def saw(self, running: int, unread: int) -> None:
        """A prompt was read: so many requests run now, and so many more are yet to be read."""
        if running > self._most_running:
            self._most_running = running
        if running + unread >= self.limit - 1.0:
            self._full = True
        if unread < self._least_unread or self._least_unread < 0:
            self._least_unread = unread

    def learn(self, pressed_at: float, now: float) -> None:
        """Move the limit once an interval. `pressed_at`: when a request last wanted more than it allows, or `now`."""
        if now - self._at < INTERVAL_S:
            return
        pressed = pressed_at >= self._at
        self._at = now
        running, unread, full = self._most_running, self._least_unread, self._full
        self._most_running, self._least_unread, self._full = 0, -1, False
        if not (pressed and full):
            return
        self.limit = max(self.limit, running)
        if unread > 0:
            self.limit += FALL * (running - self.limit)
        else:
            self.limit += RISE * max(0.0, running * GROWTH + 1.0 - self.limit)
        self.limit = max(1.0, self.limit)
