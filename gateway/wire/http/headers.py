"""Reads heads of client requests. `written_heads.py` writes heads."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Final

from gateway.core.slo import Slo
from gateway.wire.http.lines import Names, number, trimmed

_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._:\-]{1,128}")


class _Ids:
    """Makes request ids that are unique in this process."""

    __slots__ = ("_made", "_process")

    def __init__(self) -> None:
        self._process = f"tg-{os.urandom(5).hex()}-"
        self._made = 0

    def next(self) -> str:
        self._made += 1
        return self._process + str(self._made)


_IDS: Final = _Ids()
PROCESS: Final = b"%b." % os.urandom(3).hex().encode()
"""Random part of upstream request ids. It differs between gateways that send to the same replicas."""


class RequestHead:
    """The headers of a client's request that the gateway uses. All others are dropped."""

    __slots__ = (
        "asks_slo",
        "at",
        "cors",
        "fields",
        "has_origin",
        "http_11",
        "preflight",
        "repeated",
        "request_id",
        "trace_ratio",
        "unusual",
    )

    def __init__(self) -> None:
        self.at = 0.0
        """Time at which the last byte of the head came (monotonic seconds)."""
        self.request_id = ""
        """The client's request id if it is harmless, or else a new one."""
        self.trace_ratio = -1.0
        """Share (0-1) of the requests that are traced; below 0 if the gateway makes no traces of its own."""
        self.fields: dict[bytes, bytes] = {}
        """Values by lower-case name."""
        self.http_11 = False
        """Whether the request line ends with HTTP/1.1."""
        self.unusual = False
        """Whether the head has a header of `UNUSUAL`, which changes how the request is read."""
        self.asks_slo = False
        """Whether a header sets an objective for this request."""
        self.has_origin = False
        """Whether the head has an Origin header, as requests of web pages have."""
        self.cors = b""
        """CORS header lines for the answer; empty if no page may read it."""
        self.preflight = b""
        """Further header lines for the answer to a browser's preflight."""
        self.repeated: bytes | None = None
        """Name of a header that occurred twice but may occur only once; None if there is none."""

    @property
    def key(self) -> bytes | None:
        """The client's API key: `Authorization: Bearer` or `x-api-key`; None if it sent none."""
        authorization = self.fields.get(b"authorization")
        if authorization is None:
            return self.fields.get(b"x-api-key")
        if authorization[:7] == b"Bearer ":
            return trimmed(authorization, 7)
        scheme, _, token = authorization.partition(b" ")
        return token.strip() if scheme.lower() == b"bearer" else b""

    def is_for_us_alone(self, name: bytes) -> bool:
        """Whether the Connection header names the header `name`, which then must not be forwarded (RFC 9110, 7.6.1)."""
        options = self.fields.get(b"connection", b"").lower().split(b",")
        return name in [option.strip() for option in options]

    @property
    def comes_back(self) -> bool:
        """Whether the client says that this is a retry. An invalid value is ignored."""
        return number(self.fields.get(RETRY_COUNT, b"0")) > 0

    @property
    def anthropic(self) -> bool:
        """Whether the headers are those of Anthropic's SDK."""
        return b"anthropic-version" in self.fields or b"x-api-key" in self.fields


# Headers that set an objective for a request, in milliseconds. The names are llm-d's, with and without its prefix.
_TTFT: Final = (b"x-slo-ttft-ms", b"x-llm-d-slo-ttft-ms")
_TPOT: Final = (b"x-slo-tpot-ms", b"x-llm-d-slo-tpot-ms")
SLO_HEADERS: Final = frozenset(_TTFT + _TPOT)
RETRY_COUNT: Final = b"x-stainless-retry-count"
"""Header with the number of earlier tries, which the SDKs of OpenAI and Anthropic send with each request."""
MAX_SLO_MS: Final = 86_400_000.0
_MILLISECONDS: Final = re.compile(rb"\d{1,9}(\.\d{1,6})?")

# Headers that change how a request is read. Ordinary requests have none of them.
UNUSUAL: Final = frozenset({b"expect", b"transfer-encoding", b"content-encoding"})
ORIGIN: Final = b"origin"
WANTED: Final = UNUSUAL | {
    b"host",
    b"connection",
    b"authorization",
    b"x-api-key",
    b"x-request-id",
    b"x-session-id",
    b"traceparent",
    b"tracestate",
    b"anthropic-version",
    b"content-length",
    ORIGIN,
    RETRY_COUNT,
    *SLO_HEADERS,
}

_NAMES: Final = Names(WANTED)
_NOTED: Final = UNUSUAL | SLO_HEADERS | {ORIGIN}

# Headers whose value is a list, which a client may split over several lines.
LISTS: Final = frozenset({b"accept", b"connection", b"tracestate"})
# Headers that are ignored if they occur twice, because only logs and metrics depend on them.
TRACING: Final = frozenset({b"traceparent", b"x-request-id", RETRY_COUNT})


def wanted(more: Iterable[str]) -> Names:
    """The names of the headers that are read, and of `more` headers (in lower case)."""
    return Names(WANTED.union(name.encode() for name in more))


class Beginning:
    """The first lines of a head, up to the first one that is read and is not Host or Connection.

    Clients send these lines again with each request of a connection, so they are read once. Keys are never among them.
    """

    __slots__ = ("fields", "http_11", "names", "raw")

    def __init__(self) -> None:
        self.raw = b""
        """The lines, with the last line end; empty if nothing is known."""
        self.names = _NAMES
        """The names that were read."""
        self.http_11 = False
        self.fields: dict[bytes, bytes] = {}


_REPEATED: Final = frozenset({b"host", b"connection"})


def read_head(raw: bytes, names: Names = _NAMES, known: Beginning | None = None) -> RequestHead:
    """Read the needed headers of a head that a parser has found well formed. `raw` ends at or after its blank line.

    Clients send some twenty unused headers. A parser's callback for each would cost more than all other parsing of a
    request. `known`: the beginning of an earlier head. It is replaced if this one begins otherwise.
    """
    head = RequestHead()
    fields = head.fields
    start = 0 if known is None or known.names is not names else len(known.raw)
    if start and known is not None and raw[:start] == known.raw:
        head.http_11 = known.http_11
        fields = head.fields = known.fields.copy()
        known = None
        end = raw.find(b"\r\n\r\n", start - 2)
        lines = raw[start:end].split(b"\r\n") if end > start else []
    else:
        lines = raw[: raw.find(b"\r\n\r\n")].split(b"\r\n")
        head.http_11 = lines[0][-9:] == b" HTTP/1.1"
        start = len(lines[0]) + 2
        del lines[0]
    for line in lines:
        name = names.find(line)
        if known is not None:
            if name is None or (name in _REPEATED and name not in fields):
                start += len(line) + 2
            else:
                known.raw, known.names, known.http_11, known.fields = raw[:start], names, head.http_11, fields.copy()
                known = None
        if name is None:
            continue
        value = trimmed(line, len(name) + 1)
        before = fields.get(name)
        if before is not None:
            if name in LISTS:
                value = before + b"," + value
            elif name in TRACING:
                value = b""
            else:
                head.repeated = name
        elif name in _NOTED:
            head.unusual = head.unusual or name in UNUSUAL
            head.asks_slo = head.asks_slo or name in SLO_HEADERS
            head.has_origin = head.has_origin or name == ORIGIN
        fields[name] = value
    given = fields.get(b"x-request-id")
    head.request_id = given.decode() if given is not None and _REQUEST_ID.fullmatch(given) else _IDS.next()
    return head


class BadHeader(ValueError):
    """A header whose value is invalid. The message names the header."""

    def __init__(self, name: bytes, problem: str) -> None:
        self.name = name.decode()
        super().__init__(f"{self.name}: {problem}")


def asked_slo(head: RequestHead, slo: Slo) -> Slo | None:
    """`slo`, tightened to the objectives in the headers; None if they set none. Raises BadHeader."""
    if not head.asks_slo:
        return None
    return slo.tightened(_tightest_s(head.fields, _TTFT), _tightest_s(head.fields, _TPOT))


def _tightest_s(fields: dict[bytes, bytes], names: tuple[bytes, ...]) -> float | None:
    found = [_seconds(name, fields[name]) for name in names if name in fields]
    return min(found, default=None)


def _seconds(name: bytes, value: bytes) -> float:
    if not _MILLISECONDS.fullmatch(value) or not 0.0 < float(value) <= MAX_SLO_MS:
        raise BadHeader(name, "is not a number of milliseconds above 0, such as 800, of at most a day")
    return float(value) / 1000.0


_UPGRADE: Final = re.compile(rb"\r\nupgrade(?=:)", re.IGNORECASE)
_WEBSOCKET: Final = re.compile(rb"\r\nupgrade:[^\r]*\bwebsocket\b", re.IGNORECASE)


def asks_websocket(raw: bytes) -> bool:
    """Whether a head asks for an upgrade to WebSocket."""
    return _WEBSOCKET.search(raw, 0, raw.find(b"\r\n\r\n") + 2) is not None


def without_upgrade(raw: bytes) -> bytes:
    """The head and the bytes after it, with the Upgrade header renamed."""
    end = raw.find(b"\r\n\r\n")
    return _UPGRADE.sub(b"\r\nignored", raw[:end]) + raw[end:]
