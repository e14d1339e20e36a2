"""The spans of a real engine join the trace of the gateway.

TAILGATE_TEST_ENGINE_TRACES is the gRPC address that the engine was started with (vLLM: `--otlp-traces-endpoint
http://127.0.0.1:4317`). The test listens there.
"""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from gateway.app import Gateway
from gateway.policy import load_text
from gateway.settings import Settings
from tests.observe.otlp.conftest import grpc_receiver
from tests.observe.otlp.receiver import Receiver, attributes
from tests.scorecard.waiting import until

from .conftest import KEY, POLICY
from .engine import Engine

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
LISTENS = os.environ.get("TAILGATE_TEST_ENGINE_TRACES", "")


@pytest.mark.skipif(not LISTENS, reason="name the address of the engine's traces by TAILGATE_TEST_ENGINE_TRACES")
async def test_spans_of_the_engine_are_children_of_the_attempt_at_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with grpc_receiver(urlsplit(LISTENS).port or 0) as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.environment["OTEL_EXPORTER_OTLP_ENDPOINT"])
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
        text = POLICY.format(model=engine.model, kind=engine.kind, url=engine.url)
        settings = Settings(port=0, admin_port=0, drain_deadline_s=0.0, trace_share=1.0)
        async with (
            Gateway(settings, load_text(text, "policy.yaml", {})) as gateway,
            httpx.AsyncClient(base_url=gateway.url, timeout=60) as client,
        ):
            ask = {"model": engine.model, "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 4}
            headers = {"traceparent": PARENT, "authorization": f"Bearer {KEY}"}
            answer = await client.post("/v1/chat/completions", json=ask, headers=headers)
            assert answer.status_code == 200
        await until(lambda: bool(children(receiver)))  # the engine exports every few seconds
    assert {span.trace_id.hex() for span in children(receiver)} == {PARENT[3:35]}


def children(receiver: Receiver) -> list[Any]:
    """Spans of the engine, below that of the gateway's attempt."""
    attempts = {span.span_id for span in receiver.spans if "tailgate.hedge" in attributes(span)}
    return [span for span in receiver.spans if span.parent_span_id in attempts]
