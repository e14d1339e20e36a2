"""Metrics over OTLP: what a receiver reads is what /metrics says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import ref

import httpx
import pytest
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import GaugeMetricFamily

from gateway.observe.metrics.exposition import registry, registry_in_pieces
from gateway.observe.metrics.metrics import Metrics
from gateway.observe.otlp.metrics import MAX_POINTS, MetricExporter, requests_of
from gateway.settings import SettingError
from tests.observe.made import OK, POLICY, REFUSED, SNAPSHOT, SOURCES, a_snapshot
from tests.observe.otlp.receiver import Receiver, attributes
from tests.scorecard.capture import Capture
from tests.serving import gateways

POLICY_TEXT = """\
apiVersion: tailgate/v1
models: {{emulated: {{pools: [main]}}}}
pools: {{main: {{replicas: [{{name: r1, url: "{}"}}]}}}}
tiers: {{only: {{}}}}
"""


async def some_registry() -> CollectorRegistry:
    metrics = Metrics(POLICY)
    for record in (OK, OK, REFUSED):
        metrics.ended(record)
    return registry(metrics, SOURCES)


async def no_registry() -> CollectorRegistry:
    return CollectorRegistry()


async def test_counters_gauges_and_histograms_arrive_with_their_names_labels_and_values(receiver: Receiver) -> None:
    pages = await some_registry()
    exporter = MetricExporter(some_registry, receiver.environment, lambda: 1000.0)
    await exporter.aclose()
    found = receiver.metrics
    requests = {attributes(point)["outcome"]: point for point in found["tailgate_requests_total"].sum.data_points}
    assert (requests["ok"].as_double, requests["refused"].as_double) == (2.0, 1.0)
    assert found["tailgate_requests_total"].sum.is_monotonic
    assert requests["ok"].start_time_unix_nano == requests["ok"].time_unix_nano == 1_000_000_000_000
    depths = {attributes(point)["pool"]: point.as_double for point in found["tailgate_queue_depth"].gauge.data_points}
    assert depths["short"] == 2.0
    (ttft,) = (p for p in found["tailgate_ttft_seconds"].histogram.data_points if attributes(p)["replica"] == "r0")
    assert (ttft.count, ttft.sum, sum(ttft.bucket_counts)) == (2, pytest.approx(0.4), 2)
    assert len(ttft.bucket_counts) == len(ttft.explicit_bounds) + 1
    at = [*ttft.bucket_counts].index(2)
    assert ttft.explicit_bounds[at - 1] < 0.2 <= ttft.explicit_bounds[at]
    names = {sample.name for family in pages.collect() for sample in family.samples}
    histograms = {family.name for family in pages.collect() if family.type == "histogram"}
    plain = {name for name in names if not name.startswith(tuple(histograms)) and not name.endswith("_created")}
    assert plain <= found.keys()


async def test_metrics_of_a_gateway_are_exported_when_it_ends(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in receiver.environment.items():
        monkeypatch.setenv(name, value)
    async with Capture() as capture, gateways() as start:
        gateway = await start(POLICY_TEXT.format(capture.url), otlp_metrics=True)
        async with httpx.AsyncClient(base_url=gateway.url, timeout=20) as client:
            await client.post("/v1/completions", json={"model": "emulated", "prompt": "x", "max_tokens": 2})
    (point,) = receiver.metrics["tailgate_requests_total"].sum.data_points
    assert (point.as_double, attributes(point)["tier"]) == (1.0, "only")


async def test_export_waits_for_a_snapshot_in_pieces_and_takes_none_at_once(receiver: Receiver) -> None:
    pool = replace(SNAPSHOT.pools[0], name="in-pieces")
    pieces = partial(a_snapshot, replace(SNAPSHOT, pools=(pool,)))
    sources = replace(SOURCES, snapshot=pytest.fail, snapshot_in_pieces=pieces)
    exporter = MetricExporter(partial(registry_in_pieces, Metrics(POLICY), sources), receiver.environment)
    await exporter.aclose()
    points = receiver.metrics["tailgate_queue_depth"].gauge.data_points
    assert "in-pieces" in [attributes(point).get("pool") for point in points]


async def test_metrics_that_cannot_be_exported_are_told_once(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.refusals, receiver.is_away = 2, True
    exporter = MetricExporter(some_registry, receiver.environment)
    caplog.set_level("INFO")
    for _ in range(3):
        await exporter.export()
    await exporter.aclose()
    assert caplog.text.count("metrics are not exported") == 1
    assert caplog.text.count("exported to") == 1
    assert receiver.metrics


def test_metrics_of_many_replicas_are_sent_in_messages_that_a_collector_takes() -> None:
    family = GaugeMetricFamily("many", "Many.", labels=("replica",))
    for number in range(3 * MAX_POINTS):
        family.add_metric((f"replica-{number}",), number)
    sent: list[Any] = [*requests_of([family], (1, 2), Resource())]
    sizes = [len(one.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points) for one in sent]
    assert sizes == [MAX_POINTS] * 3
    assert max(one.ByteSize() for one in sent) < 4 * 2**20


class InParts:
    """A collector of many families that are freed as soon as nobody reads them."""

    def __init__(self) -> None:
        self.told: list[ref[Metric]] = []
        self.most = 0
        """Samples that were in memory at once."""

    def collect(self) -> Iterator[Metric]:
        for number in range(10):
            for _ in range(10):
                part = Metric(f"many_{number}", "Many.", "gauge")
                for replica in range(MAX_POINTS // 10):
                    part.add_sample(f"many_{number}", {"replica": f"r{replica}"}, replica)
                self.told.append(ref(part))
                alive = [one for told in self.told if (one := told()) is not None]
                self.most = max(self.most, sum(len(one.samples) for one in alive))
                del alive
                yield part
                del part


async def test_families_of_a_large_fleet_are_sent_before_further_ones_are_read(receiver: Receiver) -> None:
    parts = InParts()

    async def registry_of_parts() -> InParts:
        return parts

    await MetricExporter(registry_of_parts, receiver.environment).aclose()
    assert len(receiver.messages) == 10
    assert len(receiver.metrics["many_9"].gauge.data_points) == MAX_POINTS
    assert parts.most <= 3 * MAX_POINTS


def test_wrong_interval_is_named() -> None:
    with pytest.raises(SettingError, match="OTEL_METRIC_EXPORT_INTERVAL is '1m': write milliseconds"):
        MetricExporter(no_registry, {"OTEL_METRIC_EXPORT_INTERVAL": "1m"})
