"""Sends the families of the page /metrics to a collector, under the same names.

They are read on the event loop, one after the other. A thread translates and sends as many as one message takes before
further ones are read. A collection of garbage among the samples of a large fleet would stop the loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from itertools import groupby
from operator import attrgetter
from typing import Final

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
    Sum,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from prometheus_client import Metric as Family
from prometheus_client.registry import Collector as Registry
from prometheus_client.samples import Sample

from gateway.observe.otlp.attributes import attribute
from gateway.observe.otlp.collector import Signal, collector, resource, seconds_of
from gateway.observe.otlp.turns import in_turns

log = logging.getLogger("tailgate")

INTERVAL: Final = "OTEL_METRIC_EXPORT_INTERVAL"
CLOSE_S: Final = 1.0
"""The last values are given up if the collector does not answer for this long."""
MAX_POINTS: Final = 2000
"""Points of one message: a collector refuses messages above 4 MiB."""
POINTS_AT_ONCE: Final = 50
"""Points that are translated without a pause: half a millisecond."""
CUMULATIVE: Final = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE


class MetricExporter:
    """Sends all metrics every `OTEL_METRIC_EXPORT_INTERVAL` milliseconds (a minute by default), while `run` runs."""

    def __init__(
        self,
        registry: Callable[[], Awaitable[Registry]],
        environment: Mapping[str, str],
        unix_s: Callable[[], float] = time.time,
    ) -> None:
        """`registry`: called for each export. Raises SettingError."""
        self._registry = registry
        self._collector = collector(Signal.METRICS, environment)
        self._resource = resource(environment)
        self._every_s = seconds_of(INTERVAL, environment.get(INTERVAL) or "60000")
        self._unix_s = unix_s
        self._started_ns = int(unix_s() * 1e9)
        self._is_failing = False

    async def run(self) -> None:
        """Export until cancelled."""
        while True:
            await asyncio.sleep(self._every_s)
            await self.export()

    async def export(self) -> None:
        """Send the present values. A collector that is away gets later ones: counts only grow, so it misses none."""
        times = self._started_ns, int(self._unix_s() * 1e9)
        families: list[Family] = []
        for family in (await self._registry()).collect():
            families.append(family)
            if sum(len(family.samples) for family in families) >= MAX_POINTS:
                if not await asyncio.to_thread(self._send, families, times):
                    return
                families = []
            await asyncio.sleep(0)  # other work runs in between
        await asyncio.to_thread(self._send, families, times)

    async def aclose(self) -> None:
        """Send the last values, if the collector takes them at once."""
        self._collector.timeout_s = min(self._collector.timeout_s, CLOSE_S)
        await self.export()
        self._collector.close()

    # ---- in the thread

    def _send(self, families: Sequence[Family], times: tuple[int, int]) -> bool:
        """Send families. Returns whether the collector took them."""
        for request in requests_of(families, times, self._resource):
            problem, _ = self._collector.send(request.SerializeToString())
            if problem:
                if not self._is_failing:
                    log.warning("metrics are not exported: %s: %s", self._collector.url, problem)
                self._is_failing = True
                return False
        if self._is_failing:
            log.info("metrics are exported to %s again", self._collector.url)
        self._is_failing = False
        return True


def requests_of(
    families: Iterable[Family], times: tuple[int, int], named: Resource
) -> Iterator[ExportMetricsServiceRequest]:
    """Messages with all families. `times`: the start of all counts, and now, in Unix nanoseconds."""
    waiting: list[Metric] = []
    points = 0
    for metric in (metric for family in _whole(families) for metric in _metrics(family, times)):
        waiting.append(metric)
        points += _points(metric)
        if points >= MAX_POINTS:
            yield _request(waiting, named)
            waiting, points = [], 0
    if waiting:
        yield _request(waiting, named)


def _whole(families: Iterable[Family]) -> Iterator[Family]:
    """The families, whose parts follow each other, as one of each name."""
    for _, (whole, *parts) in groupby(families, key=attrgetter("name")):
        for part in parts:
            whole.samples += part.samples
        yield whole


def _request(metrics: Sequence[Metric], named: Resource) -> ExportMetricsServiceRequest:
    request = ExportMetricsServiceRequest()
    scope = request.resource_metrics.add(resource=named).scope_metrics.add(metrics=metrics)
    scope.scope.name, scope.scope.version = "tailgate", version("tailgate")
    return request


def _points(metric: Metric) -> int:
    kind = metric.WhichOneof("data")
    return len(getattr(metric, kind).data_points) if kind else 0


def _metrics(family: Family, times: tuple[int, int]) -> Iterator[Metric]:
    """The metrics of a family, in parts of `MAX_POINTS`."""
    unit = "s" if family.unit == "seconds" else family.unit
    make = partial(Metric, description=family.documentation, unit=unit)
    if family.type == "histogram":
        histograms = [*_histograms(family, times)]
        for start in range(0, len(histograms), MAX_POINTS):
            some = Histogram(data_points=histograms[start : start + MAX_POINTS], aggregation_temporality=CUMULATIVE)
            yield make(name=family.name, histogram=some)
        return
    by_name: dict[str, list[NumberDataPoint]] = {}
    for sample in in_turns(family.samples, POINTS_AT_ONCE):
        if not sample.name.endswith("_created"):
            by_name.setdefault(sample.name, []).append(_number(sample, times, is_sum=family.type == "counter"))
    for name, numbers in by_name.items():
        for start in range(0, len(numbers), MAX_POINTS):
            part = numbers[start : start + MAX_POINTS]
            if family.type == "counter":
                total = Sum(data_points=part, aggregation_temporality=CUMULATIVE, is_monotonic=True)
                yield make(name=name, sum=total)
            else:
                yield make(name=name, gauge=Gauge(data_points=part))


def _number(sample: Sample, times: tuple[int, int], *, is_sum: bool) -> NumberDataPoint:
    started, now = times
    labels = [attribute(name, value) for name, value in sample.labels.items()]
    since = started if is_sum else 0
    return NumberDataPoint(
        attributes=labels, start_time_unix_nano=since, time_unix_nano=now, as_double=float(sample.value)
    )


def _histograms(family: Family, times: tuple[int, int]) -> Iterator[HistogramDataPoint]:
    """One point for each set of labels. Buckets of Prometheus count all values up to an edge, those of OTLP only the
    values since the edge before.
    """
    found: dict[tuple[tuple[str, str], ...], list[Sample]] = {}
    for sample in in_turns(family.samples, POINTS_AT_ONCE):
        labels = tuple((name, value) for name, value in sample.labels.items() if name != "le")
        found.setdefault(labels, []).append(sample)
    for labels, samples in found.items():
        point = HistogramDataPoint(start_time_unix_nano=times[0], time_unix_nano=times[1])
        point.attributes.extend(attribute(name, value) for name, value in labels)
        below = 0
        for sample in samples:
            if sample.name.endswith("_bucket"):
                count = int(sample.value)
                point.bucket_counts.append(count - below)
                below = count
                if sample.labels["le"] != "+Inf":
                    point.explicit_bounds.append(float(sample.labels["le"]))
            elif sample.name.endswith("_sum"):
                point.sum = float(sample.value)
        point.count = below
        yield point
