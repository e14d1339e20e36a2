"""Threads that encode for a collector leave the interpreter's lock to the event loop after each few steps."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from prometheus_client.core import CounterMetricFamily

from gateway.observe.otlp.metrics import POINTS_AT_ONCE, requests_of
from gateway.observe.otlp.traces import REQUESTS_AT_ONCE, TraceExporter
from gateway.observe.requests.row import RequestRow
from tests.observe.otlp.receiver import Receiver
from tests.observe.requests.test_ring import ended


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds of each pause. A pause of no time would not let the loop run."""
    found: list[float] = []
    monkeypatch.setattr("gateway.observe.otlp.turns.time", SimpleNamespace(sleep=found.append))
    return found


def test_metrics_of_many_replicas_are_translated_in_turns(pauses: list[float]) -> None:
    family = CounterMetricFamily("many", "Many.", labels=("replica",))
    for number in range(20 * POINTS_AT_ONCE):
        family.add_metric((f"replica-{number}",), number)
    assert list(requests_of([family], (1, 2), Resource()))
    assert len(pauses) == 20
    assert min(pauses) > 0.0


async def test_batch_of_traces_is_encoded_in_turns(pauses: list[float], receiver: Receiver) -> None:
    traces = TraceExporter(1.0, lambda: 0.0, receiver.environment, "http")
    for number in range(10 * REQUESTS_AT_ONCE):
        traces.take(RequestRow(ended(f"tg-{number}")))
    await traces.aclose()
    assert len(receiver.spans) == 10 * REQUESTS_AT_ONCE
    assert 9 <= len(pauses) <= 10
