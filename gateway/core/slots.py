"""How many requests an engine is given at once, where the policy does not say: learned around the knee.

An engine whose slots are taken runs no more than it has, whatever it is sent; the rest waits in it unread, where tiers
and deadlines mean nothing. So what is looked at is how many run (in flight, their prompts read), and whether the engine
ever caught up with its prompts while it had as many requests as the limit lets it:

    caught up                       limit -> most that ran x (1 + growth) + 1    there may be more slots
    always behind                   limit -> most that ran, in part              there are not
    always behind, limit not used   limit -> what it was before it grew          nobody knows

The last is seen where the window for unread prompts holds requests back before the limit does.

A cold engine is unknown, so it is sent twice as many at once. One that falls behind has shown its slots: the growth is
small from then on. It doubles with each second in which the engine caught up with all that the limit allows.

An engine that has slots left may still be too slow for a TPOT that is promised: the limit grows no further than that.

More than the limit may have run: tiers in shadow are not bound by it (pools.py). Then so many there are.

This is what Netflix's Gradient2 and Envoy's adaptive concurrency look for in latency. Latency says it less well here:
it grows with the length of prompts and with the load itself, and a forecast fitted to it takes a queue that is always
there for the engine's own pace. The limit moves only while requests wait for a slot, or would wait if all were bound.
"""

from __future__ import annotations

from typing import Final

START: Final = 32.0
"""The geometric mean of 1 and 1,024 slots: all between are at most five doublings away, or halvings."""
MIN_GROWTH: Final = 0.04
"""Of an engine that has shown its slots. More would be in the way of the most urgent, each time it is tried."""
MAX_GROWTH: Final = 1.0
"""Of an engine that is unknown, or goes on catching up."""
FALL: Final = 0.3
"""Share of the way to a smaller limit that is gone in an interval."""
INTERVAL_S: Final = 1.0
"""Too many are seen within so long, or twice that."""


class SlotLimit:
    """The learned limit of one replica, at least 1."""

    __slots__ = ("_at", "_full", "_growth", "_least_unread", "_most_running", "_proven", "_ran", "limit")

    def __init__(self) -> None:
        self.limit = START
        self._at = 0.0
        self._full = False
        self._growth = MAX_GROWTH
        self._most_running = 0
        self._least_unread = -1
        self._ran = 0
        """Most that ran in the interval before."""
        self._proven = START
        """The last limit with which the engine caught up."""

    @property
    def slots(self) -> int:
        """The limit in whole requests."""
        return int(self.limit + 0.5)

    def saw(self, running: int, unread: int) -> None:
        """A prompt was read, or the engine was asked: so many run now, and so many more are yet to be read."""
        if running > self._most_running:
            self._most_running = running
        if running + unread >= self.limit - 1.0:
            self._full = True
        if unread < self._least_unread or self._least_unread < 0:
            self._least_unread = unread

    def learn(self, pressed_at: float, headroom: float, now: float) -> None:
        """Move the limit once an interval. `pressed_at`: when a request last wanted more than it allows, or `now`.

        `headroom`: the tightest TPOT that is promised, over that of what runs now; inf if none is.
        """
        if now - self._at < INTERVAL_S:
            return
        pressed = pressed_at >= self._at
        self._at = now
        running, unread, full = self._most_running, self._least_unread, self._full
        rises, self._ran = running > self._ran, running
        self._most_running, self._least_unread, self._full = 0, -1, False
        if not pressed or unread < 0:
            return
        if not full:
            if unread > 0 and not rises:
                self._take_back(running)
            return
        self.limit = max(self.limit, running)
        if unread > 0:
            self._growth = MIN_GROWTH
            self.limit += FALL * (running - self.limit)
            self._proven = min(self._proven, self.limit)
        elif headroom > 1.0:
            growth = MIN_GROWTH
            if running >= self.slots:
                growth, self._growth = self._growth, min(MAX_GROWTH, 2.0 * self._growth)
                self._proven = self.limit
            self.limit = max(self.limit, running * (1.0 + min(growth, headroom - 1.0)) + 1.0)
        self.limit = max(1.0, self.limit)

    def _take_back(self, running: int) -> None:
        """Give up a growth that was not used while the engine was behind."""
        most = max(self._proven, running * (1.0 + MIN_GROWTH) + 1.0)
        if self.limit > most:
            self.limit = most
            self._growth = MIN_GROWTH
