"""How a stream ends that is cut short: as one that ran into its length, with a field of our own that says why."""

from __future__ import annotations

from typing import Any, Final

import orjson

from gateway.core.request import Reason
from gateway.wire.answers.draft import Draft

FIELD: Final = "tailgate"
"""The extension field; clients of either SDK find it as an attribute of that name."""
_KEPT: Final = ("id", "object", "created", "model", "system_fingerprint", "service_tier")
"""What all chunks of one completion have in common."""


class CutEnding:
    """Why it is cut short, and how many tokens there are, about: the engine's own counts never come."""

    __slots__ = ("output_tokens", "prompt_tokens", "why")

    def __init__(self, why: Reason, prompt_tokens: int, output_tokens: int) -> None:
        self.why = why
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens

    def mark(self, with_usage: bool) -> dict[str, object]:
        """The extension field. Beside a usage it says that this is an estimate."""
        said = {"cut": self.why.value}
        return {FIELD: {**said, "usage": "estimated"} if with_usage else said}

    def tokens(self) -> dict[str, object]:
        """In OpenAI's words for completions."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.output_tokens,
            "total_tokens": self.prompt_tokens + self.output_tokens,
        }


def end_of_completion(first: bytes, over: list[int], choices: int, cut: CutEnding, wants_usage: bool) -> list[bytes]:
    """Of chat and plain completions. `first` is the data of any chunk, `over` has the choices that have ended."""
    chunk = orjson.loads(first)
    head = {name: chunk[name] for name in _KEPT if name in chunk}
    nothing: dict[str, object] = {"text": ""} if chunk.get("object") == "text_completion" else {"delta": {}}
    left = [
        {"index": index, **nothing, "logprobs": None, "finish_reason": "length"}
        for index in range(choices)
        if index not in over
    ]
    events = [_event({**head, "choices": left, **cut.mark(False)})] if left else []
    if wants_usage:
        events.append(_event({**head, "choices": [], "usage": cut.tokens(), **cut.mark(True)}))
    return [*events, b"data: [DONE]\n\n"]


def end_of_message(open_block: int, stopped: bool, cut: CutEnding) -> list[bytes]:
    """Of Anthropic Messages. `open_block` is the index of the content block that has not ended, below 0 for none.

    `stopped`: all that is missing is its last event.
    """
    if stopped:
        return [_named({"type": "message_stop"})]
    events = [] if open_block < 0 else [_named({"type": "content_block_stop", "index": open_block})]
    stop = {"stop_reason": "max_tokens", "stop_sequence": None}
    usage = {"input_tokens": cut.prompt_tokens, "output_tokens": cut.output_tokens}
    events.append(_named({"type": "message_delta", "delta": stop, "usage": usage, **cut.mark(True)}))
    return [*events, _named({"type": "message_stop"})]


def end_of_response(draft: Draft, cut: CutEnding) -> list[bytes]:
    """Of OpenAI Responses."""
    response, items, closing = draft.taken()
    if response is None:
        return []
    usage = {
        "input_tokens": cut.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": cut.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": cut.prompt_tokens + cut.output_tokens,
    }
    response |= {
        "status": "incomplete",
        "incomplete_details": {"reason": "max_output_tokens"},
        "output": items,
        "usage": usage,
        **cut.mark(True),
    }
    closing.append({"type": "response.incomplete", "response": response})
    return [_named({**event, "sequence_number": number}) for number, event in enumerate(closing, draft.events)]


def _event(value: object) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(value)


def _named(value: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (value["type"].encode(), orjson.dumps(value))
