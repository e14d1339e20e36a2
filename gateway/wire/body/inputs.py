"""Input of the APIs that pool: texts or token ids, or the messages of one chat, which may carry media."""

from __future__ import annotations

from typing import Any

from gateway.core.policy import Caps
from gateway.wire.body import prompt
from gateway.wire.body.checks import MISSING, BadRequest
from gateway.wire.body.prompt import Prompt


def measure(fields: dict[str, Any], caps: Caps) -> Prompt:
    """`input` or, in vLLM's multimodal form, `messages`."""
    if "messages" in fields:
        if "input" in fields:
            raise BadRequest("messages", "stands for the same as input: give one of them")
        return prompt.chat(fields, caps)
    if "input" not in fields:
        raise BadRequest("input", "field required", MISSING)
    return prompt.embedding(fields, caps)
