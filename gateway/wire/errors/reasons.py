"""The table of refusals: for each reason, the error that the client gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gateway.core.results import Reason

INVALID: Final = "invalid_request_error"


@dataclass(frozen=True, slots=True)
class RefusalRow:
    """One refusal: HTTP status, type and code for OpenAI's format, type for Anthropic's format, and message.

    `retry`: whether the same request may succeed later. If not, the answer tells the SDKs so, because they retry 408,
    409, 429 and 5xx.
    """

    status: int
    openai_type: str
    code: str | None
    anthropic_type: str
    retry: bool
    message: str


def _refused(
    status: int, code: str | None, message: str, anthropic_type: str = INVALID, openai_type: str = INVALID
) -> RefusalRow:
    return RefusalRow(status, openai_type, code, anthropic_type, False, message)


def _forbidden(code: str, message: str) -> RefusalRow:
    return _refused(403, code, message, "permission_error", "permission_error")


def _limit(openai_type: str, message: str) -> RefusalRow:
    return RefusalRow(429, openai_type, "rate_limit_exceeded", "rate_limit_error", True, message)


def _contended(code: str, message: str) -> RefusalRow:
    return RefusalRow(429, "overloaded_error", code, "rate_limit_error", True, message)


def _no_capacity(code: str, message: str) -> RefusalRow:
    return RefusalRow(503, "overloaded_error", code, "overloaded_error", True, message)


def _late(message: str, retry: bool = True) -> RefusalRow:
    return RefusalRow(504, "timeout_error", "deadline_exceeded", "timeout_error", retry, message)


def _failed(status: int, code: str, message: str) -> RefusalRow:
    return RefusalRow(status, "server_error", code, "api_error", True, message)


ROWS: Final[Mapping[Reason, RefusalRow]] = {
    Reason.BAD_REQUEST: _refused(400, None, "The request is malformed."),
    Reason.UNAUTHORIZED: _refused(401, "invalid_api_key", "The API key is missing or unknown.", "authentication_error"),
    Reason.HOST_NOT_ALLOWED: _forbidden("host_not_allowed", "This Host is unknown to the gateway."),
    Reason.ORIGIN_NOT_ALLOWED: _forbidden("origin_not_allowed", "Pages of this Origin may not use the gateway."),
    Reason.NOT_FOUND: _refused(404, "not_found", "There is nothing at this path.", "not_found_error"),
    Reason.METHOD_NOT_ALLOWED: _refused(405, "method_not_allowed", "This path does not take this method."),
    Reason.MODEL_NOT_FOUND: _refused(404, "model_not_found", "The model does not exist.", "not_found_error"),
    Reason.RESPONSE_NOT_FOUND: _refused(
        400, "previous_response_not_found", "The previous response was not found: send the whole conversation as input."
    ),
    Reason.BODY_TOO_LARGE: _refused(413, "request_too_large", "The request body is too large.", "request_too_large"),
    Reason.HEADERS_TOO_LARGE: _refused(431, "headers_too_large", "The request headers are too large."),
    Reason.RECEIVE_TIMEOUT: RefusalRow(
        408, "timeout_error", "receive_timeout", "timeout_error", True, "The request did not arrive in time."
    ),
    Reason.UNSUPPORTED_ENCODING: _refused(415, "unsupported_encoding", "The content encoding is not understood."),
    Reason.EXPECTATION_FAILED: _refused(417, "expectation_failed", "This Expect header cannot be met."),
    Reason.NO_WEBSOCKETS: _refused(
        426, "no_websockets", "There are no WebSockets here: use plain HTTP, which can stream."
    ),
    Reason.RECEIVING_FULL: _no_capacity("receiving_full", "Too much is being received from other clients."),
    Reason.QUARANTINED: _refused(
        400, "request_quarantined", "Two replicas failed on this very request, so it is not sent to another for now."
    ),
    Reason.CONTEXT_LENGTH: _refused(
        400, "context_length_exceeded", "The prompt is longer than any replica of this model accepts."
    ),
    Reason.FORBIDDEN_MODEL: _forbidden("permission_denied", "This key may not use this model."),
    Reason.LIMIT_REQUESTS: _limit("requests", "The limit of requests per minute is reached."),
    Reason.LIMIT_TOKENS: _limit("tokens", "The limit of tokens per minute is reached."),
    Reason.LIMIT_CONCURRENCY: _limit("requests", "The limit of concurrent requests is reached."),
    Reason.LIMIT_QUOTA: RefusalRow(
        429,
        "insufficient_quota",
        "insufficient_quota",
        "rate_limit_error",
        True,
        "The quota of this day or month is used up.",
    ),
    Reason.PREDICTED: _contended("predicted_breach", "The answer would come too late: the replicas are busy."),
    Reason.QUEUE_FULL: _contended("queue_full", "All replicas are busy and the queue is full."),
    Reason.EVICTED: _contended("evicted", "All replicas are busy and another request took the place."),
    Reason.NO_REPLICAS: _no_capacity("no_replicas", "No replica is available."),
    Reason.SHUTTING_DOWN: _no_capacity("shutting_down", "The server is shutting down."),
    Reason.QUEUE_TIMEOUT: _late("No replica became free in time."),
    Reason.CONNECT_TIMEOUT: _late("A replica could not be reached in time."),
    Reason.TTFT_TIMEOUT: _late("The first token did not come in time."),
    Reason.IDLE_TIMEOUT: _late("The answer stalled."),
    # A retry would probably use up the whole allowed time again.
    Reason.TOTAL_TIMEOUT: _late("The answer was not complete in time.", retry=False),
    # Used only if a stream cannot be given a proper end.
    Reason.OUTPUT_LENGTH: RefusalRow(
        500, "server_error", "output_length", "api_error", False, "The answer was too long."
    ),
    Reason.REPETITION: RefusalRow(500, "server_error", "repetition", "api_error", False, "The answer repeated itself."),
    Reason.UPSTREAM_UNREACHABLE: _no_capacity("upstream_unreachable", "The replica cannot be reached."),
    Reason.UPSTREAM_BUSY: _no_capacity("upstream_busy", "The replica is overloaded."),
    Reason.UPSTREAM_ERROR: _failed(502, "upstream_error", "The replica failed."),
    Reason.UPSTREAM_TRUNCATED: _failed(502, "upstream_truncated", "The replica's answer broke off."),
    Reason.UPSTREAM_UNREADABLE: _failed(502, "upstream_unreadable", "The replica's answer cannot be read."),
    Reason.UPSTREAM_REJECTED: _refused(400, None, "The replica refused the request."),
    # No client reads the next two; they are for the log. 499 is nginx's status for a client that closed the connection.
    Reason.CLIENT_GONE: _refused(499, "client_gone", "The client closed the connection."),
    Reason.CLIENT_STALLED: _refused(499, "client_stalled", "The client stopped reading."),
    Reason.INTERNAL: _failed(
        500, "internal_error", "A bug of the gateway ended this request: its cause is in the gateway's log."
    ),
}
