"""Traces over OTLP: a receiver decodes them with the official protobufs."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import httpx
import pytest

from gateway.observe.otlp.collector import HTTP, Signal, collector
from gateway.observe.otlp.traces import TraceExporter
from gateway.observe.requests.row import RequestRow
from gateway.settings import SettingError
from gateway.wire.http.trace_context import is_sampled, parent_for, seed_of, span_id_of, trace_id_of
from loadtests.emulator import Emulator
from tests.observe.made import REFUSED
from tests.observe.otlp.receiver import Receiver, attributes
from tests.observe.requests.test_ring import answered, ended
from tests.scorecard.capture import Capture
from tests.serving import gateways

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
ROUNDING_NS = 1000
"""Times are sums of floats: near Unix time, a float is exact to 238 ns."""
POLICY = """\
apiVersion: tailgate/v1
models: {{emulated: {{pools: [main]}}}}
pools: {{main: {{replicas: [{{name: r1, url: "{}"}}]}}}}
tiers: {{only: {{}}}}
"""


def exporter(receiver: Receiver, ratio: float = 1.0, **environment: str) -> TraceExporter:
    return TraceExporter(ratio, lambda: 0.0, receiver.environment | environment, "http")


async def test_trace_of_a_client_goes_on_in_the_gateway_and_at_the_replica(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in receiver.environment.items():
        monkeypatch.setenv(name, value)
    async with Capture() as capture:
        async with gateways() as start:
            gateway = await start(POLICY.format(capture.url), trace_share=1.0)
            async with httpx.AsyncClient(base_url=gateway.url, timeout=20) as client:
                ask = {"model": "emulated", "prompt": "a secret question", "max_tokens": 2}
                answer = await client.post("/v1/completions", json=ask, headers={"traceparent": PARENT})
                assert answer.status_code == 200
        (call,) = capture.calls
        (sent,) = call.header("traceparent")
    server, attempt = receiver.spans
    assert server.trace_id.hex() == attempt.trace_id.hex() == PARENT[3:35]
    assert server.parent_span_id.hex() == PARENT[36:52]
    assert attempt.parent_span_id == server.span_id
    assert sent == f"00-{PARENT[3:35]}-{attempt.span_id.hex()}-01"
    assert server.start_time_unix_nano <= attempt.start_time_unix_nano <= attempt.end_time_unix_nano
    told = attributes(server)
    assert told["tailgate.request_id"] == answer.headers["x-request-id"]
    assert (told["tailgate.tier"], told["http.response.status_code"]) == ("only", 200)
    assert attributes(attempt)["gen_ai.operation.name"] == "text_completion"
    assert "secret" not in str(receiver.messages)


async def test_streamed_answer_has_spans_for_its_wait_its_first_token_and_its_relay(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second request waits for the only slot, until the first has ended."""
    for name, value in receiver.environment.items():
        monkeypatch.setenv(name, value)
    one_slot = POLICY.replace("{{replicas", "{{slots: 1, replicas")
    async with Emulator(replicas=1) as emulator, gateways() as start:
        gateway = await start(one_slot.format(*emulator.urls), trace_share=1.0)
        async with httpx.AsyncClient(base_url=gateway.url, timeout=20) as client:
            ask = {"model": "emulated", "prompt": "Hi", "max_tokens": 20, "stream": True}
            posts = [client.post("/v1/completions", json=ask) for _ in range(2)]
            assert [answer.status_code for answer in await asyncio.gather(*posts)] == [200, 200]
    by_id = {span.span_id: span for span in receiver.spans}
    (wait,) = [span for span in by_id.values() if span.name == "wait for a replica"]
    (first,) = [span for span in by_id.values() if span.name == "first token" and span.trace_id == wait.trace_id]
    (relay,) = [span for span in by_id.values() if span.name == "relay" and span.trace_id == wait.trace_id]
    attempt = by_id[first.parent_span_id]
    assert relay.parent_span_id == attempt.span_id
    assert attempt.parent_span_id == wait.parent_span_id
    assert "gen_ai.usage.output_tokens" in attributes(attempt)
    assert wait.end_time_unix_nano <= first.start_time_unix_nano + ROUNDING_NS
    assert first.start_time_unix_nano == attempt.start_time_unix_nano
    assert first.end_time_unix_nano == relay.start_time_unix_nano
    assert relay.end_time_unix_nano == attempt.end_time_unix_nano


async def test_refused_requests_are_exported_whatever_the_ratio_and_good_ones_by_it(receiver: Receiver) -> None:
    traces = exporter(receiver, ratio=0.0)
    traces.take(RequestRow(ended("good")))
    traces.take(RequestRow(ended("refused", REFUSED)))
    await traces.aclose()
    (span,) = receiver.spans
    assert attributes(span)["tailgate.request_id"] == "refused"
    assert attributes(span)["error.type"] == "queue-full"


async def test_batch_that_the_collector_cannot_take_now_is_sent_again(receiver: Receiver) -> None:
    receiver.refusals, receiver.is_away = 1, True
    traces = exporter(receiver)
    traces.take(RequestRow(ended("good")))
    async with asyncio.timeout(30):
        while not receiver.messages:
            await asyncio.to_thread(threading.Event().wait, 0.05)
    await traces.aclose()
    assert (len(receiver.spans), traces.dropped) == (1, 0)


async def test_batch_that_the_collector_refuses_is_dropped_and_counted(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.refusals = 1
    traces = exporter(receiver)
    traces.take(RequestRow(ended("good")))
    await traces.aclose()
    assert traces.dropped == 1
    assert "traces are not exported" in caplog.text
    assert "HTTP 400" in caplog.text or "gRPC INVALID_ARGUMENT: not now" in caplog.text


async def test_record_that_cannot_be_told_costs_its_own_trace_and_is_logged_once(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    traces = exporter(receiver)
    for name in ("odd-1", "odd-2", "good"):
        row = RequestRow(ended(name))
        row.model = "\ud800" if name != "good" else row.model  # no UTF-8 has it
        row.history = answered("cmpl-1")
        traces.take(row)
    await traces.aclose()
    assert {attributes(span).get("tailgate.request_id") for span in receiver.spans} == {"good", None}
    assert len(receiver.spans) == 2
    assert traces.dropped == 2
    assert [record.message.partition(";")[0] for record in caplog.records] == ["request odd-1 has no trace"]


async def test_variables_of_opentelemetry_set_headers_and_resource(receiver: Receiver) -> None:
    variables: dict[str, Any] = {"OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=a%20b"}
    variables["OTEL_RESOURCE_ATTRIBUTES"] = "zone=east,service.name=x"
    traces = exporter(receiver, OTEL_SERVICE_NAME="front", **variables)
    traces.take(RequestRow(ended("good")))
    await traces.aclose()
    assert receiver.headers[0]["x-tenant"] == "a b"
    resource = attributes(receiver.messages[0].resource_spans[0].resource)
    assert (resource["service.name"], resource["zone"]) == ("front", "east")


async def test_messages_are_compressed_if_the_variable_says_so(receiver: Receiver) -> None:
    traces = exporter(receiver, OTEL_EXPORTER_OTLP_COMPRESSION="gzip")
    traces.take(RequestRow(ended("good")))
    await traces.aclose()
    assert len(receiver.spans) == 1
    if receiver.environment["OTEL_EXPORTER_OTLP_PROTOCOL"] == HTTP:
        assert receiver.headers[0]["content-encoding"] == "gzip"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "localhost:4318"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://me:secret@localhost:4318:1"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "absent.pem"),
        ("OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE", "absent.pem"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "secret-without-a-name"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=secret%0A"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=secr%C3%A9t"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "secret token=x"),
    ],
)
def test_wrong_variable_is_named_and_a_header_is_not_shown(variable: str, value: str) -> None:
    with pytest.raises(SettingError, match=variable) as caught:
        TraceExporter(1.0, lambda: 0.0, {variable: value}, "http")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://me:secret@localhost:4317"),
        ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", __file__),
    ],
)
def test_variable_that_grpc_cannot_use_is_named(variable: str, value: str) -> None:
    environment = {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_ENDPOINT": "https://localhost:4317"}
    with pytest.raises(SettingError, match=variable) as caught:
        TraceExporter(1.0, lambda: 0.0, environment | {variable: value}, "http")
    assert "secret" not in str(caught.value)


def test_password_in_the_address_of_a_collector_is_not_logged() -> None:
    found = collector(Signal.TRACES, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://me:secret@localhost:4318"})
    assert found.url == "http://localhost:4318/v1/traces"
    found.close()


def test_request_without_a_trace_begins_one_that_relay_and_exporter_agree_on() -> None:
    seed = seed_of("tg-1")
    trace_id, span_id = trace_id_of("", seed), span_id_of(seed, "7")
    assert parent_for("", "tg-1", "7", 1.0) == f"00-{trace_id}-{span_id}-01"
    assert parent_for("", "tg-1", "7", 0.0)[-2:] == "00"
    kept = sum(is_sampled("", seed_of(f"tg-{number}"), 0.25) for number in range(4000))
    assert 850 < kept < 1150
