"""Sends the spans of sampled requests to a collector, in a thread.

If the collector is slow or away, a batch is tried again, and the requests beyond `MAX_WAITING` are dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from importlib.metadata import version

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gateway.core.history import EarlyRefusal
from gateway.observe.otlp.collector import Signal, collector, resource
from gateway.observe.otlp.spans import spans_of
from gateway.observe.requests.ring import Found
from gateway.observe.requests.row import RequestRow
from gateway.wire.http.trace_context import is_sampled, trace_id_of

log = logging.getLogger("tailgate")

MAX_WAITING = 4096
BATCH = 256
EVERY_S = 1.0
MAX_PAUSE_S = 30.0
CLOSE_S = 5.0


class TraceExporter:
    """Takes records (`take`) until it is closed."""

    def __init__(self, ratio: float, wall_s: Callable[[], float], environment: Mapping[str, str]) -> None:
        """`ratio` (0-1): share of the good requests that are exported; all others are always. Raises OtlpError."""
        self.dropped = 0
        """Number of sampled requests that were not exported."""
        self._ratio = ratio
        self._wall_s = wall_s
        self._collector = collector(Signal.TRACES, environment)
        self._resource = resource(environment)
        self._waiting: deque[RequestRow] = deque()
        self._closing = threading.Event()
        self._is_failing = False
        self._thread = threading.Thread(target=self._export_all, name="traces", daemon=True)
        self._thread.start()

    def take(self, one: Found) -> None:
        """Export a request, if it is sampled."""
        if isinstance(one, EarlyRefusal):
            return
        if one.good and not is_sampled(trace_id_of(one.traceparent, one.request_id), self._ratio):
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
        while self._waiting:
            rows = [self._waiting[index] for index in range(min(BATCH, len(self._waiting)))]
            problem, is_final = self._sent(rows)
            if problem and not self._is_failing:
                log.warning("traces are not exported: %s: %s", self._collector.url, problem)
            elif self._is_failing and not problem:
                log.info("traces are exported to %s again", self._collector.url)
            self._is_failing = bool(problem)
            if not is_final:
                return False
            for _ in rows:
                self._waiting.popleft()
            self.dropped += len(rows) if problem else 0
        return True

    def _sent(self, rows: list[RequestRow]) -> tuple[str, bool]:
        """Send a batch. Returns (why it failed, or empty; whether it need not be sent again)."""
        request = ExportTraceServiceRequest()
        told = request.resource_spans.add(resource=self._resource)
        scope = told.scope_spans.add()
        scope.scope.name, scope.scope.version = "tailgate", version("tailgate")
        wall_s = self._wall_s()
        for row in rows:
            scope.spans.extend(spans_of(row, wall_s))
        return self._collector.send(request)
