"""Scores of pairs of texts: the API of vLLM 0.32, and that of SGLang with one `query` and several `items`.

vLLM serves /v1/score and /score. SGLang's scores are the probabilities of the tokens in `label_token_ids`.
"""

from __future__ import annotations

from typing import Any, Final

from gateway.core.policy import Caps
from gateway.core.request import Endpoint
from gateway.wire.apis.fields import ALLOW, SHARED, ruled
from gateway.wire.apis.row import Api, Shape
from gateway.wire.body import checks, pairs
from gateway.wire.body.checks import Check
from gateway.wire.body.content import size
from gateway.wire.body.prompt import MEASURED, Prompt

LEFT: Final = ("text_1", "queries", "data_1", "query")
RIGHT: Final = ("text_2", "documents", "items", "data_2")


def measure(fields: dict[str, Any], caps: Caps) -> Prompt:
    """The size of the prompts: each pair is one prompt, with the instruction if there is one."""
    left, right = pairs.only_one(fields, LEFT), pairs.only_one(fields, RIGHT)
    instruction = size(fields.get("instruction"))
    asked = [instruction + text for text in pairs.texts(fields[left], left, caps)]
    return pairs.crossed(asked, pairs.texts(fields[right], right, caps), right, caps)


FIELDS: Final[dict[str, Check]] = {
    **SHARED,
    "model": checks.model_name,
    **ruled(ALLOW, " ".join((*LEFT, *RIGHT, "temperature"))),
    "user": checks.name,
    **ruled(checks.boolean, "softmax activation use_activation apply_softmax item_first"),
    **ruled(checks.boolean, "add_special_tokens return_token_logprobs"),
    **ruled(checks.word, "score_extraction_token truncation_side"),
    **ruled(checks.positive, "max_tokens_per_doc max_tokens_per_query"),
    "instruction": checks.string,
    "label_token_ids": checks.short,
    "chat_template_kwargs": checks.template_options,
    "truncate_prompt_tokens": checks.truncation,
}
SCORE: Final = Api(
    "score",
    (Endpoint.SCORE, Endpoint.SCORE_BARE),
    Shape(FIELDS, (), measure, caps=(), stop=None, measured=MEASURED | {*LEFT, *RIGHT, "instruction"}),
)
