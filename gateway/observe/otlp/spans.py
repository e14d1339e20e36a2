"""The spans of one request: a SERVER span, the wait in the queue, and a CLIENT span for each attempt.

An attempt has children: the time to its first token and, if the client got its answer, the relay from there on.

Attributes are those of the semantic conventions for HTTP and, at attempts, for GenAI clients (`gen_ai.*`,
open-telemetry/semantic-conventions-genai 0.1.0, in development). Only the attempt whose answer the client got has the
usage, else sums would count it twice. The others are linked to it.

Names, and attributes that take few values, are encoded once for many spans.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import lru_cache
from operator import add, attrgetter
from struct import Struct
from typing import Any, Final

from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span, Status

from gateway.core.history import AttemptHistory
from gateway.core.request import Endpoint
from gateway.core.results import AttemptOutcome, Outcome
from gateway.observe.otlp.encoding import (
    DOUBLE,
    FIXED64,
    REAL,
    REMEMBERED,
    SIZED,
    VARINT,
    Value,
    before,
    double,
    encoded,
    integer,
    sized,
    tag,
    text,
    varint,
)
from gateway.observe.requests.row import RequestRow
from gateway.wire.http.trace_context import seed_of, span_id_of, trace_id_of

OPERATIONS = {
    Endpoint.CHAT.value: "chat",
    Endpoint.RESPONSES.value: "chat",
    Endpoint.MESSAGES.value: "chat",
    Endpoint.COMPLETIONS.value: "text_completion",
    Endpoint.EMBEDDINGS.value: "embeddings",
}
FAILED = (Outcome.TIMEOUT, Outcome.CUT, Outcome.ERROR)
SERVER_ERROR = 500

OF_REQUEST: Final = {
    "url.path": "endpoint",
    "error.type": "why",
    "tailgate.reason": "why",
    "tailgate.tier": "tier",
    "tailgate.tenant": "tenant",
    "tailgate.outcome": "outcome",
    "tailgate.good": "good",
    "tailgate.pool": "pool",
    "tailgate.rule": "history.rule",
    "tailgate.constraint": "history.binds",
    "tailgate.hedged": "hedged",
    "tailgate.attempts": "attempts",
}
"""Attributes of a request that take few values, and their fields in its row."""
MEASURED: Final = {
    "tailgate.wait_s": "queue_s",
    "tailgate.ttft_s": "ttft_s",
    "tailgate.breach": "breach",
    "tailgate.forecast.wait_s": "history.wait_s",
    "tailgate.forecast.ttft_s": "history.ttft_s",
}
Getter = Callable[[object], tuple[Any, ...]]
_of_request: Final[Getter] = attrgetter(*OF_REQUEST.values())
_measured: Final[Getter] = attrgetter(*MEASURED.values())
_BEFORE_MEASURED: Final = tuple(before(name, REAL, 8) for name in MEASURED)

_SPAN: Final = tag(ScopeSpans.SPANS_FIELD_NUMBER, SIZED)
_PARENT_ID: Final = sized(tag(Span.PARENT_SPAN_ID_FIELD_NUMBER, SIZED), bytes(8))[:2]
_HEAD: Final = Struct("<2s16s2s8ssQsQ").pack
_TRACE_ID: Final = sized(tag(Span.TRACE_ID_FIELD_NUMBER, SIZED), bytes(16))[:2]
_SPAN_ID: Final = sized(tag(Span.SPAN_ID_FIELD_NUMBER, SIZED), bytes(8))[:2]
_START: Final = tag(Span.START_TIME_UNIX_NANO_FIELD_NUMBER, FIXED64)
_END: Final = tag(Span.END_TIME_UNIX_NANO_FIELD_NUMBER, FIXED64)
_LINKED_SPAN_ID: Final = sized(tag(Span.Link.SPAN_ID_FIELD_NUMBER, SIZED), bytes(8))[:2]
_LINK: Final = sized(
    tag(Span.LINKS_FIELD_NUMBER, SIZED),
    sized(tag(Span.Link.TRACE_ID_FIELD_NUMBER, SIZED), bytes(16)) + _LINKED_SPAN_ID + bytes(8),
)[: -16 - 2 - 8]
"""A link up to the id of its trace."""


def spans_of(row: RequestRow, wall_s: float, scheme: str) -> bytes:
    """The spans of a request, as fields of `ScopeSpans`. `wall_s`: Unix time at the zero of the monotonic clock.
    `scheme`: of the gateway's own URL.

    Raises UnicodeEncodeError.
    """
    seed = seed_of(row.request_id)
    trace_id, server_id = bytes.fromhex(trace_id_of(row.traceparent, seed)), _random_id()
    ended_at = wall_s + row.ended_at
    body_at = ended_at - row.e2e_s
    request_part = _request_part(_of_request(row), row.status, scheme)
    told = [_head(trace_id, server_id, body_at - row.receive_s, ended_at), request_part]
    if row.traceparent:
        told.append(_PARENT_ID + bytes.fromhex(row.traceparent[36:52]))
    told.append(text("tailgate.request_id", row.request_id))
    measured = _measured(row)
    if None in measured:
        told += [double(name, value) for name, value in zip(MEASURED, measured, strict=True) if value is not None]
    else:
        told += map(add, _BEFORE_MEASURED, map(DOUBLE, measured))
    spans = [sized(_SPAN, b"".join(told))]
    parent = _PARENT_ID + server_id
    if row.waited:
        spans.append(_child(trace_id, parent, body_at, body_at + row.queue_s, _WAIT))
    for attempt in row.history.attempts:
        opened_at, attempt_ended_at = wall_s + attempt.opened_at, wall_s + attempt.ended_at
        span_id = bytes.fromhex(span_id_of(seed, str(attempt.id)))
        told = [_head(trace_id, span_id, opened_at, attempt_ended_at), parent]
        _add_attempt(told, row, attempt)
        if row.history.answered_by not in (0, attempt.id):
            told.append(
                _LINK + trace_id + _LINKED_SPAN_ID + bytes.fromhex(span_id_of(seed, str(row.history.answered_by)))
            )
        spans.append(sized(_SPAN, b"".join(told)))
        if attempt.first_at is not None:
            of_attempt, first_at = _PARENT_ID + span_id, wall_s + attempt.first_at
            spans.append(_child(trace_id, of_attempt, opened_at, first_at, _FIRST_TOKEN))
            if attempt.id == row.history.answered_by:
                spans.append(_child(trace_id, of_attempt, first_at, attempt_ended_at, _RELAY))
    return b"".join(spans)


def _add_attempt(told: list[bytes], row: RequestRow, attempt: AttemptHistory) -> None:
    history, first_at = row.history, attempt.first_at
    same = row.endpoint, row.model, row.stream, history.max_tokens, attempt.replica, attempt.status, attempt.end
    told.append(_attempt_part(same, attempt.hedge))
    if attempt.id == history.answered_by:
        if attempt.answer_id:
            told.append(text("gen_ai.response.id", attempt.answer_id))
        if first_at is not None:
            told.append(double("gen_ai.response.time_to_first_chunk", first_at - attempt.opened_at))
        if attempt.prompt_tokens is not None:
            told.append(integer("gen_ai.usage.input_tokens", attempt.prompt_tokens))
        if attempt.output_tokens is not None:
            told.append(integer("gen_ai.usage.output_tokens", attempt.output_tokens))
        if attempt.cached_tokens is not None:
            told.append(integer("gen_ai.usage.cache_read.input_tokens", attempt.cached_tokens))
        if attempt.reasoning_tokens is not None:
            told.append(integer("gen_ai.usage.reasoning.output_tokens", attempt.reasoning_tokens))


@lru_cache(REMEMBERED)
def _request_part(same: tuple[Any, ...], status: int, scheme: str) -> bytes:
    """Name, kind, status, and the values of `OF_REQUEST`."""
    values = dict(zip(OF_REQUEST, same, strict=True))
    why = values["error.type"]
    values |= {"http.request.method": "POST", "url.scheme": scheme, "http.response.status_code": status}
    has_failed = values["tailgate.outcome"] in FAILED or status >= SERVER_ERROR
    return _part(f"POST {values['url.path']}", Span.SPAN_KIND_SERVER, values, (why or "") if has_failed else None)


@lru_cache(REMEMBERED)
def _attempt_part(same: tuple[str, str, bool, int, str, int | None, str], hedge: bool) -> bytes:
    endpoint, model, stream, max_tokens, replica, status, end = same
    operation = OPERATIONS.get(endpoint, endpoint)
    values: dict[str, Value | None] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "tailgate",
        "gen_ai.request.model": model,
        "gen_ai.request.stream": stream,
        "gen_ai.request.max_tokens": max_tokens or None,
        "server.address": replica,
        "http.response.status_code": status,
        "error.type": None if end == AttemptOutcome.COMPLETE.value else end,
        "tailgate.hedge": hedge,
    }
    has_failed = end not in (AttemptOutcome.COMPLETE.value, AttemptOutcome.CANCELLED.value)
    return _part(f"{operation} {model}", Span.SPAN_KIND_CLIENT, values, end if has_failed else None)


def _part(name: str, kind: int, values: Mapping[str, Value | None], error: str | None) -> bytes:
    """`values`: without those that are None or empty. `error`: the message of a span that has failed."""
    told = [sized(tag(Span.NAME_FIELD_NUMBER, SIZED), name.encode()), tag(Span.KIND_FIELD_NUMBER, VARINT), varint(kind)]
    told += [encoded(name, value) for name, value in values.items() if value is not None and value != ""]
    if error is not None:
        message = sized(tag(Status.MESSAGE_FIELD_NUMBER, SIZED), error.encode())
        code = tag(Status.CODE_FIELD_NUMBER, VARINT) + varint(Status.STATUS_CODE_ERROR)
        told.append(sized(tag(Span.STATUS_FIELD_NUMBER, SIZED), message + code))
    return b"".join(told)


def _child(trace_id: bytes, parent: bytes, start_s: float, end_s: float, part: bytes) -> bytes:
    """An INTERNAL span with its tag. `parent`: the field with the id of its parent. `part`: its name and kind."""
    return sized(_SPAN, _head(trace_id, _random_id(), start_s, end_s) + parent + part)


def _head(trace_id: bytes, span_id: bytes, start_s: float, end_s: float) -> bytes:
    """Ids and times (Unix seconds) of a span."""
    return _HEAD(_TRACE_ID, trace_id, _SPAN_ID, span_id, _START, int(start_s * 1e9), _END, int(end_s * 1e9))


def _random_id() -> bytes:
    return random.getrandbits(64).to_bytes(8, "big")


_WAIT: Final = _part("wait for a replica", Span.SPAN_KIND_INTERNAL, {}, None)
_FIRST_TOKEN: Final = _part("first token", Span.SPAN_KIND_INTERNAL, {}, None)
_RELAY: Final = _part("relay", Span.SPAN_KIND_INTERNAL, {}, None)
