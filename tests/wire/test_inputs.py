"""Input and messages of pooling APIs; prompts and ids of tokenizing APIs."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.policy import Caps
from gateway.core.request import Endpoint
from gateway.wire.request import BadRequest

from .bodies import CHAT, MINIMAL, read, sent

POOLED = [Endpoint.EMBEDDINGS, Endpoint.POOLING, Endpoint.CLASSIFY]
MESSAGES = CHAT["messages"]


@pytest.mark.parametrize("endpoint", POOLED)
def test_messages_may_replace_input_for_pooling_endpoints(endpoint: Endpoint) -> None:
    document = {"model": "e5", "messages": MESSAGES}
    assert (read(endpoint, document).prompt_bytes, read(endpoint, document).batch) == (2, 1)
    assert sent(endpoint, document) == {"model": "upstream", "messages": MESSAGES}


@pytest.mark.parametrize("endpoint", POOLED)
def test_a_prompt_of_token_ids_is_counted_exactly(endpoint: Endpoint) -> None:
    parsed = read(endpoint, {"model": "e5", "input": [[1, 2, 3], [4]]})
    assert (parsed.prompt_exact, parsed.batch) == (4, 2)


@pytest.mark.parametrize(
    ("endpoint", "fields"),
    [
        (Endpoint.TOKENIZE, {}),
        (Endpoint.TOKENIZE, {"prompt": None, "messages": MESSAGES, "add_generation_prompt": True, "tools": []}),
        (Endpoint.TOKENIZE, {"prompt": ["one", "two"], "return_token_strs": True}),
        (Endpoint.DETOKENIZE, {}),
        (Endpoint.DETOKENIZE, {"tokens": [[1], [2, 3]], "skip_special_tokens": False}),
    ],
)
def test_tokenize_request_is_forwarded_unchanged_and_counts_no_prompt_tokens(
    endpoint: Endpoint, fields: dict[str, Any]
) -> None:
    document = {**MINIMAL[endpoint], **fields}
    parsed = read(endpoint, document)
    assert (parsed.prompt_bytes, parsed.prompt_exact, parsed.choices, parsed.changed) == (0, 0, 1, ())
    wanted = {name: value for name, value in document.items() if value is not None}
    assert sent(endpoint, document, caps=Caps(engine_priority=3)) == wanted | {"model": "upstream"}


@pytest.mark.parametrize(
    ("endpoint", "fields", "field"),
    [
        *((endpoint, {"messages": MESSAGES}, "messages") for endpoint in POOLED),
        *((endpoint, {"input": None}, "input") for endpoint in POOLED),
        *((endpoint, {"input": ["a"] * 9}, "input") for endpoint in POOLED),
        (Endpoint.POOLING, {"task": "plugin"}, "task"),
        (Endpoint.POOLING, {"task": 5}, "task"),
        (Endpoint.POOLING, {"dimensions": 0}, "dimensions"),
        (Endpoint.CLASSIFY, {"softmax": 1}, "softmax"),
        (Endpoint.TOKENIZE, {"messages": MESSAGES}, "prompt"),
        (Endpoint.TOKENIZE, {"prompt": None}, "prompt"),
        (Endpoint.TOKENIZE, {"prompt": 5}, "prompt"),
        (Endpoint.DETOKENIZE, {"tokens": "abc"}, "tokens"),
        (Endpoint.DETOKENIZE, {"tokens": []}, "tokens"),
        (Endpoint.DETOKENIZE, {"tokens": [1, -1]}, "tokens"),
        (Endpoint.DETOKENIZE, {"tokens": [[1], 2]}, "tokens[1]"),
        (Endpoint.DETOKENIZE, {"tokens": [2**63]}, "tokens"),
    ],
)
def test_input_field_that_cannot_be_served_is_named(endpoint: Endpoint, fields: dict[str, Any], field: str) -> None:
    with pytest.raises(BadRequest) as refused:
        read(endpoint, {**MINIMAL[endpoint], **fields}, Caps(batch=8))
    assert refused.value.field == field
