"""The ledger: sums each request as it ends, and writes the sums twice a second, in a thread.

Sums that cannot be written yet are kept and tried again, so nothing is lost while the disk is full or the file locked.
A process that is killed loses half a second.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path

from gateway.observe.thread_writer import ThreadWriter
from gateway.observe.usage.database import UsageDatabase, merged
from gateway.observe.usage.metering import HOUR_S, Cell, Sums, UsageMeter
from gateway.observe.usage.sharing import UsageSharing

log = logging.getLogger("tailgate")

FLUSH_S = 0.5
CLOSE_S = 10.0


Totals = tuple[dict[Cell, Sums], dict[tuple[int, str], float]]
"""Sums of requests, and seconds of replicas by hour and pool."""


class UsageLedger(ThreadWriter[Totals]):
    """Writes what its `meter` counts until it is closed."""

    def __init__(
        self,
        path: Path,
        wall_s: Callable[[], float],
        clock: Callable[[], float],
        serving: Callable[[], dict[str, int]],
        store: str | None = None,
    ) -> None:
        """`wall_s`: Unix time at the zero of `clock`, the monotonic clock. `serving`: number of replicas that get
        requests, by pool. `store`: URL of the store over which gateways share their sums. Raises UsageError.
        """
        self.path = path
        self.error = ""
        """Why the latest sums are not in the file; empty if they are."""
        self._database = UsageDatabase(path)
        self.sharing = None if store is None else UsageSharing(store, path)
        self._wall_s = wall_s
        self.meter = UsageMeter(wall_s())
        self._clock = clock
        self._serving = serving
        self._served_at = clock()
        self._replica_s: dict[tuple[int, str], float] = {}
        """Seconds of replicas that get requests, by hour and pool."""
        self._late: dict[Cell, Sums] = {}
        """Sums that the thread could not write yet."""
        self._late_fleet: dict[tuple[int, str], float] = {}
        super().__init__("usage", FLUSH_S, CLOSE_S)
        self._thread.start()

    async def latest(self, patience_s: float) -> str:
        """Write all sums so far, and take those of other gateways. Returns why some are missing, or nothing."""
        await self.written(patience_s)
        if self.sharing is not None:
            await asyncio.to_thread(self.sharing.exchange)
        error = self.error and f"the latest sums are not in the file: {self.error}"
        return error or (self.sharing.problem if self.sharing is not None else "")

    async def aclose(self) -> None:
        """Write what is left, and tell it."""
        await super().aclose()
        if self.sharing is not None:
            await self.sharing.aclose()

    def flush(self) -> None:
        """Hand the sums so far to the thread."""
        self.meter.zero_s = self._wall_s()
        self._count_fleet()
        if self.meter.sums or self._replica_s or self.error:
            self._work.put((self.meter.sums, self._replica_s))
            self.meter.sums, self._replica_s = {}, {}

    def _count_fleet(self) -> None:
        """Add the time since the last count to the time of each pool's replicas."""
        now = self._clock()
        passed_s, self._served_at = now - self._served_at, now
        hour = int((self.meter.zero_s + now) // HOUR_S)
        for pool, replicas in self._serving().items():
            self._replica_s[hour, pool] = self._replica_s.get((hour, pool), 0.0) + replicas * passed_s

    # ---- in the thread

    def _write(self, work: Totals) -> None:
        sums, fleet = work
        merged(self._late, sums.items())
        for where, replica_s in fleet.items():
            self._late_fleet[where] = self._late_fleet.get(where, 0.0) + replica_s
        try:
            self._database.add(self._late, self._late_fleet)
        except sqlite3.Error as error:
            if not self.error:
                log.error("usage is kept in memory, because %s cannot be written: %s", self.path, error)
            self.error = str(error)
        else:
            if self.error:
                log.info("usage is written to %s again, nothing was lost", self.path)
            self.error, self._late, self._late_fleet = "", {}, {}

    def _end(self) -> None:
        if self._late:
            log.error("usage of %d kinds of requests is lost: %s cannot be written", len(self._late), self.path)
        self._database.close()
