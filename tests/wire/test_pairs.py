"""Texts that are read in pairs: their lengths and accepted forms."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.policy import Caps
from gateway.core.request import Endpoint
from gateway.wire.request import BadRequest

from .bodies import RERANK, SCORE, read


@pytest.mark.parametrize(
    ("endpoint", "fields", "size", "batch"),
    [
        (Endpoint.RERANK, {"query": "12345", "documents": ["a", "bc"]}, 5 * 2 + 3, 2),
        (Endpoint.RERANK, {"query": "12345", "documents": ["é"]}, 7, 1),
        (Endpoint.RERANK, {"query": "12345", "documents": [{"text": "abc"}]}, 8, 1),
        (Endpoint.RERANK, {"query": "12345", "documents": {"content": [{"type": "text", "text": "a"}] * 3}}, 18, 3),
        (Endpoint.RERANK, {"query": [{"type": "text", "text": "12345"}], "documents": ["a"] * 4}, 24, 4),
        (Endpoint.RERANK, {"query": "12345", "documents": ["a", "b"], "instruct": "123"}, 18, 2),
        (Endpoint.SCORE, {"text_1": "12345", "text_2": "a"}, 6, 1),
        (Endpoint.SCORE, {"text_1": "12345", "text_2": ["a", "b", "c"]}, 18, 3),
        (Endpoint.SCORE, {"text_1": ["12345", "1"], "text_2": ["a", "b"]}, 8, 2),
        (Endpoint.SCORE, {"text_1": None, "query": "12345", "text_2": None, "items": ["a", "b"]}, 12, 2),
        (Endpoint.SCORE, {"text_1": [1, 2, 3], "text_2": [[4], [5, 6]]}, 12 * 2 + 12, 2),
    ],
)
def test_each_pair_of_a_rerank_or_score_request_counts_as_one_prompt(
    endpoint: Endpoint, fields: dict[str, Any], size: int, batch: int
) -> None:
    parsed = read(endpoint, {**(RERANK if endpoint is Endpoint.RERANK else SCORE), **fields})
    assert (parsed.prompt_bytes, parsed.batch, parsed.prompt_exact) == (size, batch, None)


@pytest.mark.parametrize(
    ("endpoint", "fields", "field"),
    [
        (Endpoint.RERANK, {"documents": None}, "documents"),
        (Endpoint.RERANK, {"documents": []}, "documents"),
        (Endpoint.RERANK, {"documents": ["a", 5]}, "documents[1]"),
        (Endpoint.RERANK, {"documents": ["a"] * 9}, "documents"),
        (Endpoint.RERANK, {"texts": ["a"]}, "texts"),
        (Endpoint.RERANK, {"query": None}, "query"),
        (Endpoint.RERANK, {"query": 5}, "query"),
        (Endpoint.RERANK, {"top_n": -1}, "top_n"),
        (Endpoint.RERANK, {"top_n": "5"}, "top_n"),
        (Endpoint.RERANK, {"use_activation": "yes"}, "use_activation"),
        (Endpoint.RERANK, {"documents": [{"image": "http://inside/"}]}, "documents[0].image"),
        (Endpoint.RERANK, {"documents": {"content": [{"type": "text", "text": "a"}] * 9}}, "documents.content"),
        (Endpoint.SCORE, {"text_2": None}, "text_2"),
        (Endpoint.SCORE, {"documents": ["a"]}, "documents"),
        (Endpoint.SCORE, {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_2"),
        (Endpoint.SCORE, {"text_1": ["a", "b"], "text_2": "c"}, "text_2"),
        (Endpoint.SCORE, {"label_token_ids": list(range(2000))}, "label_token_ids"),
    ],
)
def test_field_of_a_rerank_or_score_request_that_forms_no_pairs_is_named(
    endpoint: Endpoint, fields: dict[str, Any], field: str
) -> None:
    body = {**(RERANK if endpoint is Endpoint.RERANK else SCORE), **fields}
    with pytest.raises(BadRequest) as refused:
        read(endpoint, body, Caps(batch=8))
    assert refused.value.field == field
