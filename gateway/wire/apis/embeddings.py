"""Embeddings: POST /v1/embeddings of OpenAI, as vLLM 0.32 and SGLang 0.5 serve it."""

from __future__ import annotations

from typing import Final

from gateway.core.request import Endpoint
from gateway.wire.apis.fields import ALLOW, SHARED, STRIP, ruled
from gateway.wire.apis.row import Api, Shape
from gateway.wire.body import checks, inputs
from gateway.wire.body.checks import Check

FIELDS: Final[dict[str, Check]] = {
    **SHARED,
    **ruled(STRIP, "stream"),
    "model": checks.model_name,
    **ruled(ALLOW, "input messages add_special_tokens truncation_side"),
    "user": checks.name,
    **ruled(checks.word, "encoding_format embed_dtype endianness task"),
    **ruled(ALLOW, "use_activation normalize"),
    **ruled(checks.boolean, "add_generation_prompt continue_final_message"),
    "dimensions": checks.positive,
    "truncate_prompt_tokens": checks.truncation,
    "chat_template_kwargs": checks.template_options,
}
EMBEDDINGS: Final = Api("embeddings", (Endpoint.EMBEDDINGS,), Shape(FIELDS, (), inputs.measure, caps=(), stop=None))
