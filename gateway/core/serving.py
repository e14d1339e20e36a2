"""Which model serves a request. Arms of a split: by weighted rendezvous hashing (Thaler and Ravishankar, 1998).

Each arm gets a score from a hash of the split, the arm and the key, and the best one wins. So one key keeps its arm
over reloads, restarts and gateways. A changed weight moves keys only to the arm that gains, or from the one that loses.
"""

from __future__ import annotations

import math
from hashlib import blake2b
from typing import Final

from gateway.core.policy import Model, Policy, Tier

_SPAN: Final = 2.0**64


def arm_of(policy: Policy, split: Model, tier: Tier, key: str) -> Model:
    """The model that serves requests for `split` with this sticky key.

    Arms without a pool that the tier may use are left out. If all are, it is the first, whose request is then refused.
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
