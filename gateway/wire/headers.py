"""Heads of messages: what is taken from a client's, what is sent to a replica, what is answered."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import count

from gateway.core.model import Endpoint
from gateway.core.rules import ReplicaSpec
from gateway.core.snapshot import LimitView

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:\-]{1,128}")
_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_TRACESTATE = re.compile(rb"[\x20-\x7e]{1,512}")
_CONTENT_TYPE = re.compile(rb"[\x20-\x7e]{1,128}")

_process = os.urandom(5).hex()
_serial = count(1)


@dataclass(slots=True)
class RequestHead:
    """What the gateway takes from a client's header; everything else is dropped. Values are raw bytes."""

    host: bytes | None = None
    authorization: bytes | None = None
    api_key: bytes | None = None
    request_id: bytes | None = None
    traceparent: bytes | None = None
    tracestate: bytes | None = None
    anthropic_version: bytes | None = None
    expect: bytes | None = None
    upgrade: bytes | None = None
    transfer_encoding: bytes | None = None
    content_encoding: bytes | None = None
    content_length: bytes | None = None
    repeated: str | None = field(default=None)
    """The name of a header that may stand once and stood twice."""

    def take(self, attribute: str, name: bytes, value: bytes) -> None:
        """Note a wanted header."""
        if getattr(self, attribute) is not None:
            self.repeated = self.repeated or name.decode("latin-1")
        setattr(self, attribute, value)

    @property
    def key(self) -> bytes | None:
        """The client's API key: `Authorization: Bearer` or `x-api-key`; None if it sent none."""
        if self.authorization is not None:
            scheme, _, token = self.authorization.partition(b" ")
            return token.strip() if scheme.lower() == b"bearer" else b""
        return self.api_key


# Header name -> attribute of RequestHead.
WANTED: dict[bytes, str] = {
    b"host": "host",
    b"authorization": "authorization",
    b"x-api-key": "api_key",
    b"x-request-id": "request_id",
    b"traceparent": "traceparent",
    b"tracestate": "tracestate",
    b"anthropic-version": "anthropic_version",
    b"expect": "expect",
    b"upgrade": "upgrade",
    b"transfer-encoding": "transfer_encoding",
    b"content-encoding": "content_encoding",
    b"content-length": "content_length",
}


def request_id(given: bytes | None) -> str:
    """The client's own request id if it is harmless, else a new one."""
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given.decode()
    return f"tg-{_process}-{next(_serial):x}"


def upstream_prefix(endpoint: Endpoint, replica: ReplicaSpec, upstream_key: str | None) -> bytes:
    """The part of an upstream head that is the same for every request of one endpoint to one replica.

    Nothing of the client's is in it: path and Host come from constants and from the policy.
    """
    authority = replica.url.partition("://")[2]
    lines = [
        f"POST {endpoint.value} HTTP/1.1",
        f"host: {authority}",
        "content-type: application/json",
        "accept: text/event-stream, application/json",
        "accept-encoding: identity",
    ]
    if endpoint is Endpoint.MESSAGES:
        lines.append("anthropic-version: 2023-06-01")
    if upstream_key is not None:
        lines.append(f"authorization: Bearer {upstream_key}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\nx-request-id: "


def upstream_head(prefix: bytes, head: RequestHead, rid: str, body_bytes: int) -> bytes:
    """The whole upstream head, with the trace context passed on if it is well formed."""
    if head.traceparent is not None and _TRACEPARENT.fullmatch(head.traceparent):
        trace = b"\r\ntraceparent: " + head.traceparent
        if head.tracestate is not None and _TRACESTATE.fullmatch(head.tracestate):
            trace += b"\r\ntracestate: " + head.tracestate
        return b"%b%b%b\r\ncontent-length: %d\r\n\r\n" % (prefix, rid.encode(), trace, body_bytes)
    return b"%b%b\r\ncontent-length: %d\r\n\r\n" % (prefix, rid.encode(), body_bytes)


def status_line(status: int) -> bytes:
    """`HTTP/1.1 200 OK`, with its line end."""
    try:
        return b"HTTP/1.1 %d %b\r\n" % (status, HTTPStatus(status).phrase.encode())
    except ValueError:
        return b"HTTP/1.1 %d \r\n" % status


_OK = status_line(200)
STREAM_HEAD = (
    _OK + b"content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\nx-accel-buffering: no\r\n"
)


def whole_head(content_type: bytes | None, body_bytes: int | None) -> bytes:
    """The first lines of an answer of status 200 that is not streamed; no length means chunked."""
    kind = content_type if content_type is not None and _CONTENT_TYPE.fullmatch(content_type) else b"application/json"
    if body_bytes is None:
        return b"%bcontent-type: %b\r\n" % (_OK, kind)
    return b"%bcontent-type: %b\r\ncontent-length: %d\r\n" % (_OK, kind, body_bytes)


def rate_limit_lines(view: LimitView) -> bytes:
    """`x-ratelimit-*` for people: limit, what is left, and when it is full again."""
    lines = b""
    if view.requests_limit is not None and view.requests_left is not None and view.requests_reset_s is not None:
        lines += _limit_lines(b"requests", view.requests_limit, view.requests_left, view.requests_reset_s)
    if view.tokens_limit is not None and view.tokens_left is not None and view.tokens_reset_s is not None:
        lines += _limit_lines(b"tokens", view.tokens_limit, view.tokens_left, view.tokens_reset_s)
    return lines


def _limit_lines(what: bytes, limit: float, left: float, reset_s: float) -> bytes:
    return b"x-ratelimit-limit-%b: %d\r\nx-ratelimit-remaining-%b: %d\r\nx-ratelimit-reset-%b: %b\r\n" % (
        what,
        limit,
        what,
        left,
        what,
        _span(reset_s),
    )


def _span(seconds: float) -> bytes:
    """`1m12.5s`, the way OpenAI writes it."""
    minutes, rest = divmod(round(seconds, 3), 60)
    return b"%dm%gs" % (minutes, rest) if minutes else b"%gs" % rest
