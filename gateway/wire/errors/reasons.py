"""What each reason for not serving a request looks like to a client: one table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gateway.core.model import Why

INVALID: Final = "invalid_request_error"


@dataclass(frozen=True, slots=True)
class Row:
    """HTTP status, the error's type and code for OpenAI clients, its type for Anthropic's, and what to say.

    `retry`: whether the same request may succeed later. The SDKs try 408, 409, 429 and 5xx again unless told not to.
    """

    status: int
    openai_type: str
    code: str | None
    anthropic_type: str
    retry: bool
    message: str


def _refused(
    status: int, code: str | None, message: str, anthropic_type: str = INVALID, openai_type: str = INVALID
) -> Row:
    return Row(status, openai_type, code, anthropic_type, False, message)


def _forbidden(code: str, message: str) -> Row:
    return _refused(403, code, message, "permission_error", "permission_error")


def _limit(openai_type: str, message: str) -> Row:
    return Row(429, openai_type, "rate_limit_exceeded", "rate_limit_error", True, message)


def _contended(code: str, message: str) -> Row:
    return Row(429, "overloaded_error", code, "rate_limit_error", True, message)


def _no_capacity(code: str, message: str) -> Row:
    return Row(503, "overloaded_error", code, "overloaded_error", True, message)


def _late(message: str, retry: bool = True) -> Row:
    return Row(504, "timeout_error", "deadline_exceeded", "timeout_error", retry, message)


def _failed(status: int, code: str, message: str) -> Row:
    return Row(status, "server_error", code, "api_error", True, message)


ROWS: Final[Mapping[Why, Row]] = {
    Why.BAD_REQUEST: _refused(400, None, "The request is malformed."),
    Why.UNAUTHORIZED: _refused(401, "invalid_api_key", "The API key is missing or unknown.", "authentication_error"),
    Why.HOST_NOT_ALLOWED: _forbidden("host_not_allowed", "This Host is not one that the gateway is known by."),
    Why.ORIGIN_NOT_ALLOWED: _forbidden("origin_not_allowed", "Pages of this Origin may not use the gateway."),
    Why.NOT_FOUND: _refused(404, "not_found", "There is nothing at this path.", "not_found_error"),
    Why.METHOD_NOT_ALLOWED: _refused(405, "method_not_allowed", "This path does not take this method."),
    Why.MODEL_NOT_FOUND: _refused(404, "model_not_found", "The model does not exist.", "not_found_error"),
    Why.BODY_TOO_LARGE: _refused(413, "request_too_large", "The request body is too large.", "request_too_large"),
    Why.HEADERS_TOO_LARGE: _refused(431, "headers_too_large", "The request headers are too large."),
    Why.RECEIVE_TIMEOUT: Row(
        408, "timeout_error", "receive_timeout", "timeout_error", True, "The request did not arrive in time."
    ),
    Why.UNSUPPORTED_ENCODING: _refused(415, "unsupported_encoding", "The content encoding is not understood."),
    Why.EXPECTATION_FAILED: _refused(417, "expectation_failed", "This Expect header cannot be met."),
    Why.NO_WEBSOCKETS: _refused(
        426, "no_websockets", "There are no WebSockets here: use plain HTTP, which can stream."
    ),
    Why.RECEIVING_FULL: _no_capacity("receiving_full", "Too much is being received from other clients."),
    Why.QUARANTINED: _refused(
        400, "request_quarantined", "Two replicas broke off over this very request; it is not sent to another for now."
    ),
    Why.CONTEXT_LENGTH: _refused(
        400, "context_length_exceeded", "The prompt is longer than any replica of this model accepts."
    ),
    Why.FORBIDDEN_MODEL: _forbidden("permission_denied", "This key may not use this model."),
    Why.LIMIT_REQUESTS: _limit("requests", "The limit of requests per minute is reached."),
    Why.LIMIT_TOKENS: _limit("tokens", "The limit of tokens per minute is reached."),
    Why.LIMIT_CONCURRENCY: _limit("requests", "The limit of concurrent requests is reached."),
    Why.PREDICTED: _contended("predicted_breach", "The answer would come too late: the replicas are busy."),
    Why.QUEUE_FULL: _contended("queue_full", "All replicas are busy and the waiting room is full."),
    Why.EVICTED: _contended("evicted", "All replicas are busy and another request took the place."),
    Why.NO_REPLICAS: _no_capacity("no_replicas", "No replica is available."),
    Why.SHUTTING_DOWN: _no_capacity("shutting_down", "The server is shutting down."),
    Why.QUEUE_TIMEOUT: _late("No replica became free in time."),
    Why.CONNECT_TIMEOUT: _late("A replica could not be reached in time."),
    Why.TTFT_TIMEOUT: _late("The first token did not come in time."),
    Why.IDLE_TIMEOUT: _late("The answer stalled."),
    # It took all the time there was, and would again.
    Why.TOTAL_TIMEOUT: _late("The answer was not complete in time.", retry=False),
    # Said only where a stream has not the form to be ended in peace.
    Why.OUTPUT_LENGTH: Row(500, "server_error", "output_length", "api_error", False, "The answer was too long."),
    Why.REPETITION: Row(500, "server_error", "repetition", "api_error", False, "The answer repeated itself."),
    Why.UPSTREAM_UNREACHABLE: _no_capacity("upstream_unreachable", "The replica cannot be reached."),
    Why.UPSTREAM_BUSY: _no_capacity("upstream_busy", "The replica is overloaded."),
    Why.UPSTREAM_ERROR: _failed(502, "upstream_error", "The replica failed."),
    Why.UPSTREAM_TRUNCATED: _failed(502, "upstream_truncated", "The replica's answer broke off."),
    Why.UPSTREAM_UNREADABLE: _failed(502, "upstream_unreadable", "The replica's answer cannot be read."),
    Why.UPSTREAM_REJECTED: _refused(400, None, "The replica refused the request."),
    # Nobody reads these two: the status is for the log, nginx's word for a client that closed the connection.
    Why.CLIENT_GONE: _refused(499, "client_gone", "The client closed the connection."),
    Why.CLIENT_STALLED: _refused(499, "client_stalled", "The client stopped reading."),
    Why.INTERNAL: _failed(500, "internal_error", "Something went wrong here."),
}
