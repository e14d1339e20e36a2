"""Classifies an engine's error: an HTTP status, or an error inside an answer with status 200."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from msgspec import Raw

from gateway.core.results import AttemptOutcome
from gateway.wire.answers.shapes import EMPTY, UNREADABLE, Error, decode_error
from gateway.wire.numbers import count

# HTTP status by the error's code or type in words, for errors without a status: vLLM's types on /v1/messages, OpenAI's
# codes, and Anthropic's types. Others are failures of the engine.
_STATUS_OF_WORD: Final = {
    "Service Unavailable": 503,
    "ServiceUnavailableError": 503,
    "overloaded_error": 503,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "RateLimitError": 429,
    "Bad Request": 400,
    "BadRequestError": 400,
    "invalid_request_error": 400,
    "invalid_prompt": 400,
    "context_length_exceeded": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "NotFoundError": 404,
    "not_found_error": 404,
    "model_not_found": 404,
    "request_too_large": 413,
    "UnprocessableEntityError": 422,
}
_ERROR_OBJECT: Final = re.compile(rb'\s*\{\s*"object"\s*:\s*"error"')
# Text in vLLM's answer (status 500) to every new request after SIGTERM.
_SHUT_DOWN: Final = b"cannot schedule new futures after shutdown"


def end_of(status: int, body: bytes) -> AttemptOutcome:
    """The outcome of an attempt that got this error answer."""
    if status in (429, 503, 529):  # 529 is Anthropic's for an overloaded service
        return AttemptOutcome.BUSY
    if 400 <= status < 500:
        return AttemptOutcome.REJECTED
    if status < 400:
        return AttemptOutcome.UNREADABLE  # for example a redirect: it is complete, but useless to a client
    return AttemptOutcome.CLOSING if _SHUT_DOWN in body else AttemptOutcome.FAILED


@dataclass(slots=True)
class EngineError:
    """An error inside an answer of status 200. `status`: the HTTP status that it corresponds to."""

    status: int
    message: str
    body: bytes
    """The error object as the engine wrote it, wrapped as the field `error` of an object."""

    @property
    def end(self) -> AttemptOutcome:
        """The outcome of the attempt that got this error."""
        return end_of(self.status, self.body)


def is_error_object(payload: bytes) -> bool:
    """Whether JSON is an error with its fields on the top level: `{"object": "error", "message", ...}`, as older vLLM,
    SGLang and TensorRT-LLM write it.
    """
    return _ERROR_OBJECT.match(payload) is not None


def _status_of(word: object, otherwise: int) -> int:
    return _STATUS_OF_WORD.get(word, otherwise) if isinstance(word, str) else otherwise


def engine_error(raw: Raw) -> EngineError:
    """Read an engine's error object. Engines agree only on the field `message`. Never raises."""
    try:
        error: Error = decode_error(raw) if bytes(raw) not in EMPTY else Error()
    except UNREADABLE:
        error = Error(message=bytes(raw).decode("utf-8", "replace"))
    said, kind, message = error.code, error.type, error.message
    code = (
        int(said) if isinstance(said, str) and len(said) == 3 and said.isascii() and said.isdecimal() else count(said)
    )
    status = _status_of(said, _status_of(kind, 500)) if code is None else code
    status = status if 400 <= status < 600 else 500
    reason = message if isinstance(message, str) and message else "the engine gave no reason"
    return EngineError(status, reason[:500], b'{"error":%b}' % (bytes(raw) or b"{}"))
