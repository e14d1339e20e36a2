"""Raw outputs of a pooling model: POST /pooling of vLLM 0.32.

The field `data` (input of plugins) is dropped, because its cost is unknown.
"""

from __future__ import annotations

from typing import Any, Final

from gateway.core.policy import Caps
from gateway.core.request import Endpoint
from gateway.wire.apis.fields import ALLOW, SHARED, STRIP, ruled
from gateway.wire.apis.row import Api, Shape
from gateway.wire.body import checks, inputs
from gateway.wire.body.checks import BadRequest, Check

TASKS: Final = ("embed", "classify", "token_embed", "token_classify")


def _task(value: Any, field: str, caps: Caps) -> Any:
    if checks.string(value, field, caps) not in TASKS:
        raise BadRequest(field, f"must be one of {', '.join(TASKS)}")
    return value


FIELDS: Final[dict[str, Check]] = {
    **SHARED,
    **ruled(STRIP, "data"),
    "model": checks.model_name,
    **ruled(ALLOW, "input messages"),
    "user": checks.name,
    **ruled(checks.word, "encoding_format embed_dtype endianness"),
    **ruled(checks.boolean, "add_special_tokens softmax activation use_activation normalize"),
    **ruled(checks.boolean, "add_generation_prompt continue_final_message"),
    "truncation_side": checks.word,
    "task": _task,
    "dimensions": checks.positive,
    "truncate_prompt_tokens": checks.truncation,
    "chat_template_kwargs": checks.template_options,
}
POOLING: Final = Api("pooling", (Endpoint.POOLING,), Shape(FIELDS, (), inputs.measure, caps=(), stop=None))
