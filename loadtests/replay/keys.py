"""API keys, given as `KEY` or `TIER=KEY`, and the key of a tenant."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from zlib import crc32

from gateway.policy.errors import did_you_mean
from gateway.policy.sections.values import NAME

ALL = ""
"""Stands for all tiers without keys of their own."""


def read_keys(lines: Iterable[tuple[str, str]], tiers: Collection[str] | None) -> dict[str, tuple[str, ...]]:
    """The keys by tier, in order. `lines`: place and text of each. `tiers`: the existing tiers, if known.

    Raises ValueError.
    """
    found: dict[str, tuple[str, ...]] = {}
    for where, line in lines:
        try:
            tier, key = _split(line, tiers)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        check_key(where, key)
        found[tier] = (*found.get(tier, ()), key)
    return found


def check_key(where: str, key: str) -> None:
    """Raises ValueError if the key cannot be in a header. The error text names the place of the key, not the key."""
    if not re.fullmatch(r"[\x21-\x7e]+", key):
        raise ValueError(f"{where}: a key is printable ASCII without spaces")


def assigned(keys: Sequence[str], tenant: str) -> str:
    """The key of a tenant, always the same: numbered tenants take keys in turn, others by a hash of their name."""
    number = re.search(r"-(\d+)$", tenant)
    return keys[(int(number[1]) - 1 if number else crc32(tenant.encode())) % len(keys)]


def _split(text: str, tiers: Collection[str] | None) -> tuple[str, str]:
    """Split TIER=KEY. Keys may contain =, so the text before the first = is a tier only if it can be one."""
    tier, _, key = text.partition("=")
    if not tier or (tiers is not None and tier in tiers and not key):
        raise ValueError("a key is written KEY, or TIER=KEY for the requests of one tier")
    if not key.strip("=") or not re.fullmatch(NAME, tier, re.ASCII):
        return ALL, text  # also `sk-abc==`, as base64 ends
    if tiers is not None and tier not in tiers:
        raise ValueError(
            f"there is no tier {tier}: {did_you_mean(tier, tiers)} "
            f"(tiers: {', '.join(sorted(tiers))}). Write a key with = in it as TIER=KEY"
        )
    return tier, key
