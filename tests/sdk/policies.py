"""The policy of these tests."""

from __future__ import annotations

import hashlib

MODEL = "emulated"
ALIAS = "gpt-4o"
KEY = "tg-the-key-of-the-tests"
HELLO = [{"role": "user", "content": "Hello there"}]


def policy(urls: list[str], tier: str = "", pool: str = "", limit: int = 4000, model: str = "") -> str:
    """One model, one pool, one tier, each with more fields in YAML's flow form; `limit`: the cap on output."""
    more_of_tier, more_of_pool, more = (f", {fields}" if fields else "" for fields in (tier, pool, model))
    return f"""\
apiVersion: tailgate/v1
models: {{{MODEL}: {{pools: [main], aliases: [{ALIAS}]{more}}}}}
pools: {{main: {{replicas: [{", ".join(urls)}], slots: 16{more_of_pool}}}}}
tiers: {{standard: {{max_tokens: {{default: 32, limit: {limit}}}, caps: {{n: 4}}{more_of_tier}}}}}
keys: [{{sha256: {hashlib.sha256(KEY.encode()).hexdigest()}, tenant: acme, tier: standard}}]
"""
