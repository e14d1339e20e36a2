"""Classification of texts: POST /classify of vLLM 0.32."""

from __future__ import annotations

from typing import Final

from gateway.core.request import Endpoint
from gateway.wire.apis.fields import ALLOW, SHARED, ruled
from gateway.wire.apis.row import Api, Shape
from gateway.wire.body import checks, inputs
from gateway.wire.body.checks import Check

FIELDS: Final[dict[str, Check]] = {
    **SHARED,
    "model": checks.model_name,
    **ruled(ALLOW, "input messages"),
    "user": checks.name,
    **ruled(checks.boolean, "add_special_tokens softmax activation use_activation"),
    **ruled(checks.boolean, "add_generation_prompt continue_final_message"),
    "truncation_side": checks.word,
    "truncate_prompt_tokens": checks.truncation,
    "chat_template_kwargs": checks.template_options,
}
CLASSIFY: Final = Api("classify", (Endpoint.CLASSIFY,), Shape(FIELDS, (), inputs.measure, caps=(), stop=None))
