"""What an answer that was not streamed says about itself: usage, and whether it is one."""

from __future__ import annotations

from gateway.core.model import GENERATING, Endpoint
from gateway.wire.failure import EngineError, engine_error
from gateway.wire.shapes import ABORT, ABSENT, EMPTY, DecodeError, Usage, decode_usage, decode_whole


class AnswerError(Exception):
    """The answer is not what its API says it is."""


def read_whole(endpoint: Endpoint, body: bytes) -> tuple[Usage | None, EngineError | None]:
    """Usage and error of an answer that was not streamed; raises `AnswerError` if it is not a JSON object."""
    if endpoint not in GENERATING and body[:1] == b"[":
        return None, None  # SGLang and TEI rank documents in a bare list, without usage
    try:
        whole = decode_whole(body)
    except (DecodeError, RecursionError) as exc:
        raise AnswerError(f"the answer is not JSON: {exc}") from exc
    if whole.stop_reason is None:
        raise AnswerError("the engine gave it up")
    for choice in whole.choices or ():
        if choice.finish_reason == ABORT:
            raise AnswerError("the engine gave it up")
    said = whole.error
    if said is ABSENT or endpoint is Endpoint.RESPONSES or bytes(said) in EMPTY:
        return whole.usage, None
    return whole.usage, engine_error(said)


def counted(usage: Usage) -> tuple[int | None, int | None]:
    """Prompt and output tokens, in whichever words."""
    prompt, output = usage.input_tokens, usage.output_tokens
    return (
        usage.prompt_tokens if prompt is None else prompt,
        usage.completion_tokens if output is None else output,
    )


def usage_at_end(tail: bytes) -> Usage | None:
    """Usage from the last bytes of an answer too long to be held; None if it stands elsewhere."""
    start = tail.rfind(b'"usage":')
    end = tail.find(b"}", start)
    if start < 0 or end < 0:
        return None
    try:
        return decode_usage(tail[start + 8 : end + 1])
    except DecodeError:
        return None
