"""Concurrency limit of an engine, learned if the policy gives no `slots`.

An engine runs no more requests at once than it has seats (vLLM: --max-num-seqs). Further requests wait unread inside
the engine, which ignores tiers and deadlines. So the limit should equal the number of seats. Once a second it is
updated by three facts. The first is the highest number of running requests, whose prompts are read. The second is
whether more ran than one second earlier. The third is whether the engine caught up with its prompts at any time.

    in the last second                         the limit becomes                    because
    it was reached; caught up or ran more      most that ran x (1 + growth) + 1     there may be more seats
    always behind, ran no more                 closer to the most that ran          there are no more

An engine that is always behind but runs more requests each second is still reading prompts, and may have more seats.

Growth begins at 1, because the seats of a cold engine are unknown. The limit doubles every second while the engine runs
as many requests as the limit allows. After the first second in which it runs fewer, growth stays small until the limit
is reached again. TPOT and the KV cache have bounds of their own (step_budget.py, kv_cache.py).

More requests than the limit may run, because the limit does not apply to tiers in shadow mode (bounds.py). Such
requests show that the engine has at least as many seats.

Netflix's Gradient2 and Envoy's adaptive concurrency infer this limit from latency. Here latency is a weaker signal,
since it grows with the length of prompts and with the load. A model fitted to latency would take a standing queue for
the engine's normal speed. The limit changes only while requests wait for a slot, or would wait if the limit applied to
every tier.
"""

from __future__ import annotations

from typing import Final

from gateway.core.estimators.memory import Remembering

START: Final = 32.0
"""First limit, the geometric mean of 1 and 1,024: any number of seats in between is at most five doublings or halvings
away.
"""
MIN_GROWTH: Final = 0.04
"""Growth (relative) once the seats are known. It is small, because each attempt to grow delays the most urgent
requests.
"""
MAX_GROWTH: Final = 1.0
OVERSHOT: Final = 1.25
"""A limit above this multiple of the running requests falls at once to their number, because the engine cannot use
more.
"""
FALL: Final = 0.3
"""A limit that is not so far above falls by this part of the difference per interval, because the difference may be
chance.
"""
INTERVAL_S: Final = 1.0
"""Seconds between updates. A limit that is too high is noticed within one or two intervals."""


class ConcurrencyLimit(Remembering):
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
        """Slots that less urgent tiers leave free for more urgent ones.

        The limit counts as reached if all slots but these are in use.
        """
        self._at = 0.0
        self._growth = MAX_GROWTH
        self._proven = START
        """The last limit that the engine's running requests reached, or `START`."""
        self._full = False
        self._most_running = 0
        self._least_unread = -1
        self._ran = 0
        """Highest number of running requests in the previous interval."""
        self._said = 0
        """Running requests in the last scrape if requests waited in the engine, else 0."""

    def remembered(self) -> tuple[str, ...]:
        return "limit", "_growth", "_proven"

    @property
    def slots(self) -> int:
        """The limit in whole requests."""
        return int(self.limit + 0.5)

    def saw(self, running: int, unread: int) -> None:
        """Learn from the load at the moment when a prompt was read. `running`: running requests. `unread`: requests
        with unread prompts.
        """
        if running > self._most_running:
            self._most_running = running
        if running + unread >= self.limit - 1.0 - self.kept:
            self._full = True
        if unread < self._least_unread or self._least_unread < 0:
            self._least_unread = unread

    def scraped(self, waiting: int, running: int, in_flight: int) -> None:
        """Learn from a scrape of the engine's waiting and running requests. `in_flight`: requests there that this
        gateway sent.
        """
        if waiting == 0:
            if running:
                self.saw(min(running, in_flight), 0)
        elif running and running == self._said:
            # The same number ran in two scrapes while others waited. Then this is the number of seats, even if the
            # limit was not reached.
            self.limit = self._proven = min(self.limit, float(running))
            self._growth = MIN_GROWTH
        self._said = running if waiting > 0 else 0

    def learn(self, pressed_at: float, now: float) -> None:
        """Update the limit, at most once per interval. `pressed_at`: time when a request last exceeded the limit or was
        queued.
        """
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
            return  # an engine that was idle before is behind with its first prompts, however many seats it has
        if unread > 0 and not rises:
            self._fall(running, full)
        elif full:
            growth = MIN_GROWTH
            if rises or running >= self.slots:
                growth, self._growth = self._growth, min(MAX_GROWTH, 2.0 * self._growth)
                self._proven = self.limit
            self.limit = max(self.limit, running * (1.0 + growth) + 1.0)

    def _fall(self, running: int, full: bool) -> None:
        """Lower the limit of an engine that never caught up with its prompts. `full`: whether the limit was reached.

        If the limit was not reached, the bound on unread prompts kept requests away. Then the limit stays at `_proven`
        or above.
        """
        self._growth = MIN_GROWTH
        if not full:
            self.limit = min(self.limit, max(self._proven, running * (1.0 + MIN_GROWTH) + 1.0))
            return
        most = max(1.0, float(running))
        self.limit = most if self.limit > OVERSHOT * most else self.limit + FALL * (most - self.limit)
        self._proven = min(self._proven, self.limit)
