"""Sends the spans of sampled requests to a collector, by OTLP over HTTP, in a thread.

The settings are OpenTelemetry's own variables, `OTEL_EXPORTER_OTLP_...`, `OTEL_SERVICE_NAME` and
`OTEL_RESOURCE_ATTRIBUTES`. If the collector is slow or away, a batch is tried again, and the requests beyond
`MAX_WAITING` are dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from importlib.metadata import version
from urllib.parse import unquote

import httpx
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gateway.core.history import EarlyRefusal
from gateway.observe.requests.ring import Found
from gateway.observe.requests.row import RequestRow
from gateway.observe.traces.spans import attribute, spans_of
from gateway.observe.traces.trouble import TracesError
from gateway.wire.http.trace_context import is_sampled, trace_id_of

log = logging.getLogger("tailgate")

MAX_WAITING = 4096
BATCH = 256
EVERY_S = 1.0
MAX_PAUSE_S = 30.0
CLOSE_S = 5.0
RETRIED = frozenset({429, 502, 503, 504})
"""Statuses after which OTLP wants a batch to be sent again."""


class TraceExporter:
    """Takes records (`take`) until it is closed."""

    def __init__(self, ratio: float, wall_s: Callable[[], float], environment: Mapping[str, str]) -> None:
        """`ratio` (0-1): share of the good requests that are exported; all others are always. Raises TracesError."""
        self.dropped = 0
        """Number of sampled requests that were not exported."""
        self._ratio = ratio
        self._wall_s = wall_s
        self._url = _url(environment)
        self._client = httpx.Client(headers=_headers(environment), timeout=_timeout_s(environment))
        self._resource = [attribute(name, value) for name, value in _resource(environment).items()]
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
        self._client.close()

    def _export(self) -> bool:
        """Send the requests that wait. Returns whether the collector took them, or refused them for good."""
        while self._waiting:
            rows = [self._waiting[index] for index in range(min(BATCH, len(self._waiting)))]
            problem, is_final = self._sent(rows)
            if problem and not self._is_failing:
                log.warning("traces are not exported: %s: %s", self._url, problem)
            elif self._is_failing and not problem:
                log.info("traces are exported to %s again", self._url)
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
        resource = request.resource_spans.add()
        resource.resource.attributes.extend(self._resource)
        scope = resource.scope_spans.add()
        scope.scope.name, scope.scope.version = "tailgate", version("tailgate")
        wall_s = self._wall_s()
        for row in rows:
            scope.spans.extend(spans_of(row, wall_s))
        try:
            answer = self._client.post(self._url, content=request.SerializeToString())
        except httpx.HTTPError as error:
            return str(error) or type(error).__name__, False
        if answer.is_success:
            return "", True
        return f"HTTP {answer.status_code}", answer.status_code not in RETRIED


def _url(environment: Mapping[str, str]) -> str:
    protocol = environment.get("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    if protocol != "http/protobuf":
        raise TracesError(f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol!r:.40}: only http/protobuf is supported")
    given = environment.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    base = environment.get("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318")
    url = given or f"{base.rstrip('/')}/v1/traces"
    if not url.startswith(("http://", "https://")):
        raise TracesError(f"OTEL_EXPORTER_OTLP_ENDPOINT is {url!r:.80}: write http://host:4318")
    return url


def _headers(environment: Mapping[str, str]) -> dict[str, str]:
    return {"content-type": "application/x-protobuf"} | _pairs(environment, "OTEL_EXPORTER_OTLP_HEADERS")


def _timeout_s(environment: Mapping[str, str]) -> float:
    text = environment.get("OTEL_EXPORTER_OTLP_TIMEOUT", "10000")
    if not text.isdigit() or not int(text):
        raise TracesError(f"OTEL_EXPORTER_OTLP_TIMEOUT is {text!r:.40}: write milliseconds, such as 10000")
    return int(text) / 1000


def _resource(environment: Mapping[str, str]) -> dict[str, str]:
    name = environment.get("OTEL_SERVICE_NAME")
    told = {"service.name": "tailgate", "service.version": version("tailgate")}
    return told | _pairs(environment, "OTEL_RESOURCE_ATTRIBUTES") | ({"service.name": name} if name else {})


def _pairs(environment: Mapping[str, str], variable: str) -> dict[str, str]:
    """`name=value,name=value`, with escapes as in URLs. A part that is no pair is an error that shows no value."""
    pairs: dict[str, str] = {}
    for part in filter(None, environment.get(variable, "").split(",")):
        name, equals, value = part.partition("=")
        if not equals or not name.strip():
            raise TracesError(f"{variable} is not a list of pairs: write name=value,name=value")
        pairs[name.strip()] = unquote(value.strip())
    return pairs
