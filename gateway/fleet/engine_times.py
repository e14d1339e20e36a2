"""How the engines of replicas divide a request's time before its first token: into their own queue, and the prompt.

Engines tell this by histograms, so a figure is the mean of the requests between two scrapes, never that of one request.
vLLM counts a request when it ends, SGLang each part when it is over.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

MAX_AGE_S: Final = 60.0
"""A mean that is older than this says nothing about a request that ends now."""


@dataclass(frozen=True, slots=True)
class EngineTotals:
    """Sums of seconds and numbers of requests since the engine started."""

    queue_s: float
    queued: float
    prefill_s: float
    prefilled: float

    def __sub__(self, before: EngineTotals) -> EngineTotals:
        return EngineTotals(
            self.queue_s - before.queue_s,
            self.queued - before.queued,
            self.prefill_s - before.prefill_s,
            self.prefilled - before.prefilled,
        )

    @property
    def queue_share(self) -> float | None:
        """Mean time in the queue, as share (0-1) of the mean time before the first token. None: nobody was counted, or
        the engine was restarted.
        """
        if self.queued <= 0 or self.prefilled <= 0:
            return None
        queue_s, prefill_s = self.queue_s / self.queued, self.prefill_s / self.prefilled
        if not (0 <= queue_s < math.inf and 0 < prefill_s < math.inf):
            return None
        return queue_s / (queue_s + prefill_s)


class EngineTimes:
    """The latest mean of each replica that tells one."""

    def __init__(self) -> None:
        self._totals: dict[str, EngineTotals] = {}
        self._shares: dict[str, tuple[float, float]] = {}
        """(share of the queue, time of the scrape) by replica."""

    def scraped(self, replica: str, totals: EngineTotals | None, now: float) -> None:
        """A scrape of a replica's metrics. `totals`: None if it has no such metrics."""
        if totals is None:
            self.forget(replica)
            return
        before = self._totals.get(replica)
        self._totals[replica] = totals
        share = None if before is None else (totals - before).queue_share
        if share is not None:
            self._shares[replica] = share, now

    def forget(self, replica: str) -> None:
        """The replica was removed, or its engine is another now."""
        self._totals.pop(replica, None)
        self._shares.pop(replica, None)

    def queue_share(self, replica: str, now: float) -> float | None:
        """Share (0-1) of a request's time at the replica, before its first token, that goes into the engine's queue;
        None if the engine told nothing in the last minute.
        """
        found = self._shares.get(replica)
        return None if found is None or now - found[1] > MAX_AGE_S else found[0]
