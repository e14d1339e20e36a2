"""Conversion of texts to token ids and back: POST /tokenize and /detokenize of vLLM 0.32 and SGLang.

The engine's API server converts without the GPU. So such a request costs no tokens, and no latency is learned from it.
It takes a slot, so that drains, breakers and retries apply to it.
"""

from __future__ import annotations

from typing import Any, Final

from gateway.core.policy import Caps
from gateway.core.request import Endpoint
from gateway.wire.apis import chat, completions
from gateway.wire.apis.fields import ALLOW, SHARED, ruled
from gateway.wire.apis.row import Api, Shape
from gateway.wire.body import checks, prompt
from gateway.wire.body.checks import MISSING, BadRequest, Check, wrong_type
from gateway.wire.body.prompt import Prompt

FREE: Final = Prompt(0, 0)
PROMPT_FIELDS: Final = (
    *("add_special_tokens", "add_generation_prompt", "continue_final_message", "chat_template_kwargs"),
    *("tools", "tool_choice", "reasoning_effort", "documents"),
)
"""Fields of a chat that become part of its prompt. Their rules are those of a chat, so the same prompt is counted."""


def _texts(fields: dict[str, Any], caps: Caps) -> Prompt:
    if ("prompt" in fields) is ("messages" in fields):
        raise BadRequest("prompt", "give either a prompt or messages", MISSING)
    if "messages" in fields:
        prompt.chat(fields, caps)
    else:
        completions.measure(fields, caps)
    return FREE


def _ids(fields: dict[str, Any], caps: Caps) -> Prompt:
    tokens = fields["tokens"]
    if type(tokens) is not list:
        raise wrong_type("tokens", "an array of integers", tokens)
    if tokens and type(tokens[0]) is list:
        for i, ids in enumerate(tokens):
            if type(ids) is not list:
                raise wrong_type(f"tokens[{i}]", "an array of integers", ids)
            prompt.token_ids(ids, f"tokens[{i}]")
    else:
        prompt.token_ids(tokens, "tokens")
    return FREE


TEXTS: Final[dict[str, Check]] = {
    **SHARED,
    "model": checks.model_name,
    **ruled(ALLOW, "prompt messages"),
    "return_token_strs": checks.boolean,
    **{name: chat.FIELDS[name] for name in PROMPT_FIELDS},
}
IDS: Final[dict[str, Check]] = {
    **SHARED,
    "model": checks.model_name,
    "tokens": ALLOW,
    "skip_special_tokens": checks.boolean,
}
TOKENIZE: Final = Api(
    "tokenize",
    (Endpoint.TOKENIZE,),
    Shape(TEXTS, (), _texts, measured=None, caps=(), stop=None, priority=False, fit=chat.fit),
)
DETOKENIZE: Final = Api(
    "detokenize",
    (Endpoint.DETOKENIZE,),
    Shape(IDS, ("tokens",), _ids, measured=None, caps=(), stop=None, priority=False),
)
