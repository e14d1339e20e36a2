"""Every API that reaches a replica, a row each, and which of their paths a tier has.

vLLM asks for its key below /v1 only: its other paths are meant for those who run it. So a tier has them only where it
names their API.
"""

from __future__ import annotations

from typing import Final

from gateway.core.policy import Tier
from gateway.core.request import Endpoint
from gateway.wire.apis.audio import TRANSCRIPTIONS, TRANSLATIONS
from gateway.wire.apis.classify import CLASSIFY
from gateway.wire.apis.pooling import POOLING
from gateway.wire.apis.rerank import RERANK
from gateway.wire.apis.row import Api, Shape
from gateway.wire.apis.score import SCORE
from gateway.wire.apis.tokens import DETOKENIZE, TOKENIZE
from gateway.wire.body import fields

APIS: Final[tuple[Api, ...]] = (
    Api("chat", (Endpoint.CHAT,), fields.SHAPES[Endpoint.CHAT]),
    Api("completions", (Endpoint.COMPLETIONS,), fields.SHAPES[Endpoint.COMPLETIONS]),
    Api("embeddings", (Endpoint.EMBEDDINGS,), fields.SHAPES[Endpoint.EMBEDDINGS]),
    Api("responses", (Endpoint.RESPONSES,), fields.SHAPES[Endpoint.RESPONSES]),
    Api("messages", (Endpoint.MESSAGES,), fields.SHAPES[Endpoint.MESSAGES]),
    RERANK,
    SCORE,
    POOLING,
    CLASSIFY,
    TOKENIZE,
    DETOKENIZE,
    TRANSCRIPTIONS,
    TRANSLATIONS,
)
SHAPES: Final[dict[Endpoint, Shape]] = {endpoint: api.shape for api in APIS for endpoint in api.endpoints}


def served(tier: Tier) -> frozenset[Endpoint]:
    """The endpoints that `tier` has."""
    said = dict(tier.apis)
    return frozenset(
        endpoint for api in APIS for endpoint in api.endpoints if said.get(api.name, endpoint.value.startswith("/v1/"))
    )
