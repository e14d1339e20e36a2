"""Chooses the model that serves a request: the only one of a tier, an arm of a split, or the fallback of a tier.

Arms are chosen by weighted rendezvous hashing (Thaler and Ravishankar, 1998). Each arm gets a score from a hash of
split, arm and key, and the best score wins. So a key keeps its arm across reloads, restarts and gateways. If a weight
changes, keys move only to an arm that gains weight, or away from an arm that loses weight.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from hashlib import blake2b
from heapq import nsmallest
from typing import Final

from gateway.core.policy import Model, Policy, Tier
from gateway.core.request import GENERATING, Request

_SPAN: Final = 2.0**64
MAX_NAME: Final = 64
"""A name is cut to this many characters in error texts."""
MAX_NAMES: Final = 5
"""An error text shows at most this many names of models."""


def open_catch_all(policy: Policy) -> Model | None:
    """The catch-all model that sends any name as it is; None if there is none, or if it has an `upstream` name."""
    catch_all = policy.models.get("*")
    return None if catch_all is None or catch_all.upstream else catch_all


def no_model(name: str, listed: Collection[str]) -> str:
    """The text of the error for a model that does not exist. It shows some of the `listed` names."""
    text = f"The model `{name[:MAX_NAME]}` does not exist."
    if not listed:
        return text
    shown = ", ".join(f"`{known[:MAX_NAME]}`" for known in nsmallest(MAX_NAMES, listed))
    more = f" and {len(listed) - MAX_NAMES} more" if len(listed) > MAX_NAMES else ""
    return f"{text} Listed: {shown}{more}."


def models_of(policy: Policy, tier: Tier) -> list[str]:
    """Names of all models that `tier` may use, each once, without aliases. A catch-all is called by its upstream name,
    if another model does not have that name upstream.
    """
    usable = [model for name, model in policy.models.items() if name == model.name and policy.route(model, tier)]
    named = [model.name for model in usable if not model.any_name]
    sent = [model.sent_as(model.name) for model in usable if not model.any_name]
    return named + [
        model.upstream for model in usable if model.any_name and model.upstream and model.upstream not in sent
    ]


def arm_of(policy: Policy, split: Model, tier: Tier, key: str) -> Model:
    """The arm of `split` that serves requests with this sticky key.

    Arms without a pool that the tier may use are left out. If all are left out, the first arm is returned; the request
    is refused later.
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
    """A pseudo-random number in (0, 1], which is always the same for the same names."""
    digest = blake2b(f"{split}\0{arm}\0{key}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return (int.from_bytes(digest, "big") + 1) / _SPAN


def sent_name(request: Request) -> str:
    """The model name that replicas get for a request: that of its LoRA adapter, or of its model upstream."""
    return request.affinity.adapter or request.model.sent_as(request.asked_model)


def fallback_of(request: Request) -> Request | None:
    """A copy of the request for its tier's fallback model. None if there is none, or if another model cannot answer it.

    Embeddings and scores of two models cannot be compared, and token ids belong to one model. A stored response is in
    the memory of one engine.
    """
    model = request.policy.models.get(request.tier.fallback)
    if model is None or request.fallback_of or request.model.name == model.name:
        return None
    is_tied = request.is_token_ids or request.affinity.stored is not None
    if is_tied or request.endpoint not in GENERATING or not request.policy.route(model, request.tier):
        return None
    return request.for_model(model)
