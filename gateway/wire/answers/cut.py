"""Writes the end of a stream that was cut. It looks as if the answer had reached its length limit, and an extension
field gives the reason.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from gateway.core.results import Reason

FIELD: Final = "tailgate"
"""Name of the extension field. The SDKs show it as an attribute of this name."""


class CutEnding:
    """Reason of a cut, and estimated token counts, because the engine's own counts never arrive."""

    __slots__ = ("output_tokens", "prompt_tokens", "why")

    def __init__(self, why: Reason, prompt_tokens: int, output_tokens: int) -> None:
        self.why = why
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens

    def mark(self, with_usage: bool) -> dict[str, object]:
        """The value of the extension field. With a usage, it also marks the usage as an estimate."""
        said = {"cut": self.why.value}
        return {FIELD: {**said, "usage": "estimated"} if with_usage else said}

    def tokens(self) -> dict[str, object]:
        """The estimated usage, in OpenAI's format for completions."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.output_tokens,
            "total_tokens": self.prompt_tokens + self.output_tokens,
        }


def event_of(value: object) -> bytes:
    """An event with only data."""
    return b"data: %b\n\n" % orjson.dumps(value)


def named_event(value: dict[str, Any]) -> bytes:
    """An event with data, and with the value's `type` as its name."""
    return b"event: %b\ndata: %b\n\n" % (value["type"].encode(), orjson.dumps(value))
