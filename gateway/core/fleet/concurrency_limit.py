"""Concurrency limit of an engine, learned around its knee, where the policy gives no `slots`.

An engine runs no more requests than it has seats. The rest waits unread inside it, where tiers and deadlines do not
count. So three facts decide once a second. The first is the highest number of running requests (in flight, prompts
read). The second is whether more ran than in the second before. The third is whether the engine ever caught up with its
prompts.

    limit used, caught up or running more     limit -> most that ran x (1 + growth) + 1     there may be more seats
    always behind, running no more            limit -> most that ran                        there are no more

An engine that is always behind and yet runs more each second is busy with prompts. Its seats are not known yet.

A cold engine is unknown, so growth begins at 1: the limit doubles with every second that confirms it. After the first
unconfirmed second growth stays small until it is confirmed again. TPOT and the KV cache have bounds of their own
(step_budget.py, kv_cache.py).

More requests than the limit may run, since it does not bind tiers in shadow (pool.py). They
prove as many seats.

Netflix's Gradient2 and Envoy's adaptive concurrency infer this limit from latency. Latency is a weaker signal here: it
grows with the length of prompts and with the load itself. A forecast fitted to latency takes a standing queue for the
engine's normal pace. The limit changes only while requests wait for a slot, or would wait if the limit bound every
tier.
"""

from __future__ import annotations

from typing import Final

START: Final = 32.0
"""Geometric mean of 1 and 1,024 seats: every engine in between is five doublings or halvings away."""
MIN_GROWTH: Final = 0.04
"""Growth for an engine that has shown its seats. Each attempt to grow delays the most urgent requests."""
MAX_GROWTH: Final = 1.0
OVERSHOT: Final = 1.25
"""A limit above this multiple of the running requests has grown further than the engine could use.

It is undone at once.
"""
FALL: Final = 0.3
"""Part of the way to a smaller limit that is moved per interval, where the difference may be chance."""
INTERVAL_S: Final = 1.0
"""Seconds between updates. A limit that is too high is noticed within one or two intervals."""


class ConcurrencyLimit:
    """The learned limit of one replica, at least 1."""

    __slots__ = (
        "_at",
        "_full",
        "_growth",
        "_least_unread",
        "_most_running",
        "_proven",
        "_ran",
        "_said",
        "kept",
        "limit",
    )

    def __init__(self) -> None:
        self.limit = START
        self.kept = 0.0
        """Slots left free for more urgent tiers.

        While a less urgent tier waits, all other slots are in use.
        """
        self._at = 0.0
        self._growth = MAX_GROWTH
        self._proven = START
        """The last limit at which the engine caught up, or the initial one."""
        self._full = False
        self._most_running = 0
        self._least_unread = -1
        self._ran = 0
        """Highest number of running requests in the interval before."""
        self._said = 0
        """Running requests of the last scrape, if others waited in the engine; 0: none waited."""

    @property
    def slots(self) -> int:
        """The limit in whole requests."""
        return int(self.limit + 0.5)

    def saw(self, running: int, unread: int) -> None:
        """A prompt was read. `running` requests run now; `unread` more wait for their prompts to be read."""
        if running > self._most_running:
            self._most_running = running
        if running + unread >= self.limit - 1.0 - self.kept:
            self._full = True
        if unread < self._least_unread or self._least_unread < 0:
            self._least_unread = unread

    def scraped(self, waiting: int, running: int, in_flight: int) -> None:
        """A scrape reported the engine's running and waiting requests, while this gateway had `in_flight` there."""
        if waiting == 0:
            if running:
                self.saw(min(running, in_flight), 0)
        elif running and running == self._said:
            # The same number ran twice while others waited: it is the number of seats, even if the limit was not
            # reached.
            self.limit = self._proven = min(self.limit, float(running))
            self._growth = MIN_GROWTH
        self._said = running if waiting > 0 else 0

    def learn(self, pressed_at: float, now: float) -> None:
        """Move the limit once an interval. `pressed_at`: when a request last exceeded the limit or was queued."""
        if now - self._at < INTERVAL_S:
            return
        pressed = pressed_at >= self._at
        self._at = now
        running, unread, full = self._most_running, self._least_unread, self._full
        ran, self._ran = self._ran, running
        rises = running > ran * (1.0 + MIN_GROWTH)
        self._most_running, self._least_unread, self._full = 0, -1, False
        if not pressed or unread < 0:
            return
        if full:
            self.limit = max(self.limit, float(running))
        if unread > 0 and ran == 0:
            return  # an engine that has just begun is behind with its first prompts
        if unread > 0 and not rises:
            self._fall(running, full)
        elif full:
            growth = MIN_GROWTH
            if rises or running >= self.slots:
                growth, self._growth = self._growth, min(MAX_GROWTH, 2.0 * self._growth)
                self._proven = self.limit
            self.limit = max(self.limit, running * (1.0 + growth) + 1.0)

    def _fall(self, running: int, full: bool) -> None:
        """Lower the limit of an engine that was always behind.

        If not `full`, the bound on unread prompts held it back.
        """
        self._growth = MIN_GROWTH
        if not full:
            self.limit = min(self.limit, max(self._proven, running * (1.0 + MIN_GROWTH) + 1.0))
            return
        most = max(1.0, float(running))
        self.limit = most if self.limit > OVERSHOT * most else self.limit + FALL * (most - self.limit)
        self._proven = min(self._proven, self.limit)
