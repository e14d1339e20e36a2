"""Input of the pooling APIs: texts, token ids, or the messages of a chat, which may have media."""

from __future__ import annotations

from typing import Any

from gateway.core.policy import Caps
from gateway.wire.body import prompt
from gateway.wire.body.checks import MISSING, BadRequest
from gateway.wire.body.prompt import Prompt


def measure(fields: dict[str, Any], caps: Caps) -> Prompt:
    """The size of the prompts in `input` or, in vLLM's multimodal form, in `messages`."""
    if "messages" in fields:
        if "input" in fields:
            raise BadRequest("messages", "stands for the same as input: give one of them")
        return prompt.chat(fields, caps)
    if "input" not in fields:
        raise BadRequest("input", "field required", MISSING)
    return prompt.batch(fields["input"], "input", caps)
