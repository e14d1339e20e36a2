"""Makes the exporters of OpenTelemetry, whose packages are imported only if they are asked for."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from prometheus_client.registry import Collector

from gateway.settings import SettingError

if TYPE_CHECKING:
    from gateway.observe.otlp.metrics import MetricExporter
    from gateway.observe.otlp.traces import TraceExporter


def trace_exporter(ratio: float, wall_s: Callable[[], float], scheme: str) -> TraceExporter:
    """The exporter of traces, by the variables of OpenTelemetry. Raises SettingError."""
    try:
        from gateway.observe.otlp.traces import TraceExporter
    except ModuleNotFoundError as error:
        raise SettingError(_needs("--traces", error)) from None
    return TraceExporter(ratio, wall_s, os.environ, scheme)


def metric_exporter(registry: Callable[[], Awaitable[Collector]]) -> MetricExporter:
    """The exporter of metrics, by the variables of OpenTelemetry. `registry`: read anew for each export. Raises
    SettingError.
    """
    try:
        from gateway.observe.otlp.metrics import MetricExporter
    except ModuleNotFoundError as error:
        raise SettingError(_needs("--otlp-metrics", error)) from None
    return MetricExporter(registry, os.environ)


def _needs(option: str, error: ModuleNotFoundError) -> str:
    return f"{option} needs {error.name}: pip install 'tailgate[otel]'"
