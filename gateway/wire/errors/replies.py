"""Writes errors for clients: whole responses, and events inside a stream.

The format here is OpenAI's; the code is a string or null. Messages and Responses have their own in `wire/apis`.

    {"error": {"message", "type", "param", "code"}}
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Final

import orjson

from gateway.core.results import Reason
from gateway.wire.errors import rejected
from gateway.wire.errors.reasons import INVALID, ROWS, RefusalRow
from gateway.wire.http.decoding import ACCEPT_ENCODING
from gateway.wire.http.written_heads import status_line

RETRY_AFTER_S: Final = 1.0
"""Value of `Retry-After` if no better one is known."""
MAX_WRITTEN_RETRY_AFTER_S: Final = 86400.0
MAX_MESSAGE_CHARS: Final = 2000

_OUTSIDE: Final = re.compile(r"[^\x21-\x7e]")
# Engine statuses that are passed on to the client, with the status that the client gets. Other 4xx are about the
# gateway's key or path, not about the client.
CLIENT_FAULTS: Final = {400: 400, 404: 404, 413: 413, 422: 400}


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a request is not served. If `message` is empty or `code` is None, the one of the reason is used.

    `retry_after_s`: seconds until a retry makes sense; inf if a retry never makes sense, None if the time is unknown.
    `allow`: the methods for a 405.
    """

    why: Reason
    message: str = ""
    param: str | None = None
    code: str | None = None
    retry_after_s: float | None = None
    allow: str = "POST"


class Dialect:
    """The error format for a client. This class is OpenAI's; Anthropic's is in `wire.apis.messages`."""

    __slots__ = ()

    def error(self, row: RefusalRow, message: str, problem: Problem, request_id: str | None) -> dict[str, Any]:
        """The body of an error answer, or of an error event if `request_id` is None."""
        param = None if problem.param is None else _encodable(problem.param[:256])
        return {
            "error": {"message": message, "type": row.openai_type, "param": param, "code": problem.code or row.code}
        }

    def event(self, error: dict[str, Any]) -> bytes:
        """The event of a stream with the body `error`."""
        return b"data: %b\n\n" % orjson.dumps(error)

    def id_lines(self, request_id: bytes) -> bytes:
        """The header lines with the request id. Some SDKs read it from another header than `x-request-id`."""
        return b"x-request-id: %b\r\n" % request_id


OPENAI: Final = Dialect()


def status_of(why: Reason) -> int:
    """The HTTP status of a reason."""
    return ROWS[why].status


def error_response(
    dialect: Dialect, problem: Problem, request_id: str, extra_headers: bytes = b"", close: bool = False
) -> bytes:
    """A whole HTTP/1.1 error response. `extra_headers`: complete lines, each with its CRLF."""
    return _response(dialect, ROWS[problem.why], problem, request_id, extra_headers, close)


def error_event(dialect: Dialect, problem: Problem) -> bytes:
    """The error event that ends a stream that has begun. The SDKs raise an exception when they read it."""
    return dialect.event(_error(dialect, ROWS[problem.why], problem, None))


def upstream_problem(status: int, body: bytes) -> Problem:
    """An engine's error answer as a `Problem` for the client."""
    if status not in CLIENT_FAULTS:
        # This includes 401 and 403, where the engine rejected the gateway's key, not the client's.
        return Problem(Reason.UPSTREAM_BUSY if status in (429, 503) else Reason.UPSTREAM_ERROR)
    said = rejected.read(body)
    return Problem(Reason.UPSTREAM_REJECTED, said.message, said.param, said.code)


def upstream_error(dialect: Dialect, status: int, body: bytes, request_id: str, extra_headers: bytes = b"") -> bytes:
    """An engine's error answer, as a whole response in the client's dialect."""
    problem = upstream_problem(status, body)
    theirs = CLIENT_FAULTS.get(status)
    if theirs is None:
        return error_response(dialect, problem, request_id, extra_headers)
    row = ROWS[Reason.UPSTREAM_REJECTED]
    anthropic_type = {404: "not_found_error", 413: "request_too_large"}.get(theirs, INVALID)
    row = RefusalRow(theirs, row.openai_type, row.code, anthropic_type, row.retry, row.message)
    return _response(dialect, row, problem, request_id, extra_headers, close=False)


def _error(dialect: Dialect, row: RefusalRow, problem: Problem, request_id: str | None) -> dict[str, Any]:
    message = problem.message
    if row.status >= 500 or problem.why is Reason.UPSTREAM_REJECTED:  # the text may come from an engine
        message = rejected.clean(message)
    message = _encodable(message[:MAX_MESSAGE_CHARS]) or row.message
    return dialect.error(row, message, problem, request_id)


def _response(
    dialect: Dialect, row: RefusalRow, problem: Problem, request_id: str, extra_headers: bytes, close: bool
) -> bytes:
    rid = _token(request_id)
    body = orjson.dumps(_error(dialect, row, problem, rid))
    lines = [
        b"%bcontent-type: application/json\r\ncontent-length: %d\r\nx-tailgate-reason: %b\r\n"
        % (status_line(row.status), len(body), problem.why.value.encode()),
        dialect.id_lines(rid.encode()),
    ]
    if row.status in (429, 503, 504) or problem.retry_after_s is not None:
        lines.append(_retry_lines(problem.retry_after_s))
    if not row.retry or problem.retry_after_s == math.inf:
        lines.append(b"x-should-retry: false\r\n")
    if row.status == 405:
        lines.append(b"allow: %b\r\n" % _OUTSIDE.sub("", problem.allow).encode())
    if row.status == 415:
        lines.append(b"accept-encoding: %b\r\n" % ACCEPT_ENCODING)  # RFC 9110, 12.5.3
    if row.status == 426:
        lines.append(b"upgrade: HTTP/1.1\r\n")  # names the protocol to use (RFC 9110, 15.5.22)
    if close:
        lines.append(b"connection: close\r\n")
    lines += (extra_headers, b"\r\n", body)
    return b"".join(lines)


def _retry_lines(retry_after_s: float | None) -> bytes:
    """`Retry-After` in whole seconds, and a line in milliseconds for the SDKs. Both are rounded up and never zero."""
    seconds = RETRY_AFTER_S if retry_after_s is None else retry_after_s
    if not 0.0 <= seconds <= MAX_WRITTEN_RETRY_AFTER_S:
        seconds = 0.0 if seconds < 0.0 else MAX_WRITTEN_RETRY_AFTER_S
    return b"retry-after: %d\r\nretry-after-ms: %d\r\n" % (
        max(1, math.ceil(seconds)),
        max(1, math.ceil(seconds * 1000)),
    )


def _token(text: str) -> str:
    """The text in a form for a header value: printable ASCII without blanks."""
    return _OUTSIDE.sub("", text)[:128]


def _encodable(text: str) -> str:
    """The text without lone surrogates, which cannot be written in UTF-8."""
    return text.encode("utf-8", "replace").decode()
