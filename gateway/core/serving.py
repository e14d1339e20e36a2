"""Which model serves a request. Arms of a split: by weighted rendezvous hashing (Thaler and Ravishankar, 1998).

Each arm gets a score from a hash of the split, the arm and the key, and the best one wins. So one key keeps its arm
over reloads, restarts and gateways. A changed weight moves keys only to the arm that gains, or away from the one that
loses.
"""

from __future__ import annotations

import math
from hashlib import blake2b
from typing import Final

from gateway.core.policy import Model, Policy, Tier
from gateway.core.request import GENERATING, Request

_SPAN: Final = 2.0**64


def arm_of(policy: Policy, split: Model, tier: Tier, key: str) -> Model:
    """The model that serves requests for `split` with this sticky key.

    Arms without a pool that the tier may use are left out. If all are left out, the first is returned, and its request
    is then refused.
    """
    best, lowest = policy.models[split.split[0][0]], math.inf
    for name, weight in split.split:
        arm = policy.models[name]
        if weight and policy.route(arm, tier):
            score = -math.log(_uniform(split.name, name, key)) / weight
            if score < lowest:
                best, lowest = arm, score
    return best


def _uniform(split: str, arm: str, key: str) -> float:
    """A number in (0, 1] that looks random, and is always the same for the same names."""
    digest = blake2b(f"{split}\0{arm}\0{key}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return (int.from_bytes(digest, "big") + 1) / _SPAN


def fallback_of(request: Request) -> Request | None:
    """The same request for its tier's fallback; None if there is none, or another model's answer would be useless.

    Vectors and scores of two models cannot be compared, and token ids are those of one model. A stored response is in
    the memory of one engine.
    """
    model = request.policy.models.get(request.tier.fallback)
    if model is None or request.fallback_of or request.stored is not None or request.model.name == model.name:
        return None
    if request.endpoint not in GENERATING or request.is_token_ids or not request.policy.route(model, request.tier):
        return None
    return Request(
        id=request.id,
        policy=request.policy,
        tier=request.tier,
        model=model,
        tenant=request.tenant,
        endpoint=request.endpoint,
        stream=request.stream,
        prompt_bytes=request.prompt_bytes,
        prompt_exact=request.prompt_exact if request.model.tokenizer == model.tokenizer else None,
        max_tokens=request.max_tokens,
        choices=request.choices,
        body_bytes=request.body_bytes,
        head_at=request.head_at,
        body_at=request.body_at,
        batch=request.batch,
        body_hash=request.body_hash,
        slo=request.slo,
        assembled=request.assembled,
        prefix=request.prefix,
        split=request.split,
        session=request.session,
        fallback_of=request.model.name,
        comeback=request.comeback,
    )
