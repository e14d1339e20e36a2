"""API keys as they are given, `KEY` or `TIER=KEY`, and which of them a tenant has."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from zlib import crc32

from gateway.policy.errors import did_you_mean
from gateway.policy.sections.values import NAME

ALL = ""
"""Stands for the tiers that have no keys of their own."""


def read_keys(lines: Iterable[tuple[str, str]], tiers: Collection[str] | None) -> dict[str, tuple[str, ...]]:
    """By tier, in order. Of each line, where it stands and what it says; `tiers` are those that there are, if known.

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
    """Raises ValueError, which says where it stands and does not show it, if it cannot be in a header as it is."""
    if not re.fullmatch(r"[\x21-\x7e]+", key):
        raise ValueError(f"{where}: a key is printable ASCII without spaces")


def assigned(keys: Sequence[str], tenant: str) -> str:
    """The key of a tenant, always the same: tenants that are numbered take turns, others are spread by their name."""
    number = re.search(r"-(\d+)$", tenant)
    return keys[(int(number[1]) - 1 if number else crc32(tenant.encode())) % len(keys)]


def _split(text: str, tiers: Collection[str] | None) -> tuple[str, str]:
    """Keys may have = in them: what is before the first is a tier only if it can be one."""
    tier, _, key = text.partition("=")
    if not tier or (tiers is not None and tier in tiers and not key):
        raise ValueError("a key is written KEY, or TIER=KEY for the requests of one tier")
    if not key.strip("=") or not re.fullmatch(NAME, tier, re.ASCII):
        return ALL, text  # also `sk-abc==`, as base64 ends
    if tiers is not None and tier not in tiers:
        raise ValueError(
            f"there is no tier {tier}: {did_you_mean(tier, tiers)} "
            f"(tiers: {', '.join(sorted(tiers))}). A key that has = in it is given as TIER=KEY"
        )
    return tier, key
