"""The table of all APIs that reach a replica, and the paths that a tier may use.

vLLM checks its key only below /v1, because its other paths are meant for operators. So a tier may use other paths only
if the policy names their API.
"""

from __future__ import annotations

from typing import Final

from gateway.core.policy import Tier
from gateway.core.request import Endpoint
from gateway.wire.apis.audio import TRANSCRIPTIONS, TRANSLATIONS
from gateway.wire.apis.chat import CHAT
from gateway.wire.apis.classify import CLASSIFY
from gateway.wire.apis.completions import COMPLETIONS
from gateway.wire.apis.embeddings import EMBEDDINGS
from gateway.wire.apis.messages import MESSAGES
from gateway.wire.apis.pooling import POOLING
from gateway.wire.apis.rerank import RERANK
from gateway.wire.apis.responses import RESPONSES
from gateway.wire.apis.row import Api
from gateway.wire.apis.score import SCORE
from gateway.wire.apis.tokens import DETOKENIZE, TOKENIZE

APIS: Final[tuple[Api, ...]] = (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    RESPONSES,
    MESSAGES,
    RERANK,
    SCORE,
    POOLING,
    CLASSIFY,
    TOKENIZE,
    DETOKENIZE,
    TRANSCRIPTIONS,
    TRANSLATIONS,
)
API_OF: Final[dict[Endpoint, Api]] = {endpoint: api for api in APIS for endpoint in api.endpoints}


def served(tier: Tier) -> frozenset[Endpoint]:
    """The endpoints that `tier` may use."""
    said = dict(tier.apis)
    return frozenset(
        endpoint for api in APIS for endpoint in api.endpoints if said.get(api.name, endpoint.value.startswith("/v1/"))
    )
