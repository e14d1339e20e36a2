"""The senders of requests: tenants and tiers by key, and the catalog of the models that a tier may use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from gateway.core.policy import Model, Policy, Tier
from gateway.core.pool_spec import PoolSpec
from gateway.core.request import Endpoint
from gateway.wire.apis.table import served

KEY_DIGITS: Final = 8
"""Hexadecimal digits of a hash that name a key in records: enough to find its line in the policy."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request: its tenant, and the tier in which it is served."""

    tenant: str
    tier: Tier
    serves: frozenset[Endpoint]
    """Endpoints that the tier serves."""
    key: str = ""
    """The first digits of the hash of its key, as in the policy; empty without keys."""


Callers = dict[bytes, tuple[bytes, Caller | None]]
"""Callers by the SHA-256 digest of their key. The value repeats the digest, which is compared in constant time."""


def callers_of(policy: Policy) -> Callers:
    """The callers of a policy. With thousands of keys this takes a long time, so a reload calls it outside the event
    loop.
    """
    serves = {tier.name: served(tier) for tier in policy.tiers.values()}
    return {
        digest: (key.sha256, Caller(key.tenant, policy.tiers[key.tier], serves[key.tier], digest.hex()[:KEY_DIGITS]))
        for digest, key in policy.keys.items()
    }


class Catalog(Protocol):
    """The catalog of models."""

    def listing(self, policy: Policy, tier: Tier | None = None) -> Sequence[Mapping[str, object]]:
        """All models that `tier` may use, in the form of the API. None: every tier."""

    def usable(self, policy: Policy, tier: Tier) -> Sequence[str]:
        """Names of all models that `tier` may use, each once: without aliases and LoRA adapters."""

    def one(self, policy: Policy, name: str, tier: Tier | None = None) -> Mapping[str, object] | None:
        """The model of this name; None if there is none. With a catch-all, any name is accepted while a replica's list
        is unknown.
        """

    def base_of(self, policy: Policy, name: str, tier: Tier | None = None) -> Model | None:
        """The model whose replicas list `name` as a LoRA adapter; None if there is none."""

    def is_adapter(self, pools: Iterable[PoolSpec], name: str) -> bool:
        """Whether replicas of these pools list `name` as a LoRA adapter."""
