"""The records of ended requests, with all their readers, as a process keeps them."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING

from gateway.observe.exporters import trace_exporter
from gateway.observe.requests.access_log import AccessLog
from gateway.observe.requests.ring import Found, RequestRing
from gateway.observe.usage.ledger import UsageLedger
from gateway.settings import Settings

if TYPE_CHECKING:
    from gateway.observe.otlp.traces import TraceExporter


class RequestRecords:
    """The ring and its readers, by the settings of a process that has the controller."""

    def __init__(self, settings: Settings, clock: Callable[[], float], serving: Callable[[], dict[str, int]]) -> None:
        """`clock`: the monotonic clock of the request path. `serving`: number of replicas that get requests, by pool.
        Raises SettingError.
        """
        self._clock = clock
        self.is_kept = settings.records > 0
        """Whether records can be found again."""
        self.access_log: AccessLog | None = None
        if settings.access_log is not None:
            self.access_log = AccessLog(
                settings.access_log, self.wall_s, settings.access_log_file_bytes, settings.access_log_files
            )
        self.usage: UsageLedger | None = None
        if settings.usage is not None:
            store = None if settings.store is None else settings.store.get_secret_value()
            self.usage = UsageLedger(settings.usage, self.wall_s, clock, serving, store)
        readers: list[Callable[[Found], None]] = []
        if self.access_log is not None:
            readers.append(self.access_log.write)
        if self.usage is not None:
            readers.append(self.usage.meter.add)
        self.traces: TraceExporter | None = None
        if settings.trace_share is not None:
            scheme = "http" if settings.ssl_certfile is None else "https"
            self.traces = trace_exporter(settings.trace_share, self.wall_s, scheme)
            readers.append(self.traces.take)
        self.ring: RequestRing | None = None
        """None if nobody reads records."""
        if self.is_kept or readers:
            self.ring = RequestRing(settings.records)
            self.ring.readers = readers

    def wall_s(self) -> float:
        """Unix time at the zero of the monotonic clock."""
        return time.time() - self._clock()

    def parts(self) -> dict[str, Coroutine[None, None, None]]:
        """The coroutines that must run all the time, by their names in messages."""
        parts: dict[str, Coroutine[None, None, None]] = {}
        if self.access_log is not None:
            parts["access log"] = self.access_log.run()
        if self.usage is not None:
            parts["usage"] = self.usage.run()
            if self.usage.sharing is not None:
                parts["sharing of usage"] = self.usage.sharing.run()
        return parts

    async def aclose(self) -> None:
        """Write all records so far."""
        if self.access_log is not None:
            await self.access_log.aclose()
        if self.usage is not None:
            await self.usage.aclose()
        if self.traces is not None:
            await self.traces.aclose()
