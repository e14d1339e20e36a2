"""Ranking of documents by their relevance to a query: Jina's and Cohere's API, as vLLM 0.32, SGLang and TEI serve it.

vLLM serves /v1/rerank, /rerank and /v2/rerank, SGLang /v1/rerank. TEI serves /rerank, and calls `documents` `texts`.
"""

from __future__ import annotations

from typing import Any, Final

from gateway.core.policy import Caps
from gateway.core.request import Endpoint
from gateway.wire.apis.fields import ALLOW, SHARED, ruled
from gateway.wire.apis.row import Api, Shape
from gateway.wire.body import checks, pairs
from gateway.wire.body.checks import MAX_INT, Check
from gateway.wire.body.content import size
from gateway.wire.body.prompt import MEASURED, Prompt

DOCUMENTS: Final = ("documents", "texts")
INSTRUCTIONS: Final = ("instruct", "instruction")


def _top(value: Any, field: str, caps: Caps) -> Any:
    """The number of documents to return. In vLLM, 0 means all."""
    return checks.integer(value, field, 0, MAX_INT)


def measure(fields: dict[str, Any], caps: Caps) -> Prompt:
    """The size of the prompts: each document is read together with the query, and with the instruction if there is
    one.
    """
    name = pairs.only_one(fields, DOCUMENTS)
    query = pairs.text(fields["query"], "query", caps) + sum(size(fields.get(more)) for more in INSTRUCTIONS)
    return pairs.crossed([query], pairs.texts(fields[name], name, caps), name, caps)


FIELDS: Final[dict[str, Check]] = {
    **SHARED,
    "model": checks.model_name,
    **ruled(ALLOW, "query documents texts"),
    "user": checks.name,
    **ruled(checks.string, "instruct instruction"),
    **ruled(checks.boolean, "return_documents return_text raw_scores truncate truncation"),
    **ruled(checks.boolean, "softmax activation use_activation"),
    **ruled(checks.word, "truncation_direction truncation_side"),
    "top_n": _top,
    **ruled(checks.positive, "max_tokens_per_doc max_tokens_per_query"),
    "chat_template_kwargs": checks.template_options,
    "truncate_prompt_tokens": checks.truncation,
}
RERANK: Final = Api(
    "rerank",
    (Endpoint.RERANK, Endpoint.RERANK_BARE, Endpoint.RERANK_V2),
    Shape(FIELDS, ("query",), measure, caps=(), stop=None, measured=MEASURED | {"query", *DOCUMENTS, *INSTRUCTIONS}),
)
