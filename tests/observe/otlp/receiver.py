"""A receiver of OTLP that decodes with the official protobufs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

REQUESTS: dict[str, Any] = {"/v1/traces": ExportTraceServiceRequest, "/v1/metrics": ExportMetricsServiceRequest}
SERVICES = {
    "/v1/traces": "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    "/v1/metrics": "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
}


@dataclass
class Receiver:
    """Messages that came. `environment`: variables for the exporter."""

    environment: dict[str, str] = field(default_factory=dict)
    messages: list[Any] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    refusals: int = 0
    """So many messages are refused before one is taken."""
    is_away: bool = False
    """Whether a refusal asks for the message to be sent again."""

    def takes(self, path: str, body: bytes, headers: dict[str, str]) -> bool:
        """Decode a message, unless it is refused."""
        if self.refusals:
            self.refusals -= 1
            return False
        self.messages.append(REQUESTS[path].FromString(body))
        self.headers.append(headers)
        return True

    @property
    def spans(self) -> list[Any]:
        return [
            span
            for message in self.messages
            for resource in message.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def metrics(self) -> dict[str, Any]:
        """The latest metrics by name."""
        return {
            metric.name: metric
            for message in self.messages
            for resource in message.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


def attributes(span: Any) -> dict[str, Any]:
    """Attributes of a span, a point or a resource."""
    return {one.key: getattr(one.value, str(one.value.WhichOneof("value"))) for one in span.attributes}
