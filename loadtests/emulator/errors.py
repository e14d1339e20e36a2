"""vLLM's errors, word for word: an HTTP status, a type, an int code."""

from __future__ import annotations

from dataclasses import dataclass

import orjson

MESSAGES = "/v1/messages"
BUSY = "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."


@dataclass(slots=True)
class Rejected(Exception):
    """The request is answered with an error."""

    status: int
    message: str
    type: str = "BadRequestError"
    param: str | None = None

    def body(self, path: str) -> bytes:
        """The error in the dialect of `path`."""
        if path == MESSAGES and self.type != "Bad Request":  # vLLM words validation errors alike everywhere
            return orjson.dumps({"type": "error", "error": {"type": self.type, "message": self.message}})
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.status}
        return orjson.dumps({"error": error})


def busy() -> Rejected:
    """The error of `--max-num-queued-reqs` when the queue is full."""
    return Rejected(503, BUSY, "Service Unavailable")


def shut_down() -> Rejected:
    """vLLM's answer to new requests after SIGTERM, while it still answers /health."""
    return Rejected(500, "cannot schedule new futures after shutdown", "InternalServerError")


def unknown_model(name: object, served: str) -> Rejected:
    """The requested model is not the served one."""
    return Rejected(404, f"The model `{name}` does not exist. Valid aliases: {served}.", "NotFoundError", "model")


def no_such_rank(rank: int, ranks: int) -> Rejected:
    """X-data-parallel-rank names a rank that does not exist."""
    return Rejected(400, f"data_parallel_rank {rank} is out of range [0, {ranks}).")


def invalid(kind: str, loc: str, message: str, given: str) -> Rejected:
    """One of pydantic's validation errors, as vLLM prints it."""
    text = f"1 validation error:\n  {{'type': '{kind}', 'loc': 'body.{loc}', 'msg': '{message}', 'input': {given}}}"
    return Rejected(400, text, "Bad Request", f"body.{loc}")


def missing(field: str, fields: int) -> Rejected:
    """A required field is missing."""
    return invalid("missing", field, "Field required", f"'<dict of {fields} items>'")


def too_small(field: str, value: int) -> Rejected:
    """A count below 1."""
    detail = "" if field == "n" else f" (parameter={field}, value={value})"
    return Rejected(400, f"{field} must be at least 1, got {value}.{detail}", param=None if field == "n" else field)


def context_exceeded(max_model_len: int, prompt_tokens: int) -> Rejected:
    """The prompt alone is longer than the model's context."""
    return Rejected(
        400,
        f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains {prompt_tokens} "
        "input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input "
        f"prompt. (parameter=input_tokens, value={prompt_tokens})",
        param="input_tokens",
    )


def output_exceeds(field: str, value: int, max_model_len: int) -> Rejected:
    """The requested output is longer than the context."""
    return Rejected(
        400,
        f"{field}={value} cannot be greater than max_model_len={max_model_len}. Please request fewer output tokens. "
        f"(parameter={field}, value={value})",
        param=field,
    )
