"""Writes heads of HTTP messages: of upstream requests and of answers."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Final

from gateway.core.pool_spec import ReplicaAccess, ReplicaSpec
from gateway.core.queueing.bucket import Rate
from gateway.core.queueing.limits import Left
from gateway.wire.http.headers import RequestHead
from gateway.wire.http.lines import written
from gateway.wire.http.trace_context import parent_for

_TRACEPARENT: Final = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_TRACESTATE: Final = re.compile(rb"[\x20-\x7e]{1,512}")
_CONTENT_TYPE: Final = re.compile(rb"[\x20-\x7e]{1,128}")
_CODING: Final = re.compile(rb"[A-Za-z0-9-]{1,32}")
_JSON: Final = b"application/json"
DP_RANK: Final = "x-data-parallel-rank"
"""Header that sends a request to one data-parallel rank of vLLM. It is not in `WANTED`, so the same header of a client
is dropped.
"""


def upstream_prefix(
    path: str, content_type: str, more: tuple[str, ...], replica: ReplicaSpec, access: ReplicaAccess
) -> bytes:
    """The part of an upstream head that is the same for every request of one path to one replica.

    It has no data of the client. Path and Host come from constants and from the policy. `more`: further header lines,
    from the row of the API.
    """
    authority, slash, prefix = replica.url.partition("://")[2].partition("/")
    lines = [
        f"POST {slash}{prefix}{path} HTTP/1.1",
        f"host: {access.host or authority}",
        f"content-type: {content_type}",
        "accept: text/event-stream, application/json",
        "accept-encoding: identity",
        *more,
    ]
    if replica.dp_rank is not None:
        lines.append(f"{DP_RANK}: {replica.dp_rank}")
    if access.key is not None:
        lines.append(f"authorization: Bearer {access.key}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\nx-request-id: "


def trace_parent(head: RequestHead) -> str:
    """The client's trace context; empty if it sent none that is well formed and may be forwarded."""
    parent = head.fields.get(b"traceparent")
    if parent is None or not _TRACEPARENT.fullmatch(parent) or head.is_for_us_alone(b"traceparent"):
        return ""
    return parent.decode()


def upstream_head(prefix: bytes, head: RequestHead, rid: str, body_bytes: int) -> bytes:
    """The whole upstream head. The client's trace context is forwarded if it is well formed.

    If the gateway makes traces, the attempt is the parent of the replica's spans. Its id is the end of `rid`.
    """
    parent = trace_parent(head)
    trace = _trace_state(head) if parent else ""
    if head.trace_ratio >= 0.0:
        parent = parent_for(parent, head.request_id, rid[rid.rfind(".") + 1 :], head.trace_ratio)
    if parent:
        trace = f"traceparent: {parent}\r\n{trace}"
    return prefix + f"{rid}\r\n{trace}content-length: {body_bytes}\r\n\r\n".encode()


def _trace_state(head: RequestHead) -> str:
    state = head.fields.get(b"tracestate")
    if state is None or not _TRACESTATE.fullmatch(state) or head.is_for_us_alone(b"tracestate"):
        return ""
    return f"tracestate: {state.decode()}\r\n"


def status_line(status: int) -> bytes:
    """`HTTP/1.1 200 OK`, with its line end."""
    try:
        return b"HTTP/1.1 %d %b\r\n" % (status, HTTPStatus(status).phrase.encode())
    except ValueError:
        return b"HTTP/1.1 %d \r\n" % status


_OK: Final = status_line(200)
STREAM_HEAD: Final = (
    _OK + b"content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\nx-accel-buffering: no\r\n"
)


def whole_head(content_type: bytes | None, body_bytes: int | None, coding: bytes | None = None) -> bytes:
    """The first lines of the head of an unstreamed answer with status 200. `body_bytes` None: chunked.

    `coding`: the content encoding, if the body is forwarded encoded.
    """
    kind = _JSON
    if content_type is not None and content_type != _JSON and _CONTENT_TYPE.fullmatch(content_type):
        kind = content_type
    if coding is not None and _CODING.fullmatch(coding):
        kind = b"%b\r\ncontent-encoding: %b" % (kind, coding)
    if body_bytes is None:
        return b"".join((_OK, b"content-type: ", kind, b"\r\n"))
    return b"".join((_OK, b"content-type: ", kind, b"\r\ncontent-length: ", written(body_bytes), b"\r\n"))


class _RateTexts:
    """The texts before the numbers of one limit, and the limit that was written last: it is often the same again."""

    __slots__ = ("last", "last_written", "left", "limit", "reset")

    def __init__(self, what: str) -> None:
        self.limit = f"x-ratelimit-limit-{what}: "
        self.left = f"\r\nx-ratelimit-remaining-{what}: "
        self.reset = f"\r\nx-ratelimit-reset-{what}: "
        self.last = 0.0
        self.last_written = "0"


_REQUESTS: Final = _RateTexts("requests")
_TOKENS: Final = _RateTexts("tokens")


def rate_limit_lines(left: Left) -> str:
    """The `x-ratelimit-*` lines: the limit, the amount left, and the time until it is full again."""
    requests, tokens = left
    lines = "" if requests is None else _rate_lines(_REQUESTS, requests)
    return lines if tokens is None else lines + _rate_lines(_TOKENS, tokens)


def _rate_lines(texts: _RateTexts, rate: Rate) -> str:
    limit, left, reset_s = rate
    if limit != texts.last:
        texts.last, texts.last_written = limit, str(int(limit))
    return f"{texts.limit}{texts.last_written}{texts.left}{int(left)}{texts.reset}{_span(reset_s)}\r\n"


_THOUSANDTHS: Final = [f"{number}ms" for number in range(1000)]


def _span(seconds: float) -> str:
    """A duration as OpenAI writes it: `1m12.5s`, or below a second `120ms`."""
    thousandths = int(seconds * 1000.0 + 0.5)
    if thousandths < 1000:
        return _THOUSANDTHS[thousandths]
    tenths = thousandths // 100
    if tenths < 600:
        return f"{tenths // 10}.{tenths % 10}s"
    return f"{tenths // 600}m{tenths % 600 // 10}.{tenths % 10}s"
