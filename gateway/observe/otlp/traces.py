"""Sends the spans of sampled requests to a collector, in a thread.

If the collector is slow or away, a batch is tried again, and the requests beyond `MAX_WAITING` are dropped and counted.
A request whose spans cannot be built is dropped and counted, too.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from importlib.metadata import version

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans

from gateway.core.history import EarlyRefusal
from gateway.observe.otlp.collector import Signal, collector, resource
from gateway.observe.otlp.encoding import SIZED, sized, tag
from gateway.observe.otlp.spans import spans_of
from gateway.observe.otlp.turns import in_turns
from gateway.observe.requests.ring import Found
from gateway.observe.requests.row import RequestRow
from gateway.wire.http.trace_context import is_sampled, seed_of

log = logging.getLogger("tailgate")

MAX_WAITING = 4096
BATCH = 512
REQUESTS_AT_ONCE = 32
"""Requests that are encoded without a pause: half a millisecond."""
EVERY_S = 1.0
MAX_PAUSE_S = 30.0
CLOSE_S = 5.0


class TraceExporter:
    """Takes records (`take`) until it is closed."""

    def __init__(self, ratio: float, wall_s: Callable[[], float], environment: Mapping[str, str], scheme: str) -> None:
        """`ratio` (0-1): share of the good requests that are exported; all others are always. `scheme`: of the
        gateway's own URL. Raises SettingError.
        """
        self.dropped = 0
        """Number of sampled requests that will never be exported."""
        self._ratio = ratio
        self._wall_s = wall_s
        self._scheme = scheme
        self._collector = collector(Signal.TRACES, environment)
        self._resource = sized(
            tag(ResourceSpans.RESOURCE_FIELD_NUMBER, SIZED), resource(environment).SerializeToString()
        )
        scope = InstrumentationScope(name="tailgate", version=version("tailgate"))
        self._scope = sized(tag(ScopeSpans.SCOPE_FIELD_NUMBER, SIZED), scope.SerializeToString())
        self._waiting: deque[RequestRow] = deque()
        self._closing = threading.Event()
        self._is_failing = False
        self._batch = b""
        self._batched = 0
        """Number of requests in the batch that the collector has not answered."""
        self._has_logged = False
        """Whether a request that cannot be told was logged."""
        self._thread = threading.Thread(target=self._export_all, name="traces", daemon=True)
        self._thread.start()

    def take(self, one: Found) -> None:
        """Export a request, if it is sampled."""
        if isinstance(one, EarlyRefusal):
            return
        if one.good and self._ratio < 1.0 and not is_sampled(one.traceparent, seed_of(one.request_id), self._ratio):
            return
        if len(self._waiting) >= MAX_WAITING:
            self.dropped += 1
        else:
            self._waiting.append(one)

    async def aclose(self) -> None:
        """Export the requests that wait, if the collector takes them at once, and end the thread."""
        self._closing.set()
        await asyncio.to_thread(self._thread.join, CLOSE_S)

    # ---- in the thread

    def _export_all(self) -> None:
        pause_s = EVERY_S
        while not self._closing.wait(pause_s):
            pause_s = EVERY_S if self._export() else min(2 * pause_s, MAX_PAUSE_S)
        self._export()
        self._collector.close()

    def _export(self) -> bool:
        """Send the requests that wait. Returns whether the collector took them, or refused them for good."""
        while self._batched or self._waiting:
            if not self._batched:
                self._fill()
                continue
            problem, is_final = self._collector.send(self._batch)
            if problem and not self._is_failing:
                log.warning("traces are not exported: %s: %s", self._collector.url, problem)
            elif self._is_failing and not problem:
                log.info("traces are exported to %s again; %d were lost so far", self._collector.url, self.dropped)
            self._is_failing = bool(problem)
            if not is_final:
                return False
            self.dropped += self._batched if problem else 0
            self._batched = 0
        return True

    def _fill(self) -> None:
        """Make a batch of the requests that have waited longest."""
        scope = [self._scope]
        wall_s = self._wall_s()
        for _ in in_turns(range(min(BATCH, len(self._waiting))), REQUESTS_AT_ONCE):
            row = self._waiting.popleft()
            try:
                scope.append(spans_of(row, wall_s, self._scheme))
            except Exception as error:  # noqa: BLE001 - a bug costs this request's trace, not the exporter
                self._is_untold(row, error)
        self._batched = len(scope) - 1
        spans = sized(tag(ResourceSpans.SCOPE_SPANS_FIELD_NUMBER, SIZED), b"".join(scope))
        self._batch = sized(tag(ExportTraceServiceRequest.RESOURCE_SPANS_FIELD_NUMBER, SIZED), self._resource + spans)

    def _is_untold(self, row: RequestRow, error: Exception) -> None:
        self.dropped += 1
        if not self._has_logged:
            self._has_logged = True
            told = "request %s has no trace; later ones like it are only counted"
            log.error(told, row.request_id, exc_info=error)
