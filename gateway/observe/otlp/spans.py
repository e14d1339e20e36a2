"""The spans of one request: a SERVER span, a CLIENT span for each attempt, and the wait in the queue.

Attributes are those of the semantic conventions for HTTP and, at attempts, for GenAI clients (`gen_ai.*`,
open-telemetry/semantic-conventions-genai 0.1.0, in development). Only the attempt whose answer the client got has the
usage, else sums would count it twice.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from gateway.core.history import AttemptHistory
from gateway.core.request import Endpoint
from gateway.core.results import AttemptOutcome, Outcome
from gateway.observe.otlp.attributes import attribute
from gateway.observe.requests.row import RequestRow
from gateway.wire.errors.reasons import ROWS
from gateway.wire.http.trace_context import span_id_of, trace_id_of

Value = str | bool | int | float | None
OPERATIONS = {
    Endpoint.CHAT.value: "chat",
    Endpoint.RESPONSES.value: "chat",
    Endpoint.MESSAGES.value: "chat",
    Endpoint.COMPLETIONS.value: "text_completion",
    Endpoint.EMBEDDINGS.value: "embeddings",
}
FAILED = (Outcome.TIMEOUT, Outcome.CUT, Outcome.ERROR)
SERVER_ERROR = 500


def spans_of(row: RequestRow, wall_s: float) -> list[Span]:
    """The spans of a request. `wall_s`: Unix time at the zero of the monotonic clock."""
    trace_id = bytes.fromhex(trace_id_of(row.traceparent, row.request_id))
    body_at = wall_s + row.ended_at - row.e2e_s
    server = Span(
        trace_id=trace_id,
        span_id=os.urandom(8),
        parent_span_id=bytes.fromhex(row.traceparent[36:52]),
        name=f"POST {row.endpoint}",
        kind=Span.SPAN_KIND_SERVER,
        start_time_unix_nano=_nanos(body_at - row.receive_s),
        end_time_unix_nano=_nanos(wall_s + row.ended_at),
        attributes=_attributes(_of_request(row)),
    )
    status = ROWS[row.why].status if row.why is not None else 200
    if row.outcome in FAILED or status >= SERVER_ERROR:
        server.status.CopyFrom(Status(code=Status.STATUS_CODE_ERROR, message=row.why.value if row.why else ""))
    spans = [server]
    if row.waited:
        wait = Span(
            trace_id=trace_id,
            span_id=os.urandom(8),
            parent_span_id=server.span_id,
            name="wait for a replica",
            kind=Span.SPAN_KIND_INTERNAL,
            start_time_unix_nano=_nanos(body_at),
            end_time_unix_nano=_nanos(body_at + row.queue_s),
        )
        spans.append(wait)
    for attempt in row.history.attempts:
        spans.append(_attempt_span(row, attempt, server, wall_s))
    return spans


def _attempt_span(row: RequestRow, attempt: AttemptHistory, server: Span, wall_s: float) -> Span:
    span = Span(
        trace_id=server.trace_id,
        span_id=bytes.fromhex(span_id_of(row.request_id, str(attempt.id))),
        parent_span_id=server.span_id,
        name=f"{OPERATIONS.get(row.endpoint, row.endpoint)} {row.model}",
        kind=Span.SPAN_KIND_CLIENT,
        start_time_unix_nano=_nanos(wall_s + attempt.opened_at),
        end_time_unix_nano=_nanos(wall_s + attempt.ended_at),
        attributes=_attributes(_of_attempt(row, attempt)),
    )
    if attempt.first_at is not None:
        span.events.add(name="first token", time_unix_nano=_nanos(wall_s + attempt.first_at))
    if attempt.end not in (AttemptOutcome.COMPLETE.value, AttemptOutcome.CANCELLED.value):
        span.status.CopyFrom(Status(code=Status.STATUS_CODE_ERROR, message=attempt.end))
    return span


def _of_request(row: RequestRow) -> dict[str, Value]:
    history = row.history
    return {
        "http.request.method": "POST",
        "url.path": row.endpoint,
        "url.scheme": "http",
        "http.response.status_code": 200 if row.why is None else ROWS[row.why].status,
        "error.type": None if row.why is None else row.why.value,
        "tailgate.request_id": row.request_id,
        "tailgate.tier": row.tier,
        "tailgate.tenant": row.tenant,
        "tailgate.outcome": row.outcome.value,
        "tailgate.good": row.good,
        "tailgate.pool": row.pool,
        "tailgate.wait_s": row.queue_s,
        "tailgate.ttft_s": row.ttft_s,
        "tailgate.rule": history.rule or None,
        "tailgate.constraint": history.binds or None,
        "tailgate.breach": row.breach,
        "tailgate.forecast.wait_s": history.wait_s,
        "tailgate.forecast.ttft_s": history.ttft_s,
        "tailgate.hedged": None if row.hedged is None else row.hedged.value,
        "tailgate.attempts": row.attempts,
    }


def _of_attempt(row: RequestRow, attempt: AttemptHistory) -> dict[str, Value]:
    first_at = attempt.first_at
    told: dict[str, Value] = {
        "gen_ai.operation.name": OPERATIONS.get(row.endpoint, row.endpoint),
        "gen_ai.provider.name": "tailgate",
        "gen_ai.request.model": row.model,
        "gen_ai.request.stream": row.stream,
        "gen_ai.request.max_tokens": row.history.max_tokens or None,
        "server.address": attempt.replica,
        "http.response.status_code": attempt.status,
        "error.type": None if attempt.end == AttemptOutcome.COMPLETE.value else attempt.end,
        "tailgate.hedge": attempt.hedge,
    }
    if attempt is row.answer:
        told |= {
            "gen_ai.response.id": attempt.answer_id or None,
            "gen_ai.response.time_to_first_chunk": None if first_at is None else first_at - attempt.opened_at,
            "gen_ai.usage.input_tokens": attempt.prompt_tokens,
            "gen_ai.usage.output_tokens": attempt.output_tokens,
            "gen_ai.usage.cache_read.input_tokens": attempt.cached_tokens,
            "gen_ai.usage.reasoning.output_tokens": attempt.reasoning_tokens,
        }
    return told


def _attributes(values: dict[str, Value]) -> Iterable[KeyValue]:
    return [attribute(name, value) for name, value in values.items() if value is not None]


def _nanos(unix_s: float) -> int:
    return int(unix_s * 1e9)
