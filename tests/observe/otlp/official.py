"""The spans of a request, made with the official classes: slow, and written apart from those of the gateway."""

from __future__ import annotations

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from gateway.core.history import AttemptHistory
from gateway.core.results import Outcome
from gateway.observe.otlp.spans import OPERATIONS
from gateway.observe.requests.row import RequestRow
from gateway.wire.http.trace_context import seed_of, span_id_of, trace_id_of

Value = str | bool | int | float | None


def spans(row: RequestRow, wall_s: float, scheme: str) -> list[Span]:
    """Without the ids that are random, and without parents that are the first span."""
    trace_id = bytes.fromhex(trace_id_of(row.traceparent, seed_of(row.request_id)))
    body_at = wall_s + row.ended_at - row.e2e_s
    server = Span(
        trace_id=trace_id,
        parent_span_id=bytes.fromhex(row.traceparent[36:52]),
        name=f"POST {row.endpoint}",
        kind=Span.SPAN_KIND_SERVER,
        start_time_unix_nano=int((body_at - row.receive_s) * 1e9),
        end_time_unix_nano=int((wall_s + row.ended_at) * 1e9),
        attributes=_attributes(_request(row) | {"url.scheme": scheme}),
    )
    status = row.status
    if row.outcome in (Outcome.TIMEOUT, Outcome.CUT, Outcome.ERROR) or status >= 500:
        server.status.CopyFrom(Status(code=Status.STATUS_CODE_ERROR, message="" if row.why is None else row.why.value))
    told = [server]
    if row.waited:
        told.append(_child(trace_id, b"", "wait for a replica", body_at, body_at + row.queue_s))
    for attempt in row.history.attempts:
        told.append(_attempt_span(row, attempt, trace_id, wall_s))
        if attempt.first_at is not None:
            opened_at, first_at, ended_at = (
                wall_s + at for at in (attempt.opened_at, attempt.first_at, attempt.ended_at)
            )
            parent = told[-1].span_id
            told.append(_child(trace_id, parent, "first token", opened_at, first_at))
            if attempt is row.answer:
                told.append(_child(trace_id, parent, "relay", first_at, ended_at))
    return told


def _child(trace_id: bytes, parent: bytes, name: str, start_s: float, end_s: float) -> Span:
    return Span(
        trace_id=trace_id,
        parent_span_id=parent,
        name=name,
        kind=Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=int(start_s * 1e9),
        end_time_unix_nano=int(end_s * 1e9),
    )


def _attempt_span(row: RequestRow, attempt: AttemptHistory, trace_id: bytes, wall_s: float) -> Span:
    span = Span(
        trace_id=trace_id,
        span_id=bytes.fromhex(span_id_of(seed_of(row.request_id), str(attempt.id))),
        name=f"{OPERATIONS.get(row.endpoint, row.endpoint)} {row.model}",
        kind=Span.SPAN_KIND_CLIENT,
        start_time_unix_nano=int((wall_s + attempt.opened_at) * 1e9),
        end_time_unix_nano=int((wall_s + attempt.ended_at) * 1e9),
        attributes=_attributes(_attempt(row, attempt)),
    )
    answered_by = row.history.answered_by
    if answered_by and attempt.id != answered_by:
        answered = bytes.fromhex(span_id_of(seed_of(row.request_id), str(answered_by)))
        span.links.add(trace_id=trace_id, span_id=answered)
    if attempt.end not in ("complete", "cancelled"):
        span.status.CopyFrom(Status(code=Status.STATUS_CODE_ERROR, message=attempt.end))
    return span


def _request(row: RequestRow) -> dict[str, Value]:
    history = row.history
    return {
        "http.request.method": "POST",
        "url.path": row.endpoint,
        "http.response.status_code": row.status,
        "error.type": None if row.why is None else row.why.value,
        "tailgate.request_id": row.request_id,
        "tailgate.reason": None if row.why is None else row.why.value,
        "tailgate.tier": row.tier,
        "tailgate.tenant": row.tenant or None,
        "tailgate.outcome": row.outcome.value,
        "tailgate.good": row.good,
        "tailgate.pool": row.pool or None,
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


def _attempt(row: RequestRow, attempt: AttemptHistory) -> dict[str, Value]:
    first_at = attempt.first_at
    told: dict[str, Value] = {
        "gen_ai.operation.name": OPERATIONS.get(row.endpoint, row.endpoint),
        "gen_ai.provider.name": "tailgate",
        "gen_ai.request.model": row.model,
        "gen_ai.request.stream": row.stream,
        "gen_ai.request.max_tokens": row.history.max_tokens or None,
        "server.address": attempt.replica or None,
        "http.response.status_code": attempt.status,
        "error.type": None if attempt.end == "complete" else attempt.end,
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


def _attributes(values: dict[str, Value]) -> list[KeyValue]:
    return [KeyValue(key=name, value=_value(value)) for name, value in values.items() if value is not None]


def _value(value: str | bool | int | float) -> AnyValue:
    match value:
        case bool():
            return AnyValue(bool_value=value)
        case int():
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
        case _:
            return AnyValue(string_value=value)
