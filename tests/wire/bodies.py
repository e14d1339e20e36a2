"""Request bodies and caps for the tests of requests."""

from __future__ import annotations

import json
from typing import Any

from gateway.core.policy import Caps
from gateway.core.request import Endpoint
from gateway.wire.parsed import Parsed
from gateway.wire.render import render
from gateway.wire.request import parse

CAPS = Caps(max_tokens_default=100, max_tokens_limit=1000, n=4, best_of=4, top_logprobs=5, prompt_logprobs=2)
CHAT: dict[str, Any] = {"model": "llama", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION: dict[str, Any] = {"model": "llama", "prompt": "once"}
MESSAGES: dict[str, Any] = {**CHAT, "max_tokens": 10}
RESPONSES: dict[str, Any] = {"model": "llama", "input": "hi"}
EMBEDDINGS: dict[str, Any] = {"model": "e5", "input": "hi"}
RERANK: dict[str, Any] = {"model": "bge", "query": "hi", "documents": ["ho"]}
SCORE: dict[str, Any] = {"model": "bge", "text_1": "hi", "text_2": "ho"}
PROMPT: dict[str, Any] = {"model": "llama", "prompt": "hi"}
TOKENS: dict[str, Any] = {"model": "llama", "tokens": [1, 2]}
MINIMAL = {
    Endpoint.CHAT: CHAT,
    Endpoint.COMPLETIONS: COMPLETION,
    Endpoint.EMBEDDINGS: EMBEDDINGS,
    Endpoint.RESPONSES: RESPONSES,
    Endpoint.MESSAGES: MESSAGES,
    **dict.fromkeys((Endpoint.RERANK, Endpoint.RERANK_BARE, Endpoint.RERANK_V2), RERANK),
    **dict.fromkeys((Endpoint.SCORE, Endpoint.SCORE_BARE), SCORE),
    **dict.fromkeys((Endpoint.POOLING, Endpoint.CLASSIFY), EMBEDDINGS),
    Endpoint.TOKENIZE: PROMPT,
    Endpoint.DETOKENIZE: TOKENS,
}


def read(endpoint: Endpoint, document: dict[str, Any], caps: Caps = CAPS) -> Parsed:
    return parse(endpoint, json.dumps(document).encode(), caps)


def sent(endpoint: Endpoint, document: dict[str, Any], max_tokens: int = 100, caps: Caps = CAPS) -> dict[str, Any]:
    """The body that the engine receives."""
    result: dict[str, Any] = json.loads(render(read(endpoint, document, caps), "upstream", max_tokens))
    return result
