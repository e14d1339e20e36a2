"""Policies for tests, as YAML."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from .raw import MODEL


def rules(
    *urls: str,
    slots: int | None = 64,
    queue: int = 256,
    tier: str = "",
    pool: str = "",
    keys: Mapping[str, str] | None = None,
) -> str:
    """One model in one pool `main`, one tier `free`.

    `tier` and `pool` are further fields in YAML's flow form, as in `tier="timeouts: {queue: 1s}"`. `keys` maps key
    to tenant; without any, nobody needs a key.
    """
    lines = [
        "apiVersion: tailgate/v1",
        f"models: {{{MODEL}: {{pools: [main], aliases: [default]}}}}",
        "pools:",
        f"  main: {{replicas: [{', '.join(urls)}]{_slots(slots)}, queue: {{limit: {queue}}}{_more(pool)}}}",
        f"tiers: {{free: {{max_tokens: {{default: 16, limit: 4000}}{_more(tier)}}}}}",
        "defaults: {tier: free}",
    ]
    if keys:
        lines.append("keys:")
        lines += [f"  - {{sha256: {sha256(key)}, tenant: {tenant}, tier: free}}" for key, tenant in keys.items()]
    return "\n".join(lines) + "\n"


def sha256(key: str) -> str:
    """A key in the form of a policy file."""
    return hashlib.sha256(key.encode()).hexdigest()


def _slots(slots: int | None) -> str:
    return "" if slots is None else f", slots: {slots}"


def _more(fields: str) -> str:
    return f", {fields}" if fields else ""
