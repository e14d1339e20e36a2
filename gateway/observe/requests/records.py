"""The records of ended requests, with all their readers, as a process keeps them."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine

from gateway.observe.requests.access_log import AccessLog
from gateway.observe.requests.ring import RequestRing
from gateway.settings import Settings


class RequestRecords:
    """The ring and its readers, by the settings of a process that has the controller."""

    def __init__(self, settings: Settings, clock: Callable[[], float]) -> None:
        """`clock`: the monotonic clock of the request path. Raises AccessLogError."""
        self._clock = clock
        self.is_kept = settings.records > 0
        """Whether records can be found again."""
        self.access_log: AccessLog | None = None
        if settings.access_log is not None:
            self.access_log = AccessLog(
                settings.access_log, self.wall_s, settings.access_log_file_bytes, settings.access_log_files
            )
        self.ring: RequestRing | None = None
        """None if nobody reads records."""
        if self.is_kept or self.access_log is not None:
            self.ring = RequestRing(settings.records)
        if self.ring is not None and self.access_log is not None:
            self.ring.readers.append(self.access_log.write)

    def wall_s(self) -> float:
        """Unix time at the zero of the monotonic clock."""
        return time.time() - self._clock()

    def parts(self) -> dict[str, Coroutine[None, None, None]]:
        """The coroutines that must run all the time, by their names in messages."""
        return {} if self.access_log is None else {"access log": self.access_log.run()}

    async def aclose(self) -> None:
        """Write all records so far."""
        if self.access_log is not None:
            await self.access_log.aclose()
