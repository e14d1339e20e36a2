"""Separates the prefix caches of tenants. In a shared cache, the time to first token would reveal whether another
tenant sent the same prompt.

vLLM hashes `cache_salt` into the first block of a prompt, so prompts with different salts share no block. The salt is a
keyed hash of the tenant's name, so no tenant can guess another's salt. All gateways with the same key compute the same
salt.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable

from gateway.core.pool_spec import PoolSpec
from gateway.core.request import GENERATING, Endpoint


def salt_of(key: str, tenant: str) -> str:
    """The salt of a tenant: HMAC-SHA256 of its name, 64 hexadecimal digits."""
    return hmac.digest(key.encode(), tenant.encode("utf-8", "surrogatepass"), "sha256").hex()


def salted(body: bytes, endpoint: Endpoint, pool: PoolSpec, tenant: str) -> bytes:
    """The body of a request for `pool`, with the tenant's salt added if the pool separates the caches of tenants."""
    if pool.cache_key is None or endpoint not in GENERATING:
        return body
    return b'{"cache_salt":"%b",' % salt_of(pool.cache_key, tenant).encode() + body[1:]


def salts(pools: Iterable[PoolSpec]) -> bool:
    """Whether any of these pools separates the caches of tenants."""
    return any(pool.cache_key is not None for pool in pools)
