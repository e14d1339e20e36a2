"""Heads of messages: what is taken from a client's, what is sent to a replica, what is answered."""

from __future__ import annotations

import os
import re
from http import HTTPStatus
from itertools import count
from typing import Final

from gateway.core.limits import Left
from gateway.core.model import Endpoint
from gateway.core.rules import ReplicaSpec, Slo

_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._:\-]{1,128}")
_TRACEPARENT: Final = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_TRACESTATE: Final = re.compile(rb"[\x20-\x7e]{1,512}")
_CONTENT_TYPE: Final = re.compile(rb"[\x20-\x7e]{1,128}")

_process: Final = os.urandom(5).hex()
_serial: Final = count(1)


class RequestHead(dict[bytes, bytes]):
    """What the gateway takes from a client's header, by lower-case name; everything else is dropped."""

    __slots__ = ("repeated",)

    def __init__(self) -> None:
        super().__init__()
        self.repeated: bytes | None = None
        """The name of a header that may stand once and stood twice."""

    @property
    def key(self) -> bytes | None:
        """The client's API key: `Authorization: Bearer` or `x-api-key`; None if it sent none."""
        authorization = self.get(b"authorization")
        if authorization is None:
            return self.get(b"x-api-key")
        if authorization.startswith(b"Bearer "):
            return authorization[7:].strip()
        scheme, _, token = authorization.partition(b" ")
        return token.strip() if scheme.lower() == b"bearer" else b""

    def is_for_us_alone(self, name: bytes) -> bool:
        """Whether `Connection` names this header, so that it may not be passed on (RFC 9110, 7.6.1)."""
        options = self.get(b"connection", b"").lower().split(b",")
        return name in [option.strip() for option in options]

    @property
    def anthropic(self) -> bool:
        """Whether the caller speaks as Anthropic's SDK does."""
        return b"anthropic-version" in self or b"x-api-key" in self


# An objective that a request wants of its own, in milliseconds: llm-d's names, with its prefix and without.
_TTFT: Final = (b"x-slo-ttft-ms", b"x-llm-d-slo-ttft-ms")
_TPOT: Final = (b"x-slo-tpot-ms", b"x-llm-d-slo-tpot-ms")
SLO_HEADERS: Final = frozenset(_TTFT + _TPOT)
MAX_SLO_MS: Final = 86_400_000.0
_MILLISECONDS: Final = re.compile(rb"\d{1,9}(\.\d{1,6})?")

# Headers that change how a request is read; an ordinary one has none of them.
UNUSUAL: Final = frozenset({b"expect", b"transfer-encoding", b"content-encoding"})
WANTED = UNUSUAL | {
    b"host",
    b"connection",
    b"authorization",
    b"x-api-key",
    b"x-request-id",
    b"traceparent",
    b"tracestate",
    b"anthropic-version",
    b"content-length",
    *SLO_HEADERS,
}


# First letter and length of the wanted names: most headers are told by these alone.
_SHAPES: Final = frozenset((name[0], len(name)) for name in WANTED)

# Headers whose value is a list, which a client may cut into several lines.
LISTS: Final = frozenset({b"connection", b"tracestate"})


def read_head(raw: bytes) -> RequestHead:
    """The wanted headers of a head that a parser has found well formed; `raw` ends with its blank line or behind it.

    A callback per header costs more than all the rest of parsing a request, and clients send a score of headers that
    nobody here wants.
    """
    head = RequestHead()
    for line in raw[: raw.find(b"\r\n\r\n")].split(b"\r\n")[1:]:
        colon = line.find(b":")
        if (line[0] | 0x20, colon) not in _SHAPES:
            continue
        name = line[:colon].lower()
        if name in WANTED:
            value = line[colon + 1 :].strip(b" \t")
            if name in head:
                if name in LISTS:
                    value = head[name] + b"," + value
                else:
                    head.repeated = name
            head[name] = value
    return head


class BadHeader(ValueError):
    """A header whose value cannot be read; the message names it."""

    def __init__(self, name: bytes, problem: str) -> None:
        self.name = name.decode()
        super().__init__(f"{self.name}: {problem}")


def asked_slo(head: RequestHead, slo: Slo) -> Slo | None:
    """`slo` tightened to what the headers ask for; None if they ask for nothing. Raises BadHeader."""
    if SLO_HEADERS.isdisjoint(head):
        return None
    return slo.tightened(_tightest_s(head, _TTFT), _tightest_s(head, _TPOT))


def _tightest_s(head: RequestHead, names: tuple[bytes, ...]) -> float | None:
    found = [_seconds(name, head[name]) for name in names if name in head]
    return min(found, default=None)


def _seconds(name: bytes, value: bytes) -> float:
    if not _MILLISECONDS.fullmatch(value) or not 0.0 < float(value) <= MAX_SLO_MS:
        raise BadHeader(name, "is not a number of milliseconds above 0, such as 800, of at most a day")
    return float(value) / 1000.0


_UPGRADE: Final = re.compile(rb"\r\nupgrade(?=:)", re.IGNORECASE)


def without_upgrade(raw: bytes) -> bytes:
    """The same head, and what follows it, with the Upgrade header under another name."""
    end = raw.find(b"\r\n\r\n")
    return _UPGRADE.sub(b"\r\nignored", raw[:end]) + raw[end:]


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


def upstream_head(prefix: bytes, head: RequestHead, rid: bytes, body_bytes: int) -> bytes:
    """The whole upstream head, with the trace context passed on if it is well formed."""
    parent = head.get(b"traceparent")
    if parent is None or not _TRACEPARENT.fullmatch(parent) or head.is_for_us_alone(b"traceparent"):
        return b"%b%b\r\ncontent-length: %d\r\n\r\n" % (prefix, rid, body_bytes)
    state = head.get(b"tracestate", b"")
    passed = _TRACESTATE.fullmatch(state) and not head.is_for_us_alone(b"tracestate")
    trace = b"%b\r\ntracestate: %b" % (parent, state) if passed else parent
    return b"%b%b\r\ntraceparent: %b\r\ncontent-length: %d\r\n\r\n" % (prefix, rid, trace, body_bytes)


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


def whole_head(content_type: bytes | None, body_bytes: int | None) -> bytes:
    """The first lines of an answer of status 200 that is not streamed; no length means chunked."""
    kind = content_type if content_type is not None and _CONTENT_TYPE.fullmatch(content_type) else b"application/json"
    if body_bytes is None:
        return b"%bcontent-type: %b\r\n" % (_OK, kind)
    return b"%bcontent-type: %b\r\ncontent-length: %d\r\n" % (_OK, kind, body_bytes)


def rate_limit_lines(left: Left) -> bytes:
    """`x-ratelimit-*` for people: limit, what is left, and when it is full again."""
    requests, tokens = left
    lines = b""
    if requests is not None:
        lines = _REQUESTS % (requests[0], requests[1], _span(requests[2]))
    if tokens is not None:
        lines += _TOKENS % (tokens[0], tokens[1], _span(tokens[2]))
    return lines


_REQUESTS: Final = (
    b"x-ratelimit-limit-requests: %d\r\nx-ratelimit-remaining-requests: %d\r\nx-ratelimit-reset-requests: %b\r\n"
)
_TOKENS: Final = b"x-ratelimit-limit-tokens: %d\r\nx-ratelimit-remaining-tokens: %d\r\nx-ratelimit-reset-tokens: %b\r\n"


def _span(seconds: float) -> bytes:
    """`1m12.5s`, the way OpenAI writes it."""
    if seconds < 60.0:
        return b"%.3gs" % seconds
    minutes, rest = divmod(seconds, 60.0)
    return b"%dm%.3gs" % (minutes, rest)
