"""Writes notes on a valid policy that its author should read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gateway.core.policy import Model, Policy, Tier
from gateway.core.pool_spec import SessionKey

MIN_TENANTS = 20
"""With at least this many tenants, a split by tenant is close to its weights."""
EXAMPLE_KEYS: Final = frozenset(
    {
        "cf78dd9f2e2e4f74267b6e5ec716e21b47ee1c9a048bac5e56a01adb80469f12",
        "278aca953ebefb0e98ca33ef19bde13b2822a58eed1dafa5515b4535bc961bd2",
        "98337f1c44814b6ebbd6d5a4cd12731995b55d492b35e85fb2280e26c365df07",
        "c3bc8ece8d6861911ddb0e27a7e634f0c739c068ba72b3767997c3cd48bd42e1",
        "4ef112439b3175a06f2298c9388c8285b75e96770e529479ee2a99eee1b8ade3",
    }
)
"""Hashes of the keys in ready-made policies, which nobody has. A copied policy may still contain them."""


def notes(policy: Policy) -> tuple[str, ...]:
    """One sentence for each part of the policy that has no effect, or an unexpected effect."""
    found = [*_unused(policy)]
    for tier in policy.tiers.values():
        found += _of_tier(tier)
        if tier.fallback and {model.name for model in policy.models.values()} == {tier.fallback}:
            found.append(f"tiers.{tier.name}.fallback: has no effect: there is no other model")
    return tuple(found)


def _unused(policy: Policy) -> Iterator[str]:
    served = {pool for model in policy.models.values() for pool in model.pools}
    served |= {model.mirror.to for model in policy.models.values() if model.mirror is not None}
    for name in policy.pools:
        if name not in served:
            yield f"pools.{name}: no model lists this pool, so nothing is sent to it"
    used = {policy.default_tier, *(key.tier for key in policy.keys.values())}
    for name in policy.tiers:
        if name not in used:
            yield f"tiers.{name}: no key has this tier, so nobody gets it"
    yield from _equals(policy)
    for model in dict.fromkeys(model for model in policy.models.values() if model.split):
        yield from _of_split(policy, model)
    if not policy.keys and not policy.open_on_any_address:
        yield "keys: there are none, so this policy is served on loopback only"
    examples = [key.tenant for sha256, key in policy.keys.items() if sha256.hex() in EXAMPLE_KEYS]
    if examples:
        tenants = ", ".join(dict.fromkeys(examples))
        yield f"keys: those of {tenants} are examples that nobody has: replace them with what `tailgate key new` prints"
    if policy.keys and policy.host_names:
        yield "listen.names: has no effect: with keys, every Host is served"


def _equals(policy: Policy) -> Iterator[str]:
    """A note about the effect of weights, for tiers of the same priority with different weights."""
    levels: dict[int, list[Tier]] = {}
    for tier in policy.tiers.values():
        levels.setdefault(tier.priority, []).append(tier)
    for priority, tiers in sorted(levels.items()):
        if len({tier.weight for tier in tiers}) > 1:
            order = " before ".join(tier.name for tier in sorted(tiers, key=lambda tier: -tier.weight))
            yield (
                f"tiers: {', '.join(tier.name for tier in tiers)} have the priority {priority}: the latest start "
                f"decides, but while requests of that priority are refused the order is by weight, {order}; "
                "write priorities for a strict order"
            )


def _of_split(policy: Policy, model: Model) -> Iterator[str]:
    for arm, weight in model.split:
        if not weight:
            yield f"models.{model.name}.split.{arm}: has the weight 0, so nothing is sent to it"
    tenants = len({key.tenant for key in policy.keys.values()})
    sessions = [policy.pools[pool].sessions for pool in model.pools]
    names = [of.header if key is SessionKey.HEADER else key.value for of in sessions for key in of.keys]
    named = " or ".join(dict.fromkeys(names)) or "a session"
    if not tenants:
        yield f"models.{model.name}.split: there are no keys, so a request without {named} is split by itself"
    elif tenants < MIN_TENANTS:
        yield (
            f"models.{model.name}.split: without {named} a tenant stays with one model, and the keys name "
            f"{tenants}: shares may be far from the weights"
        )


def _of_tier(tier: Tier) -> Iterator[str]:
    if not tier.caps.max_tokens_default:
        yield (
            f"tiers.{tier.name}.max_tokens: a request that names no length gets what its engine gives, up to the whole "
            "context; write a limit to bound it"
        )
    if tier.caps.degrade and not tier.slo.e2e:
        yield f"tiers.{tier.name}.max_tokens.degrade: has no effect without an e2e objective"
